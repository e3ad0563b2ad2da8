"""Run Yosys passes (pyosys) in a process of their own, so that a hang can be killed.

``run(passes, ...)`` raises ``YosysError`` with the error line when a pass fails and ``YosysTimeout`` when the
time is up; the process and its children (yosys-abc) are then gone.
"""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# How Yosys reports an ABC that was ended by SIGXCPU: the shell's code for a signal.
_CPU_LIMIT_OF_ABC = f"return code {128 + signal.SIGXCPU}"


class YosysError(RuntimeError):
    """A Yosys pass failed."""


class YosysTimeout(YosysError):
    """The passes took longer than allowed and were killed."""


def run(
    passes: Sequence[str],
    *,
    timeout: float | None = None,
    cpu_seconds: int | None = None,
    log: Path | None = None,
) -> str:
    """Run passes on one empty design; returns Yosys' log, also written to ``log``.

    ``cpu_seconds`` limits the processor time of each process (Yosys, and every ABC it starts), so that a busy machine
    changes nothing; ``timeout`` is in seconds of the clock, a last resort.
    """

    def limit() -> None:
        if cpu_seconds is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))

    process = subprocess.Popen(
        [sys.executable, "-m", "hw.yosys"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=limit,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        output, _ = process.communicate("\n".join(passes), timeout=timeout)
    except BaseException as stop:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(stop, subprocess.TimeoutExpired):
            raise YosysTimeout(f"Yosys was stopped after {timeout:.0f} s") from None
        raise
    if log is not None:
        log.write_text(output)
    if process.returncode != 0:
        if process.returncode == -signal.SIGXCPU or _CPU_LIMIT_OF_ABC in output:
            raise YosysTimeout(f"Yosys used up its {cpu_seconds} s of processor time")
        reasons = [line for line in output.splitlines() if "ERROR" in line] or output.splitlines()[-3:]
        raise YosysError("Yosys: " + " ".join(reasons))
    return output


def _main() -> None:
    """Body of the process: one pass per line of standard input."""
    from pyosys import libyosys

    design = libyosys.Design()
    for line in sys.stdin.read().splitlines():
        if line.strip():
            design.run_pass(line)


if __name__ == "__main__":
    _main()
