"""Run Yosys passes (pyosys) in a process of their own, so that a hang can be killed.

``run(passes, timeout=...)`` raises ``YosysError`` with the error line when a pass fails and ``YosysTimeout`` when the
time is up; the process and its children (yosys-abc) are then gone.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


class YosysError(RuntimeError):
    """A Yosys pass failed."""


class YosysTimeout(YosysError):
    """The passes took longer than allowed and were killed."""


def run(
    passes: Sequence[str], *, timeout: float | None = None, log: Path | None = None, cwd: Path | None = None
) -> str:
    """Run passes on one empty design; returns Yosys' log, also written to ``log``."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hw.yosys"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        cwd=cwd,
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
