"""Find OpenROAD and run scripts on it: a program on PATH or given, or a container image."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

IMAGE = "openroad/orfs"
IN_IMAGE = "/OpenROAD-flow-scripts/tools/install/OpenROAD/bin/openroad"
LARGEST = 1e29  # OpenSTA writes 1e30 and more where there is no path or no limit

# Messages of OpenROAD in words of this flow: (pattern in the log's error line, what to say).
EXPLANATIONS = (
    (r"\[ERROR (IFP-0\d+|GPL-030[12])\]|[Uu]tilization .*(exceeds|over) 100", "the die is too small"),
    (r"\[ERROR GPL-0305\]", "placement went apart: use --no-routability, or another die"),
    (r"\[ERROR (MPL|RTLMP)-\d+\]", "the macros cannot be placed: lower the utilisation"),
    (r"\[ERROR PPL-\d+\]", "the pins do not fit the die's edge: lower the utilisation"),
    (r"\[ERROR DPL-\d+\]", "the cells cannot be legalised: lower the utilisation or the density"),
    (r"\[ERROR GRT-0*(118|119|232)\]", "the wires do not fit: lower the utilisation"),
)


class OpenRoadError(RuntimeError):
    """OpenROAD is missing or failed; the message is one line."""


class OpenRoadMissing(OpenRoadError):
    """There is no OpenROAD where it was looked for."""


@dataclass(frozen=True)
class OpenRoad:
    """How OpenROAD is started: ``command`` goes before its own arguments."""

    command: tuple[str, ...]
    version: str
    threads: int = 2

    def run(self, script: Path, log: Path, metrics: Path, *, watch: Callable[[str], None] | None = None) -> list[str]:
        """Run a Tcl script in the log's folder; returns the warnings. ``watch`` is shown the log's last line.

        Raises OpenRoadError with the tool's own error in one line; on any other exception the tool is stopped.
        """
        arguments = ["-exit", "-no_splash", "-threads", str(self.threads), "-metrics", str(metrics), str(script)]
        with log.open("w") as out:
            process = subprocess.Popen(
                [*self.command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
                start_new_session=True,
            )
            try:
                while process.poll() is None:
                    time.sleep(0.2)
                    if watch is not None:
                        watch(last_line(log))
            except BaseException:
                _stop(process)
                raise
        text = log.read_text(errors="replace")
        if process.returncode:
            raise OpenRoadError(explain(text, process.returncode))
        return [without_folders(line) for line in re.findall(r"^\[WARNING .*$", text, flags=re.M)]


def without_folders(line: str) -> str:
    """A message with files by their names, wherever they lie on this machine."""
    return re.sub(r"(?<![^\s'\"(])/(?:[^\s/]+/)+", "", line)


def _stop(process: subprocess.Popen[bytes], patience: float = 10.0) -> None:
    """End a process and what it started; asked first, so that a container ends too."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def last_line(log: Path, tail: int = 2000) -> str:
    """The last line of a file that is being written."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - tail))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def explain(log: str, code: int) -> str:
    """One line for a failed run: the first error in the log, after what it means for the flow's settings."""
    errors = re.findall(r"^(?:\[ERROR .*|Error: .*|.*\binvalid command name\b.*)$", log, flags=re.M)
    first = errors[0].strip() if errors else f"it ended with code {code}, see the log"
    for pattern, meaning in EXPLANATIONS:
        if re.search(pattern, first):
            return f"{meaning} (OpenROAD: {first})"
    return f"OpenROAD: {first}"


def read_metrics(file: Path) -> dict[str, float | int | str]:
    """Metrics as OpenROAD wrote them, without its stand-ins for what it could not measure."""
    values = json.loads(file.read_text()) if file.is_file() and file.stat().st_size else {}
    return {name: value for name, value in values.items() if _measured(value)}


def _measured(value: float | str) -> bool:
    if isinstance(value, str):
        return value not in ("N/A", "Infinity", "-Infinity", "NaN")
    return math.isfinite(value) and abs(value) < LARGEST


def find(program: Path | None = None, *, container: bool = False, mounts: tuple[Path, ...] = ()) -> OpenRoad:
    """OpenROAD on PATH, at ``program``, or in the image ``openroad/orfs`` (folders in ``mounts`` are visible inside).

    Raises OpenRoadMissing, one line.
    """
    if container:
        return _in_container(mounts)
    if program is not None:
        if not (program.is_file() and os.access(program, os.X_OK)):
            raise OpenRoadMissing(f"no OpenROAD program at {program}")
        path = str(program.resolve())
    else:
        found = shutil.which("openroad")
        if found is None:
            raise OpenRoadMissing("no openroad on PATH: install OpenROAD, or use --openroad PATH or --container")
        path = found
    return OpenRoad((path,), _version((path,)), os.cpu_count() or 1)


def _in_container(mounts: tuple[Path, ...]) -> OpenRoad:
    engine = shutil.which("docker") or shutil.which("podman")
    if engine is None:
        raise OpenRoadMissing("--container needs docker or podman, and neither is on PATH")
    folders = [part for folder in dict.fromkeys(mounts) for part in ("-v", f"{folder}:{folder}")]
    user = ("-u", f"{os.getuid()}:{os.getgid()}")
    command = (engine, "run", "--rm", "--init", *user, *folders, IMAGE, IN_IMAGE)
    return OpenRoad(command, _version(command), os.cpu_count() or 1)


def _version(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run([*command, "-version"], capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise OpenRoadMissing(f"OpenROAD cannot be started: {problem}") from None
    lines = (done.stdout + done.stderr).strip().splitlines()
    if done.returncode or not lines:
        raise OpenRoadMissing(f"OpenROAD cannot be started: {lines[-1] if lines else f'code {done.returncode}'}")
    return lines[0].strip()
