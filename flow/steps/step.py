"""One step of the flow, and the runner that keeps its results.

A step reads the folders of the steps before it and files from outside, and leaves a folder of its own:
``metrics.json``, ``step.json``, ``log`` and whatever files it makes. The runner gives it an empty work folder, which
takes the place of the last result only when the step ends well. A result is used again when its key is the same: the
hash of the step's settings, its script, the tools' versions, the contents of the files from outside and the keys of the
steps before.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from flow.design import Design
from flow.settings import FlowSettings
from flow.steps.openroad import OpenRoad

console = Console(stderr=True, highlight=False)

METRICS, RECORD, LOG, SCRIPT, DATABASE = "metrics.json", "step.json", "log", "script.tcl", "design.odb"
Metrics = dict[str, float | int | str]


class StepFailed(RuntimeError):
    """A step cannot go on; the message is one line that says why."""


@dataclass(frozen=True)
class Job:
    """One design on its way through the flow: what, how, with which tools, where."""

    design: Design
    settings: FlowSettings
    openroad: OpenRoad | None
    folder: Path  # build/flow/<design>
    command: str = ""  # the command line that makes it

    def of(self, step: str) -> Path:
        """The folder of a step's results."""
        return self.folder / step


@dataclass
class Outcome:
    """What a step hands back: numbers, warnings, versions of the tools it ran."""

    metrics: Metrics
    warnings: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)


class Step(ABC):
    """Subclasses say what they read and do it in ``run``."""

    name: ClassVar[str]
    after: ClassVar[tuple[str, ...]] = ()  # steps whose folders it reads
    needs_openroad: ClassVar[bool] = True

    def wanted(self, job: Job) -> bool:
        """Whether the step is part of this design's flow."""
        return True

    def settings(self, job: Job) -> Mapping[str, Any]:
        """Everything that changes the result and is not a file, as JSON values."""
        return {}

    def files(self, job: Job) -> Sequence[Path]:
        """Files from outside the flow's folder."""
        return ()

    def versions(self, job: Job) -> dict[str, str]:
        """Tools that make the result."""
        return {"openroad": job.openroad.version} if self.needs_openroad and job.openroad else {}

    def check(self, job: Job) -> None:  # noqa: B027
        """Refuse what cannot work before anything is started: raises StepFailed."""

    @abstractmethod
    def run(self, job: Job, work: Path) -> Outcome:
        """Make the results in ``work`` (log included); raises StepFailed or a tool's own one-line error."""


@dataclass
class Result:
    """A step's kept result."""

    name: str
    key: str
    status: str  # "done" now, or "cached"
    seconds: float
    folder: Path
    metrics: Metrics
    record: dict[str, Any]


def sha256(file: Path) -> str:
    """Hash of a file's contents."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def key(step: Step, job: Job, before: Mapping[str, str]) -> str:
    """The key of a step's result; ``before`` maps earlier steps to their keys."""
    what = {
        "step": step.name,
        "settings": step.settings(job),
        "versions": step.versions(job),
        "files": [[file.name, sha256(file)] for file in step.files(job)],
        "after": [before[name] for name in step.after if name in before],
    }
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:16]


def run(step: Step, job: Job, before: Mapping[str, str]) -> Result:
    """The step's result, from its folder when the key is the same, else made now.

    A step that fails or is interrupted leaves what it wrote in ``<step>.failed`` and the earlier result where it was.
    """
    want = key(step, job, before)
    target = job.of(step.name)
    kept = _kept(target, want)
    if kept is not None:
        return kept
    step.check(job)
    work = job.folder / f".{step.name}.{os.getpid()}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    failed = job.folder / f"{step.name}.failed"
    begin = time.monotonic()
    try:
        outcome = step.run(job, work)
        seconds = round(time.monotonic() - begin, 1)
        record: dict[str, Any] = {
            "name": step.name,
            "key": want,
            "seconds": seconds,
            "settings": dict(step.settings(job)),
            "versions": step.versions(job) | outcome.versions,
            "inputs": {str(file.name): sha256(file) for file in step.files(job)},
            "after": {name: before[name] for name in step.after if name in before},
            "files": sorted(str(file.relative_to(work)) for file in work.rglob("*") if file.is_file()),
            "warnings": outcome.warnings,
        }
        (work / METRICS).write_text(json.dumps(outcome.metrics, indent=1, sort_keys=True) + "\n")
        (work / RECORD).write_text(json.dumps(record, indent=1, default=str) + "\n")
    except BaseException:
        shutil.rmtree(failed, ignore_errors=True)
        work.rename(failed)
        raise
    shutil.rmtree(failed, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    work.rename(target)
    return Result(step.name, want, "done", seconds, target, outcome.metrics, record)


def _kept(folder: Path, want: str) -> Result | None:
    """The result in a folder if it is whole and has this key."""
    try:
        record = json.loads((folder / RECORD).read_text())
        metrics = json.loads((folder / METRICS).read_text())
    except (OSError, ValueError):
        return None
    if record.get("key") != want or not all((folder / file).is_file() for file in record["files"]):
        return None
    return Result(record["name"], want, "cached", record["seconds"], folder, metrics, record)
