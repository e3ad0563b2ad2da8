"""Where the cycles went: per unit and in all, utilisation, the critical path of a token, a roofline.

Metric names are stage__category__name__modifier, the unit of the chip as ``unit:array``.  Cycles of a unit are
compute + dependency stall + memory stall + idle = all cycles:

- compute: the unit works at its stated peak (one word, one step, one group of key rows or positions, one pick).
- stall dependency: a command waits for another unit's result, or for a part of its own unit that an earlier one uses.
- stall memory: a command waits for a memory's port or word, or for the logits stream to be read.
- idle: the unit's program is at its end, or no position is running.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from golden.fixed.numbers import STATE
from hw.params import BLOCK, HEAD, Params
from hw.program import UNITS
from hw.timing import Timing
from sim.run import Result
from sim.stages import name, operands
from sim.timing import Position, Slice

PEAKS = {
    "array": "a word per cycle",
    "vector": "a step of all lanes per cycle",
    "kda": "a key row per cycle",
    "mla": "a group of positions per cycle",
    "router": "a pick per cycle",
}


def cycles(result: Result) -> dict[str, int]:
    """Cycles of a run, by unit and what they were spent on; then summed over units."""
    total = result.end - result.started
    found: dict[str, int] = {"sim__cycles__total": total}
    kinds = ("compute", "stall__dependency", "stall__memory", "idle")
    sums = dict.fromkeys(kinds, 0)
    for unit in UNITS:
        of = [step.timing.units[unit] for step in result.steps]
        compute = sum(t.split.compute for t in of)
        memory = sum(t.split.memory for t in of)
        dependency = sum(t.split.dependency + t.stalled for t in of)
        values = (compute, dependency, memory, total - compute - dependency - memory)
        for kind, value in zip(kinds, values, strict=True):
            found[f"sim__cycles__{kind}__unit:{unit}"] = value
            sums[kind] += value
    return found | {f"sim__cycles__{kind}": value for kind, value in sums.items()}


def utilisation(result: Result) -> dict[str, float]:
    """Share of each unit's stated peak (PEAKS) that was used."""
    found = cycles(result)
    total = found["sim__cycles__total"]
    return {
        f"sim__utilization__share__unit:{unit}": found[f"sim__cycles__compute__unit:{unit}"] / total for unit in UNITS
    }


@dataclass(frozen=True)
class Part:
    """One command of a critical path: it ended the wait for the next one, ``cycles`` after it could begin itself."""

    slice: Slice
    cycles: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        at = name(self.slice.step.label)
        return {
            "unit": self.slice.unit, "layer": at.layer, "stage": at.stage, "operation": at.operation,
            "operands": operands(self.slice), "start": self.slice.valid, "cycles": self.cycles,
        }  # fmt: skip


def critical_path(position: Position) -> list[Part]:
    """Commands that determine when a position ends, in order; their cycles sum to the position's."""
    parts: list[Part] = []
    until = position.end
    at: Slice | None = max(position.slices, key=lambda s: s.done)
    while at is not None:
        start = at.valid if at.cause is not None else 0
        parts.append(Part(at, until - start))
        until, at = start, at.cause
    return parts[::-1]


def by_stage(parts: Sequence[Part]) -> dict[str, int]:
    """Cycles of a critical path by layer and stage, in order of appearance."""
    found: dict[str, int] = {}
    for part in parts:
        at = name(part.slice.step.label)
        key = at.stage if at.layer is None else f"layer {at.layer} {at.stage}"
        found[key] = found.get(key, 0) + part.cycles
    return found


@dataclass(frozen=True)
class Roof:
    """One unit under its memory's roof, for one position: multiply-accumulates, bytes read and written, cycles at work.

    ``peak`` and ``bandwidth``: multiply-accumulates and bytes per cycle that the unit and its memory can do.
    """

    unit: str
    memory: str
    macs: int
    bytes: float
    cycles: int
    peak: float
    bandwidth: float

    @property
    def intensity(self) -> float:
        """Multiply-accumulates per byte."""
        return self.macs / self.bytes

    @property
    def roof(self) -> float:
        """Multiply-accumulates per cycle that peak and bandwidth allow at this intensity."""
        return min(self.peak, self.bandwidth * self.intensity)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **vars(self), "intensity": self.intensity, "roof": self.roof, "achieved": self.macs / self.cycles
        }  # fmt: skip


def rooflines(p: Params, t: Timing, position: Position) -> list[Roof]:
    """Array against its weights (padded rows are counted), KDA engine against its state, MLA engine against its cache.

    MACs: the array's products of a word; per state value decay, k and q side in a scan, decay and correction in a
    write; per cached value and head one in each pass (the shared key in the first only).
    """
    total = position.end
    kda, mla = (position.units[unit].split.compute for unit in ("kda", "mla"))
    array = sum(
        s.split.compute for s in position.slices if s.unit == "array" and s.step.command["func"].name != "EMBED"
    )
    word_macs, word_bytes = p.array_rows * BLOCK, p.weight_width / 8
    words_at_once = t.array.word_blocks * t.array.word_groups
    rows = HEAD * p.model.kda_num_heads
    row_bytes = rows * STATE.width / 8
    scans = sum(s.step.command["op"].name == "SCAN" for s in position.slices if s.unit == "kda") * t.kda.keys
    writes = sum(s.step.command["op"].name == "WRITE" for s in position.slices if s.unit == "kda") * t.kda.keys
    heads, entry = p.model.num_attention_heads, p.cache_width // 16
    groups = mla // t.mla.passes
    per_group = t.mla.positions * heads * (entry + p.model.kv_lora_rank)
    group_bytes = t.mla.positions * p.cache_width / 8
    roofs = [
        Roof(
            "array", "weights", array * words_at_once * word_macs, array * words_at_once * word_bytes, total,
            word_macs * words_at_once, word_bytes * words_at_once / t.array.word,
        )
    ]  # fmt: skip
    if kda:
        roofs.append(
            Roof(
                "kda", "state", (3 * scans + 2 * writes) * rows, (scans + 2 * writes) * row_bytes, total,
                3.0 * rows * t.kda.width, row_bytes * t.kda.width,
            )
        )  # fmt: skip
    if mla:
        roofs.append(
            Roof(
                "mla", "cache", groups * per_group, groups * t.mla.passes * group_bytes, total,
                t.mla.positions * heads * entry, group_bytes,
            )
        )  # fmt: skip
    return roofs


def metrics(p: Params, t: Timing, result: Result) -> dict[str, float]:
    """All figures of a run under their names."""
    found: dict[str, float] = {**cycles(result), **utilisation(result)}
    edges = result.edges
    if len(edges) > 1:
        found["sim__cycles__per_token__mean"] = (edges[-1] - edges[0]) / (len(edges) - 1)
    last = result.steps[-1].timing
    found["sim__cycles__per_position__last"] = last.end
    for roof in rooflines(p, t, last):
        found[f"sim__macs__per_position__unit:{roof.unit}"] = roof.macs
        found[f"sim__macs__per_cycle__unit:{roof.unit}"] = roof.macs / roof.cycles
        found[f"sim__bytes__per_position__unit:{roof.unit}"] = roof.bytes
        found[f"sim__macs__per_byte__unit:{roof.unit}"] = roof.intensity
    counters = result.counters()
    for key in ("tokens", "positions", "token_stalls"):
        found[f"sim__count__{key}"] = counters[key]
    return found
