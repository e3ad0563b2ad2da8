"""Timing paths in words: from which unit to which, through what, and where the time goes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from flow.report.headline import BASIS
from flow.report.run import STAGE_OF, ReportError, Run

# A line of OpenSTA's text report: "[cap] [slew] delay time edge pin (cell)"
POINT = re.compile(r"^\s*(?:-?[\d.]+\s+)*?(-?[\d.]+)\s+(-?[\d.]+)\s+[v^]\s+(\S+)\s+\(([^)]+)\)\s*$")
SLACK = re.compile(r"(-?[\d.]+)\s+slack")
UNNAMED = re.compile(r"_\d+_$")  # names that Yosys makes
STAGE = {"cell": str, "instance": str, "pin": str, "net?": str, "delay_ns": float, "arrival_ns": float}
SHAPE = {str: {str: [{"slack_ns": float, "stages": [STAGE]}]}}  # of paths.json: by corner and check
DEPTH = 2  # levels of hierarchy in a unit's name


@dataclass(frozen=True)
class Leg:
    """A stretch of a path inside one unit: ``cells`` counts all that are passed, ``buffers`` the buffers among them."""

    unit: str
    cells: int
    buffers: int
    delay_ns: float


@dataclass(frozen=True)
class TimingPath:
    """A path from its start to its end. ``wire_ns``: time spent between cells, None where wires are not apart."""

    corner: str
    check: str
    slack_ns: float
    delay_ns: float
    start: str
    end: str
    legs: tuple[Leg, ...]
    wire_ns: float | None

    @property
    def through(self) -> str:
        """The legs in words."""
        return ", then ".join(_leg(leg) for leg in self.legs) or "no cells"

    @property
    def words(self) -> str:
        """The path as a sentence."""
        return f"From {self.start} through {self.through}, to {self.end}."


def _leg(leg: Leg) -> str:
    buffers = f", {leg.buffers} to buffer" if leg.buffers else ""
    cells = f"{leg.cells} cell{'s' if leg.cells != 1 else ''}{buffers}" if leg.cells else "wires only"
    return f"{leg.unit} ({leg.delay_ns:.2f} ns, {cells})"


def worst(run: Run, number: int = 10) -> list[TimingPath]:
    """The worst paths of a run, setup and hold of all corners, setup first; without a layout that of synthesis."""
    timed = run.json(run.timed("paths.json"), "paths.json", SHAPE)
    if timed is None:
        return _of_synthesis(run)
    paths = [
        _path(corner, check, found, run.design)
        for corner, checks in timed.items()
        for check, listed in checks.items()
        for found in listed
    ]
    kinds = sorted({path.check for path in paths}, reverse=True)
    return [
        path
        for kind in kinds
        for path in sorted((p for p in paths if p.check == kind), key=lambda p: p.slack_ns)[:number]
    ]


def basis(run: Run) -> str:
    """What the paths rest on."""
    step = run.timed("paths.json")
    if run.file(step, "paths.json"):
        return BASIS[STAGE_OF[step]]
    return "after synthesis, which keeps the worst setup path only; sign-off reports ten of each check"


def _of_synthesis(run: Run) -> list[TimingPath]:
    result = run.json("synth", "synthesis.json", {"timing?": {"worst_path?": (str, None)}})
    text = (result or {}).get("timing", {}).get("worst_path")
    if not text:
        return []
    try:
        return [_path("typical", "setup", read_text(text), run.design)]
    except ValueError as problem:
        raise ReportError(f"{run.folder / 'synth' / 'synthesis.json'}: {problem}") from None


def read_text(text: str) -> dict[str, Any]:
    """A path of OpenSTA's text report, in the form of those in paths.json; raises ValueError."""
    slack = SLACK.search(text)
    if slack is None:
        raise ValueError("a timing report of synthesis has no slack")
    stages = []
    for line in text.split("data arrival time")[0].splitlines():
        point = POINT.match(line)
        if point:
            delay, arrival, pin, cell = point.groups()
            port = cell in ("in", "out")
            stages.append(
                {
                    "cell": "" if port else cell,
                    "instance": "" if port else pin.rpartition("/")[0],
                    "pin": pin,
                    "net": "",
                    "delay_ns": float(delay),
                    "arrival_ns": float(arrival),
                }
            )
    return {"slack_ns": float(slack.group(1)), "stages": stages}


def _path(corner: str, check: str, found: dict[str, Any], design: str) -> TimingPath:
    stages = found["stages"]
    start, end = (_end(stages[0], stages, design), _end(stages[-1], (), design)) if stages else ("", "")
    delay = stages[-1]["arrival_ns"] - stages[0]["arrival_ns"] if stages else 0.0
    legs = tuple(_legs(stages, design))
    return TimingPath(corner, check, found["slack_ns"], delay, start, end, legs, _wire(stages))


def unit_of(instance: str, design: str) -> str:
    """The hierarchy above an instance, at most two levels; the design's own name where there is none."""
    levels = instance.replace("\\", "").split("/")[:-1]
    return "/".join(levels[:DEPTH]) or design


def _end(stage: dict[str, Any], stages: Sequence[dict[str, Any]], design: str) -> str:
    """Start or end of a path: a port, a macro, or a register, by the name of its output where that is in ``stages``."""
    if not stage["instance"]:
        return f"port {stage['pin']}"
    where = unit_of(stage["instance"], design)
    if not stage["cell"].startswith("DFF"):
        kind = "SRAM" if stage["cell"].startswith("sram_") else "block"
        return f"{kind} {stage['instance'].rpartition('/')[2]} ({stage['cell']}) in {where}"
    nets = [s.get("net", "") for s in stages if s["instance"] == stage["instance"]]
    name = next((net.rpartition("/")[2] for net in reversed(nets) if net and not UNNAMED.search(net)), "")
    return f"register {name} in {where}" if name else f"a register in {where}"


def _legs(stages: Sequence[dict[str, Any]], design: str) -> Iterable[Leg]:
    """Stretches in one unit after the other; a wire's delay belongs to the unit that it leads to."""
    inner = [stage for stage in stages if stage["instance"]]
    ends = {stage["instance"] for stage in (*stages[:1], *stages[-1:])}
    for unit, group in groupby(inner, key=lambda stage: unit_of(stage["instance"], design)):
        points = list(group)
        cells = {p["instance"]: p["cell"] for p in points if p["instance"] not in ends}
        buffers = sum(cell.startswith(("BUF_", "CLKBUF_")) for cell in cells.values())
        delay = sum(float(p["delay_ns"]) for p in points)
        if cells or delay >= 0.005:
            yield Leg(unit, len(cells), buffers, delay)


def _wire(stages: Sequence[dict[str, Any]]) -> float | None:
    """Delay at the points that enter another cell than the point before; None where nets are not named."""
    if not any(stage.get("net") for stage in stages):
        return None
    return sum(
        float(here["delay_ns"])
        for before, here in zip(stages, stages[1:], strict=False)
        if here["instance"] != before["instance"]
    )
