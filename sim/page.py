"""One page for a person: the timeline of a token, where its cycles went, its critical path and the roofs.

The page is one file that needs nothing else: SVG and tables, no script, nothing from a network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from hw.params import Params
from hw.program import UNITS
from hw.timing import Timing
from sim.metrics import Roof, by_stage, critical_path, cycles, rooflines, utilisation
from sim.run import Result, Step
from sim.stages import name, operands
from sim.timing import Slice

WIDTH = 1200  # of a drawing
ROW_CYCLES = 150  # cycles in one row of the timeline
LANE, GAP = 22, 5  # heights
LABEL, RIGHT = 64, 16  # left of the lanes, and right of them
LETTER = 6.2  # width of one letter of a slice's label
PLOT = (560, 320, 56)  # width, height, margin of the roofline


@dataclass(frozen=True)
class Box:
    """A rectangle of the timeline: ``kind`` is its colour, ``text`` fits inside, ``tip`` is shown on hover."""

    x: float
    y: float
    width: float
    kind: str
    text: str
    tip: str
    critical: bool = False


@dataclass(frozen=True)
class Row:
    """Some cycles of the timeline."""

    first: int
    last: int
    boxes: list[Box]
    ticks: list[tuple[float, int]]


def render(title: str, p: Params, t: Timing, result: Result, facts: dict[str, Any]) -> str:
    """The page's HTML.  ``facts``: what stands under the title, by label; the timeline is the last position's."""
    step = result.steps[-1]
    path = critical_path(step.timing)
    chosen = {id(part.slice) for part in path}
    environment = Environment(loader=PackageLoader("sim", "."), undefined=StrictUndefined, autoescape=True)
    return environment.get_template("page.html.j2").render(
        title=title,
        facts=facts,
        step=step,
        width=WIDTH,
        label=LABEL,
        lane=LANE,
        row_height=(LANE + GAP) * len(UNITS) + 26,
        units=[(unit, i * (LANE + GAP)) for i, unit in enumerate(UNITS)],
        rows=timeline(step, chosen),
        split=split_table(result),
        stages=by_stage(path),
        path=[part.to_dict() for part in path],
        total=step.timing.end,
        roofs=rooflines(p, t, step.timing),
        plot=roof_plot(rooflines(p, t, step.timing)),
        context=context_plot(result),
        counters=result.counters(),
    )


def timeline(step: Step, chosen: set[int]) -> list[Row]:
    """Rows of ROW_CYCLES cycles; ``chosen``: ids of the slices on the critical path."""
    total = step.timing.end
    scale = (WIDTH - LABEL - RIGHT) / ROW_CYCLES
    rows = []
    for first in range(0, total, ROW_CYCLES):
        last = first + ROW_CYCLES
        boxes: list[Box] = []
        for s in step.timing.slices:
            boxes += _boxes(s, first, last, scale, id(s) in chosen)
        ticks = [(LABEL + (c - first) * scale, c) for c in range(first, min(last, total) + 1, 10)]
        rows.append(Row(first, min(last, total), boxes, ticks))
    return rows


def _boxes(s: Slice, first: int, last: int, scale: float, critical: bool) -> list[Box]:
    """A command's wait and work, as far as they are in this row."""
    at = name(s.step.label)
    y = UNITS.index(s.unit) * (LANE + GAP)
    found = []
    waits = f"{at} waits {s.stalled} cycles for {s.cause.step.label if s.cause else 'the restart'}"
    tip = (
        f"{at}\n{operands(s)}\ncycles {s.valid} to {s.take}, done in {s.done}\n"
        f"compute {s.split.compute}, dependency {s.split.dependency}, memory {s.split.memory}"
    )
    for start, end, kind, text, title in (
        (s.shown, s.valid, "wait", "", waits),
        (s.valid, s.take + 1, at.stage, at.operation, tip),
    ):
        start, end = max(start, first), min(end, last)
        if start >= end:
            continue
        width = (end - start) * scale
        fits = text if len(text) * LETTER < width - 4 else ""
        box = Box(LABEL + (start - first) * scale, y, width, kind, fits, title, critical and kind != "wait")
        found.append(box)
    return found


def split_table(result: Result) -> list[dict[str, Any]]:
    """Per unit: cycles by kind, their shares of the bar, utilisation."""
    found, used = cycles(result), utilisation(result)
    total = found["sim__cycles__total"]
    table = []
    for unit in UNITS:
        parts = {
            kind: found[f"sim__cycles__{kind}__unit:{unit}"]
            for kind in ("compute", "stall__dependency", "stall__memory", "idle")
        }
        table.append(
            {
                "unit": unit,
                "parts": [(kind.split("__")[-1], count, 100 * count / total) for kind, count in parts.items()],
                "utilisation": used[f"sim__utilization__share__unit:{unit}"],
            }
        )
    return table


def roof_plot(roofs: Sequence[Roof]) -> dict[str, Any]:
    """Points and lines of the roofline, both axes logarithmic."""
    width, height, margin = PLOT
    low_x = min(r.intensity for r in roofs) / 4
    high_x = max(r.peak / r.bandwidth for r in roofs) * 4
    low_y = min(r.macs / r.cycles for r in roofs) / 4
    high_y = max(r.peak for r in roofs) * 2

    def x(value: float) -> float:
        return margin + (width - 2 * margin) * math.log(value / low_x) / math.log(high_x / low_x)

    def y(value: float) -> float:
        return height - margin - (height - 2 * margin) * math.log(value / low_y) / math.log(high_y / low_y)

    lines = []
    for r in roofs:
        ridge = r.peak / r.bandwidth
        left = max(low_x, low_y / r.bandwidth)
        points = [(left, left * r.bandwidth), (ridge, r.peak), (high_x, r.peak)]
        same = [other.unit for other in roofs if other.peak == r.peak]  # their lines end in one place
        lines.append(
            {
                "unit": r.unit,
                "label": ", ".join(same) if r.unit == same[0] else "",
                "points": " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points),
                "end": (x(high_x), y(r.peak)),
                "at": (x(r.intensity), y(r.macs / r.cycles)),
                "roof": (x(r.intensity), y(r.roof)),
            }
        )
    decades_x = [10.0**i for i in range(math.ceil(math.log10(low_x)), math.floor(math.log10(high_x)) + 1)]
    decades_y = [10.0**i for i in range(math.ceil(math.log10(low_y)), math.floor(math.log10(high_y)) + 1)]
    return {
        "width": width, "height": height, "margin": margin, "lines": lines,
        "x": [(x(v), f"{v:g}") for v in decades_x], "y": [(y(v), f"{v:g}") for v in decades_y],
    }  # fmt: skip


def context_plot(result: Result) -> dict[str, Any]:
    """Cycles of each position, as a line."""
    width, height, margin = PLOT
    points = [(step.position + 1, step.timing.end) for step in result.steps]
    top = max(cycles for _, cycles in points) * 1.1
    last = max(context for context, _ in points)

    def at(context: float, cycles: float) -> tuple[float, float]:
        x = margin + (width - 2 * margin) * context / last
        return x, height - margin - (height - 2 * margin) * cycles / top

    grain = next(g for g in (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, top) if top / g <= 8)
    return {
        "width": width, "height": height, "margin": margin,
        "points": " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points)),
        "x": [(at(c, 0)[0], c) for c in range(0, last + 1, max(1, last // 8))],
        "y": [(at(0, c)[1], c) for c in range(0, int(top) + 1, int(grain))],
    }  # fmt: skip
