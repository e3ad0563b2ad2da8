"""When the units take and complete commands: the one description of time, of RTL and cycle simulator alike.

All figures are clock cycles.  ``timing(p)`` derives them from a chip's parameters.  The functions below them say how
they combine, in terms of a command's fields (hw/layouts.py; values are compared by name, so that this file needs no
Amaranth).  What happens between units (``take``, ``done``, ``valid``) is in docs/chip.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hw.params import HEAD, Params


@dataclass(frozen=True)
class ArrayLatency:
    """By function: from the cycle that issues a group's last word to the one at whose end the result is written."""

    linear: int = 1
    embed: int = 1
    head: int = 2
    gate: int = 3
    conv: int = 3
    situ: int = 3
    decay: int = 4

    def of(self, func: Any) -> int:
        """Latency of a function (hw.layouts.Func)."""
        return int(getattr(self, func.name.lower()))


@dataclass(frozen=True)
class Hazard:
    """A group of ``func`` may not issue its last word ``distance`` cycles after that of a group of one of ``after``."""

    func: str
    after: tuple[str, ...]
    distance: int
    shared: str  # what both would use
    memory: bool = False  # it is a memory's port


HAZARDS = (
    Hazard("CONV", ("CONV", "SITU", "DECAY"), 1, "the lane's multipliers"),
    Hazard("CONV", ("CONV",), 3, "the history's port", memory=True),
    Hazard("SITU", ("DECAY",), 2, "the second function table"),
)


@dataclass(frozen=True)
class ArrayTiming:
    """The matmul array: one word (a row group times one MX block) per cycle from the first valid cycle on.

    ``take`` is in the cycle of the last word, ``done`` the latency of the function later.  Groups are written in order,
    one per cycle, so that a last word also waits until its group would be written after all earlier ones.  ``fetch``:
    EMBED reads its word before it makes one group per cycle.  What RTL has only at 1: ``word`` (cycles that the weight
    memory needs per word), ``word_blocks`` and ``word_groups`` (MX blocks and row groups in a word).
    """

    latency: ArrayLatency = ArrayLatency()
    hazards: tuple[Hazard, ...] = HAZARDS
    fetch: int = 1
    word: int = 1
    word_blocks: int = 1
    word_groups: int = 1


@dataclass(frozen=True)
class VectorTiming:
    """The vector unit: steps of a command; each step uses every lane once (``passes`` times: RTL has only 1).

    ``score_take``: cycle of a SCORE (counted from 1) in which the next command may already be shown.  The cycle after
    it writes the score: a command that would end in it, or start a softmax, waits.
    """

    snap: int = 1
    score: int = 3
    score_take: int = 2
    softmax: int = 2
    candidate: int = 1  # each, of a weighted sum
    norm: int = 3
    divide: int = 1
    weight: int = 1
    gate: int = 1
    out: int = 1  # of a command that has no other step, or a bare norm into slots
    constant: int = 1  # from the cycle that shows a command to the one that has its constant
    passes: int = 1


@dataclass(frozen=True)
class KdaTiming:
    """The KDA engine: passes over the state of a layer, ``width`` key rows at a time (take is with done)."""

    keys: int = HEAD  # rows of a state
    width: int = 1  # rows per step: RTL has only 1
    scan: int = 1  # cycles per step
    drain: int = 1  # SCAN's last row is added in the cycle after its read
    read: int = 1
    write: int = 2  # cycles per step: the memory has one port

    @property
    def steps(self) -> int:
        """Steps of a pass."""
        return -(-self.keys // self.width)


@dataclass(frozen=True)
class MlaTiming:
    """The MLA engine: two passes over groups of ``positions`` (take is with done)."""

    positions: int
    passes: int = 2
    pipeline: int = 2  # from a group's read to its score; pass 2's sum is one behind
    unread: int = 1  # more when the first group was not read ahead


@dataclass(frozen=True)
class RouterTiming:
    """The router: biases are read in the cycle that shows the command."""

    route: int = 1
    biases: int = 1


@dataclass(frozen=True)
class LoopTiming:
    """The token loop and the sequencer."""

    start: int = 2  # from a START's register write to the first restart
    show: int = 1  # from a restart to the first commands, from a take to the next command
    count: int = 1  # from done to the commands that wait for it; from the last done to the next restart
    head: int = 1  # from a head group's last word's logits to the head's best, and to its first streamed logit
    token: int = 1  # from the end of a position to its token's first valid beat


@dataclass(frozen=True)
class Timing:
    """One chip's."""

    array: ArrayTiming
    vector: VectorTiming
    kda: KdaTiming
    mla: MlaTiming
    router: RouterTiming = RouterTiming()
    loop: LoopTiming = LoopTiming()


def timing(p: Params) -> Timing:
    """The timing of a chip."""
    return Timing(ArrayTiming(), VectorTiming(), KdaTiming(), MlaTiming(positions=p.mla_positions))


def vector_cycles(command: Mapping[str, Any], t: VectorTiming = VectorTiming()) -> int:
    """Cycles from the first valid cycle (counted) to ``done`` of a command whose inputs and constant are ready."""
    op, norm = command["op"].name, command["norm"].name
    if op == "SNAP":
        return t.snap * t.passes
    if op == "SCORE":
        return t.score + t.score_take * (t.passes - 1)
    cycles = 0
    if command["src"].name == "MIX":
        cycles += t.candidate * command["n"] + (t.softmax if command["combine"].name == "RESIDUAL" else 0)
    normed = norm in ("RMS", "L2")
    more = command["weight"] or command["gate"]
    cycles += t.norm * normed + t.divide * (norm == "DIVIDE")
    cycles += t.weight * command["weight"] + t.gate * command["gate"]
    bare = cycles == 0 or (normed and not more and command["out"].name == "SLOTS")
    return (cycles + t.out * bare) * t.passes


def vector_take(command: Mapping[str, Any], t: VectorTiming = VectorTiming()) -> int:
    """Cycle of ``take``: the next command may be valid in the cycle after."""
    return t.score_take * t.passes if command["op"].name == "SCORE" else vector_cycles(command, t)


def kda_cycles(op: Any, t: KdaTiming = KdaTiming()) -> int:
    """Cycles from the first valid one to ``done``, both counted."""
    return {"SCAN": t.steps * t.scan + t.drain, "READ": t.read, "WRITE": t.steps * t.write}[op.name]


def mla_groups(position: int, t: MlaTiming) -> int:
    """Groups of positions that a pass reads."""
    return position // t.positions + 1


def mla_cycles(position: int, t: MlaTiming, ahead: bool = True) -> int:
    """Cycles from the first valid one to ``done``, both counted; ``ahead``: the first group was read ahead."""
    return t.passes * mla_groups(position, t) + t.pipeline + (0 if ahead else t.unread)
