"""One run of the flow as the report sees it: ``report.json`` and the data files of its steps (docs/flow.md)."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from flow.report.shape import Shape, fault

REPORT = "report.json"

# Stage in metric names by step, in the order of the flow; docs/flow.md holds the same table.
STAGE_OF = {
    "synth": "synth",
    "floorplan": "floorplan",
    "power_grid": "powergrid",
    "placement": "placement",
    "clock_tree": "cts",
    "repair": "repair",
    "global_route": "globalroute",
    "detailed_route": "detailedroute",
    "fill": "fill",
    "parasitics": "parasitics",
    "signoff": "finish",
    "power": "finish",
    "layout": "layout",
    "netlist": "netlist",
    "netlist_sim": "netlistsim",
    "abstract": "abstract",
    "corners": "corners",
}
STAGES = tuple(dict.fromkeys(STAGE_OF.values()))
# Stages of what the report adds (flow.report.derived): measured on the RTL; summed through the blocks of a design.
RTL, WHOLE = "rtl", "whole"

Metric = float | int | str
Table = dict[str, NDArray[Any]]  # columns by name: float64, or str where a column holds text


class ReportError(ValueError):
    """A run that cannot be read; the message is one line that says what to do."""


@dataclass(frozen=True)
class Found:
    """A metric and the stage that it is from."""

    value: float
    stage: str


@dataclass(frozen=True)
class StepRun:
    """A step of the run: seconds it took when it was made, warnings as the tool wrote them."""

    name: str
    status: str
    seconds: float
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """A run; ``data`` is its report.json. Files that the run does not have are None."""

    folder: Path
    data: dict[str, Any]

    @property
    def design(self) -> str:
        """``<preset>`` or ``<preset>.<unit>``."""
        return str(self.data["design"])

    @property
    def preset(self) -> str:
        return str(self.data["preset"])

    @property
    def unit(self) -> str | None:
        """None: the chip."""
        return cast("str | None", self.data["unit"])

    @property
    def state(self) -> str:
        """How far timing and wires can be trusted: ``pre-layout`` to ``signed off``."""
        return str(self.data["state"])

    @property
    def metrics(self) -> dict[str, Metric]:
        """All steps' metrics, by their full names."""
        return cast("dict[str, Metric]", self.data["metrics"])

    @property
    def versions(self) -> dict[str, str]:
        return cast("dict[str, str]", self.data["versions"])

    @property
    def settings(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.data["settings"])

    @property
    def netlist_sha256(self) -> str | None:
        """Of the netlist that was signed off."""
        return cast("str | None", self.data.get("netlist_sha256"))

    @property
    def kept(self) -> bool:
        """Whether this is a kept run: figures and a page, without the steps' files."""
        return "headline" in self.data

    @property
    def command(self) -> str:
        """The command line that makes the run again."""
        unit = f" --unit {self.unit}" if self.unit else ""
        return str(self.data.get("command") or f"nanok3 flow --config {self.preset}{unit}")

    @property
    def clock_ns(self) -> float:
        """Period that timing was asked for."""
        return float(self.settings["constraints"]["clock_ns"])

    @cached_property
    def steps(self) -> list[StepRun]:
        """In the order in which they ran."""
        return [
            StepRun(step["name"], step["status"], float(step["seconds"]), tuple(step["warnings"]))
            for step in self.data["steps"]
        ]

    def has(self, step: str) -> bool:
        """Whether a step has run."""
        return any(done.name == step for done in self.steps)

    def number(self, name: str) -> float | None:
        """A metric by its full name; None when it is absent or text."""
        value = self.metrics.get(name)
        return float(value) if isinstance(value, int | float) else None

    def last(self, name: str) -> Found | None:
        """A metric by its name without stage, from the last stage that has it."""
        for stage in reversed((RTL, *STAGES, WHOLE)):
            value = self.number(f"{stage}__{name}")
            if value is not None:
                return Found(value, stage)
        return None

    def text(self, name: str) -> str | None:
        """A metric that is text, by its full name."""
        value = self.metrics.get(name)
        return value if isinstance(value, str) else None

    def timed(self, name: str) -> str:
        """The step whose file of that name counts: sign-off, or before it the global route, labelled as such."""
        return next((step for step in ("signoff", "global_route") if self.file(step, name)), "signoff")

    def file(self, step: str, name: str) -> Path | None:
        """A step's data file."""
        path = self.folder / step / name
        return path if path.is_file() else None

    def json(self, step: str, name: str, shape: Shape) -> Any | None:
        """A step's JSON file, of a shape (flow.report.shape)."""
        path = self.file(step, name)
        return None if path is None else read_json(path, shape)

    def table(self, step: str, name: str, columns: tuple[str, ...], text: tuple[str, ...] = ()) -> Table | None:
        """A step's CSV file; columns in ``text`` are strings, the others numbers."""
        path = self.file(step, name)
        return None if path is None else read_table(path, columns, text)


def read_json(path: Path, shape: Shape) -> Any:
    """The file's value, of a shape (flow.report.shape); raises ReportError, one line."""
    try:
        value = json.loads(path.read_text())
        wrong = fault(value, shape)
    except (OSError, ValueError) as problem:
        raise ReportError(f"{path} cannot be read: {problem}") from None
    except RecursionError:
        raise ReportError(f"{path} cannot be read: it is nested too deep") from None
    if wrong is not None:
        raise ReportError(f"{path}: {wrong}")
    return value


def read_table(path: Path, columns: tuple[str, ...], text: tuple[str, ...] = ()) -> Table:
    """A CSV file with exactly these columns in its first line; raises ReportError, one line."""
    try:
        with path.open(newline="") as file:
            head, *lines = list(csv.reader(file)) or [[]]
    except (OSError, ValueError, csv.Error) as problem:
        raise ReportError(f"{path} cannot be read: {problem}") from None
    if tuple(head) != columns:
        raise ReportError(f"{path} has the columns {','.join(head)[:200]}, not {','.join(columns)}")
    for number, line in enumerate(lines, 2):
        if len(line) != len(columns):
            raise ReportError(f"{path} line {number}: {len(line)} values for {len(columns)} columns")
    table: Table = {}
    for i, column in enumerate(columns):
        values = [line[i] for line in lines]
        try:
            table[column] = np.array(values, dtype=str if column in text else float)
        except ValueError as problem:
            raise ReportError(f"{path} column {column}: {problem}") from None
        if column not in text and not np.isfinite(table[column]).all():
            raise ReportError(f"{path} column {column}: a number is not finite")
    return table


# Of report.json.
SHAPE: Shape = {
    "design": str,
    "preset": str,
    "unit": (str, None),
    "top?": str,
    "state": str,
    "blocks?": [str],
    "command?": (str, None),
    "metrics": {str: (float, str)},
    "steps": [{"name": str, "status": str, "seconds": float, "warnings": [str]}],
    "versions": {str: str},
    "settings": {"constraints": {"clock_ns": float}},
    "netlist_sha256?": (str, None),
}


def load(folder: Path) -> Run:
    """The run in a folder (or of a report.json itself); raises ReportError when it is not one."""
    path = folder if folder.name == REPORT else folder / REPORT
    if not path.is_file():
        raise ReportError(f"{folder} holds no {REPORT}: give a folder that 'nanok3 flow' has written")
    run = Run(path.parent, read_json(path, SHAPE))
    if run.clock_ns <= 0:
        raise ReportError(f"{path}: settings.constraints.clock_ns must be above 0")
    return run
