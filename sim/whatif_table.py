"""The table of what-ifs of a preset (docs/what-if.md): cycles per token by context, and what would buy most."""

from __future__ import annotations

from dataclasses import dataclass

from golden.config import ConfigError
from hw.params import Params
from hw.timing import timing
from sim.whatif import OTHERS, Chip, apply, paths

CONTEXTS = (1, 64, 128, 256)
STATED = 128  # the context at which gains are compared
BEST = 3

SHORTER = {"array.latency.gate": 2, "array.latency.conv": 2, "array.latency.situ": 2, "array.latency.decay": 3}

# (change, knobs); a change that is the preset itself or that no chip allows is left out
CHANGES: tuple[tuple[str, dict[str, int]], ...] = (
    ("8 rows", {"array.rows": 8}),
    ("16 rows", {"array.rows": 16}),
    ("32 rows", {"array.rows": 32}),
    ("64 rows", {"array.rows": 64}),
    ("64 columns (two MX blocks per word)", {"array.columns": 64}),
    ("half the weight banks (a word every 2 cycles)", {"array.word": 2}),
    ("32 vector lanes", {"vector.lanes": 32}),
    ("norms in 2 steps", {"vector.norm": 2}),
    ("softmax in 1 step", {"vector.softmax": 1}),
    ("2 KDA rows per cycle", {"kda.rows": 2}),
    ("4 KDA rows per cycle", {"kda.rows": 4}),
    ("KDA state with 2 ports", {"kda.ports": 2}),
    ("1 MLA position per cycle", {"mla.positions": 1}),
    ("2 MLA positions per cycle", {"mla.positions": 2}),
    ("4 MLA positions per cycle", {"mla.positions": 4}),
    ("8 MLA positions per cycle", {"mla.positions": 8}),
    ("16 MLA positions per cycle", {"mla.positions": 16}),
    ("lane functions one cycle shorter", SHORTER),
    ("waiting commands start with done", {"loop.count": 0}),
    ("no overlap of units", {"overlap": 0}),
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One change: cycles of the position that attends to each context."""

    change: str
    knobs: dict[str, int]
    chip: Chip
    cycles: dict[int, int]


def line(p: Params, change: str, knobs: dict[str, int]) -> Line:
    """Simulate one change; raises ConfigError when it is impossible."""
    chip = apply(p, knobs)
    timer = chip.timer()
    contexts = [c for c in CONTEXTS if c <= p.model.max_positions]
    return Line(change, knobs, chip, {c: timer.position(c - 1).end for c in contexts})


def lines(p: Params) -> list[Line]:
    """The preset, then every change that makes another chip of it."""
    found = [line(p, "as it is", {})]
    for change, knobs in CHANGES:
        try:
            one = line(p, change, knobs)
        except ConfigError:
            continue
        if one.chip.t != found[0].chip.t or one.chip.p != p or not one.chip.overlap:
            found.append(one)
    return found


def table(p: Params) -> str:
    """Markdown."""
    found = lines(p)
    contexts = list(found[0].cycles)
    stated = max(c for c in contexts if c <= STATED)
    base = found[0].cycles[stated]
    rows = [
        f"# What if: {p.model.name}",
        "",
        "Cycles per token, free-running, by context (the positions that the token's position attends to). Written by "
        f"`nanok3 sim --what-if docs/what-if.md --config {p.model.name}`.",
        "*RTL*: such a chip can be generated; `make crosscheck` holds the simulator to the cycle on such chips.",
        "*Projection*: today's program with other times, so what the change could buy, not a design. A line's "
        f"column {stated}: `nanok3 sim \"The \" --tokens 254 --timing-only --set KNOB=VALUE`.",
        "",
        "| change | knobs | chip | " + " | ".join(map(str, contexts)) + f" | saved at {stated} |",
        "|---|---|---|" + "---:|" * (len(contexts) + 1),
    ]  # fmt: skip
    for one in found:
        knobs = ", ".join(f"`{k}={v}`" for k, v in one.knobs.items())
        counts = " | ".join(f"{one.cycles[c]:,}" for c in contexts)
        saved = base - one.cycles[stated]
        rows.append(f"| {one.change} | {knobs} | {_kind(one)} | {counts} | {saved:+,} ({100 * saved / base:+.1f} %) |")
    best = best_changes(found, stated)
    rows += ["", f"The three changes that buy most at context {stated}:", ""]
    for number, one in enumerate(best, 1):
        saved, kind = base - one.cycles[stated], _kind(one)
        rows.append(f"{number}. {one.change}: {saved:,} of {base:,} cycles ({100 * saved / base:.1f} %, {kind}).")
    rows += ["", together(p, best, stated, base), "", *knobs_text(p), ""]
    return "\n".join(rows)


def knobs_text(p: Params) -> list[str]:
    """Every knob of ``--set``."""
    times = ", ".join(f"`{path}` {value}" for path, value in paths(timing(p)).items() if path not in OTHERS)
    return [
        "## Knobs",
        "",
        *(f"- `{name}`: {what}" for name, what in OTHERS.items()),
        "- `model.SHAPE`: a shape of the model, with `--timing-only`",
        f"- the numbers of `hw/timing.py`, in cycles, here with today's values: {times}",
    ]


def _kind(one: Line) -> str:
    return "projection" if one.chip.projection else "RTL"


def best_changes(found: list[Line], stated: int) -> list[Line]:
    """Those that save most, of several values of the same knobs the best one."""
    best: list[Line] = []
    for one in sorted(found[1:], key=lambda one: one.cycles[stated]):
        if one.cycles[stated] < found[0].cycles[stated] and not any(one.knobs.keys() & b.knobs.keys() for b in best):
            best.append(one)
    return best[:BEST]


def together(p: Params, best: list[Line], stated: int, base: int) -> str:
    """What the best changes give at once."""
    knobs = {name: value for one in best for name, value in one.knobs.items()}
    cycles = line(p, "together", knobs).cycles[stated]
    names = ", ".join(f"`{k}={v}`" for k, v in knobs.items())
    return f"Together ({names}): {cycles:,} cycles, {100 * (base - cycles) / base:.1f} % less."
