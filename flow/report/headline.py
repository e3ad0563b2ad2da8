"""What a run came to, line by line, beside the announced chip, and what on each line can be compared."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flow.report.derived import CELLS, DIE, MACROS, POWER
from flow.report.run import RTL, WHOLE, Run

ANNOUNCED: dict[str, Any] = json.loads((Path(__file__).parent / "announced.json").read_text())
PRICED = "nanok3__area__macros__1mbit_per_mm2"  # um2 of the macros' bits at the announced chip's price

# What timing and area of a stage rest on.
BASIS = {
    "synth": "after synthesis",
    "floorplan": "after floorplan",
    "placement": "placed, wires estimated",
    "cts": "placed, real clock tree, wires estimated",
    "repair": "placed, real clock tree, wires estimated",
    "globalroute": "globally routed: real clock tree, wires as that route has them",
    "detailedroute": "routed",
    "fill": "routed",
    "finish": "signed off: real clock tree, extracted wires",
    "netlistsim": "decode of the routed netlist",
    WHOLE: "after layout, blocks opened",
}


@dataclass(frozen=True)
class Line:
    """One figure. ``value`` None: ``note`` says why. ``comparable``: yes, in part or no, and why; empty for a unit."""

    name: str
    unit: str
    digits: int
    value: float | None
    note: str
    announced: float | None = None
    comparable: str = ""

    def shown(self, value: float | None) -> str:
        """The figure with its digits, or as many more as it takes to see three of it."""
        if value is None:
            return ""
        small = 2 - math.floor(math.log10(abs(value))) if value else 0
        return f"{value:,.{max(self.digits, min(small, 7)) if self.digits else 0}f}"

    @property
    def ours(self) -> str:
        return self.shown(self.value)

    @property
    def theirs(self) -> str:
        return self.shown(self.announced)

    def plain(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def headline(run: Run) -> list[Line]:
    """The lines of a run, in the order in which they are shown; only a chip stands beside the announced one."""
    lines = [*_area(run), *_timing(run)]
    if run.unit is None:
        return [*lines, *_speed(run), *_power(run)]
    return [Line(x.name, x.unit, x.digits, x.value, x.note) for x in [*lines, *_power(run)[:1]]]


def _scaled(run: Run, name: str, scale: float, without: str) -> tuple[float | None, str]:
    """A metric of the last stage that has it and what it rests on, or None and ``without``."""
    found = run.last(name)
    return (None, without) if found is None else (found.value * scale, BASIS.get(found.stage, found.stage))


def _area(run: Run) -> list[Line]:
    die, die_note = _scaled(run, DIE, 1e-6, "no layout")
    cells, cells_note = _opened(run, CELLS)
    macros, macros_note = _opened(run, MACROS)
    priced = _times(run.number(PRICED), 1e-6)
    theirs = ANNOUNCED["cells_mm2"] + ANNOUNCED["macros_priced_mm2"]
    return [
        Line("die", "mm2", 3, die, die_note, None, "no: the announced chip stops at synthesis"),
        Line("cells", "mm2", 3, cells, cells_note, ANNOUNCED["cells_mm2"], _like_synthesis(cells_note)),
        Line("SRAM macros, our model", "mm2", 3, macros, macros_note, None, "no: it prices bits, as in the next line"),
        Line(
            "macros at 1 Mbit/mm2",
            "mm2",
            3,
            priced,
            "the announced chip's price" if priced is not None else "not measured",
            ANNOUNCED["macros_priced_mm2"],
            "yes: the same price for every bit",
        ),
        Line("cells + macros, our model", "mm2", 3, _sum(cells, macros), macros_note, None, "no: as above"),
        Line(
            "cells + macros at 1 Mbit/mm2",
            "mm2",
            3,
            _sum(cells, priced),
            cells_note,
            theirs,
            _like_synthesis(cells_note),
        ),
    ]


def _opened(run: Run, name: str) -> tuple[float | None, str]:
    """Area of cells or macros in mm2; of a design with blocks only where they were opened, or synthesis saw them."""
    if run.data.get("blocks") and run.number(f"{WHOLE}__{name}") is None:
        value = run.number(f"synth__{name}")
        return _times(value, 1e-6), BASIS["synth"] if value is not None else "not measured"
    return _scaled(run, name, 1e-6, "not measured")


def _like_synthesis(note: str) -> str:
    if note == BASIS["synth"]:
        return "yes: both after synthesis"
    return "in part: its cells are after synthesis, ours have clock tree and repair"


def _timing(run: Run) -> list[Line]:
    setup = run.last("timing__setup__ws")
    hold = run.last("timing__hold__ws")
    source = run.text("synth__timing__setup__ws__source")
    note = "not measured" if setup is None else BASIS.get(setup.stage, setup.stage)
    if setup is not None and setup.stage == "synth" and source:
        note = f"{note}; {source}"
    theirs = 1e3 / ANNOUNCED["clock_mhz"] - ANNOUNCED["critical_path_ns"]
    return [
        Line(
            f"worst setup slack at {run.clock_ns:g} ns",
            "ns",
            2,
            setup.value if setup else None,
            note,
            theirs if run.clock_ns * ANNOUNCED["clock_mhz"] == 1e3 else None,
            "in part: its figure is ABC's, without wires, clock tree and the paths through its lookup ROMs",
        ),
        Line(
            "worst hold slack",
            "ns",
            3,
            hold.value if hold else None,
            BASIS.get(hold.stage, hold.stage) if hold else "no layout",
            None,
            "no: not published",
        ),
    ]


def _speed(run: Run) -> list[Line]:
    cycles, note = _cycles(run)
    per_second = _map(cycles or None, lambda c: 1e9 / run.clock_ns / c)
    setup = run.last("timing__setup__ws")
    late = "; THE CLOCK IS NOT MET" if setup is not None and setup.value < 0 else ""
    theirs = ANNOUNCED["cycles_per_token"]
    model = f"in part: each decodes its own model; the announced one has {ANNOUNCED['model']}"
    return [
        Line("cycles per token", "cycles", 0, cycles, note, theirs, model),
        Line("tokens per second", "tokens/s", 0, per_second, note + late, ANNOUNCED["clock_mhz"] * 1e6 / theirs, model),
    ]


def _cycles(run: Run) -> tuple[float | None, str]:
    """Cycles per token of the last stage that decoded; a simulation of the RTL says which."""
    found = run.last("decode__cycles_per_token")
    source = run.text(f"{RTL}__decode__source") or "no decode"
    if found is None:
        return None, source
    return found.value, source if found.stage == RTL else BASIS.get(found.stage, found.stage)


def _power(run: Run) -> list[Line]:
    opened = f"{WHOLE if run.data.get('blocks') else 'finish'}__{POWER}"
    total = run.number(opened)
    note = _activity(run)
    if total is None:
        note = "no power: it needs the routed netlist, its blocks' too, and their activity"
    cycles, _ = _cycles(run)
    energy = None if total is None or cycles is None else total * cycles * run.clock_ns
    without = note if total is None else "cycles per token are not known"
    return [
        Line("power", "mW", 2, _times(total, 1e3), note, None, "no: not published"),
        Line("energy per token", "nJ", 1, energy, note if energy is not None else without, None, "no: not published"),
    ]


def _activity(run: Run) -> str:
    """Where the activity of a power figure is from, and of how many pins."""
    tokens, share = run.number("netlistsim__tokens"), run.number("finish__power__activity__annotated__share")
    source = "activity not stated" if tokens is None else f"activity of a decode of {tokens:.0f} tokens on the netlist"
    return source if share is None else f"{source}, {100 * share:.1f} % of pins annotated"


def _times(value: float | None, scale: float) -> float | None:
    return _map(value, lambda v: v * scale)


def _map(value: float | None, change: Callable[[float], float]) -> float | None:
    return None if value is None else change(value)


def _sum(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left + right
