"""Timing of one position: when each command of the program is shown, valid, taken and complete, to the clock cycle.

The units' latencies and hazards are those of hw/timing.py and the program is the object that the RTL's issuers hold;
this file adds only how a unit goes through its commands.  Nothing here depends on data: the same position takes the
same cycles whatever the token.  Cycle 0 is the position's restart (docs/chip.md).

A position starts with every unit idle and nothing read ahead.  The chip keeps words read ahead over a restart, but it
makes no difference: all first commands but the embedding wait for it, longer than a read takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hw.params import Params
from hw.program import UNITS, Program, Step
from hw.timing import Hazard, Timing, kda_cycles, mla_cycles, mla_groups, vector_cycles, vector_take
from sim.streams import Willing, always


@dataclass(slots=True)
class Split:
    """Cycles from a command's first valid one to ``take``, by what the unit did."""

    compute: int = 0
    dependency: int = 0  # waited for an earlier result or for a part of the unit that an earlier command uses
    memory: int = 0  # waited for a memory's port or word, or for a stream to be read


@dataclass(slots=True)
class Total:
    """Cycles of one unit in a position: executing commands (``split`` says how), and waiting for other units."""

    busy: int = 0
    stalled: int = 0
    split: Split = field(default_factory=Split)

    def add(self, s: Slice) -> None:
        """One more command."""
        self.busy += s.busy
        self.stalled += s.stalled
        self.split.compute += s.split.compute
        self.split.dependency += s.split.dependency
        self.split.memory += s.split.memory


@dataclass(slots=True)
class Slice:
    """One command.  ``shown`` to ``valid`` - 1 it waits for others' results, ``valid`` to ``take`` it is executed."""

    unit: str
    index: int
    step: Step
    shown: int
    valid: int
    take: int
    done: int
    split: Split
    cause: Slice | None  # the command whose end made this one valid; None: the restart

    @property
    def busy(self) -> int:
        """Cycles in which the command was valid."""
        return self.take - self.valid + 1

    @property
    def stalled(self) -> int:
        """Cycles in which it waited for other units."""
        return self.valid - self.shown


@dataclass
class Position:
    """All commands of a position in an order in which they can be executed.

    ``end``: cycle in which it is over (the next restart, unless its token has to wait).  ``logits``: cycle of the last
    logit's beat, when streamed.
    """

    slices: list[Slice]
    end: int
    logits: int | None = None
    units: dict[str, Total] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.units = {unit: Total() for unit in UNITS}
        for s in self.slices:
            self.units[s.unit].add(s)


class ArrayUnit:
    """The array, word by word (hw/units/array.py)."""

    def __init__(self, p: Params, t: Timing, streamed: Willing | None) -> None:
        self.p, self.t = p, t
        self.streamed = streamed
        self.written = -1  # cycle at whose end the latest group's result is written
        self.ended: deque[tuple[int, str]] = deque(maxlen=4)  # last words of the latest groups: cycle, function
        self.head_free = 0  # first cycle in which a streamed group of logits may begin
        self.complete = 0  # the head has seen all logits, and streamed them
        self.logits: int | None = None

    def run(self, command: Mapping[str, Any], shown: int, valid: int) -> tuple[int, int, Split]:
        """(take, done, split) of a command that is valid from ``valid`` on."""
        array = self.t.array
        func, split = command["func"].name, Split()
        latency = array.latency.of(command["func"])
        groups, words, cycle = command["groups"], -(-command["blocks"] // array.word_blocks), valid
        if func == "EMBED":
            groups, words = self.p.groups, 1
            split.memory += array.fetch
            cycle += array.fetch
        for group in range(-(-groups // array.word_groups)):
            if func == "HEAD" and self.streamed and self.head_free > cycle:
                split.memory += self.head_free - cycle
                cycle = self.head_free
            between = words * (array.word - 1) - (0 if group else array.word - 1)
            split.compute += words
            split.memory += between
            last = self._last_word(func, latency, cycle + between + words - 1, split)
            if func == "HEAD":
                self._head(last, latency)
            cycle = last + 1
        return cycle - 1, cycle - 1 + latency, split

    def _last_word(self, func: str, latency: int, cycle: int, split: Split) -> int:
        """Cycle of a group's last word, which is ready to go in ``cycle``."""
        hazards = [h for h in self.t.array.hazards if h.func == func]
        while True:
            blocking = [h for h in hazards if self._meets(h, cycle)]
            if not blocking and cycle + latency > self.written:
                break
            if blocking and all(h.memory for h in blocking):
                split.memory += 1
            else:
                split.dependency += 1
            cycle += 1
        self.written = cycle + latency
        self.ended.append((cycle, func))
        return cycle

    def _meets(self, h: Hazard, cycle: int) -> bool:
        return any(at == cycle - h.distance and func in h.after for at, func in self.ended)

    def _head(self, last: int, latency: int) -> None:
        """A group's logits go to the head in ``last + latency``."""
        beat = last + latency + self.t.loop.head
        self.complete = beat
        if self.streamed is None:
            return
        for _ in range(self.p.array_rows * self.t.array.word_groups):
            while not self.streamed(beat):
                beat += 1
            beat += 1
        self.logits = beat - 1
        self.head_free = self.complete = beat


class VectorUnit:
    """The vector unit (hw/units/vector.py)."""

    def __init__(self, t: Timing) -> None:
        self.t = t.vector
        self.score = -1  # cycle in which the latest score is written
        self.constant: int | None = None  # word of the constant memory that was read last

    def run(self, command: Mapping[str, Any], shown: int, valid: int) -> tuple[int, int, Split]:
        """(take, done, split)."""
        cycles, take = vector_cycles(command, self.t), vector_take(command, self.t)
        split = Split(compute=take)
        start = valid
        softmax = (
            command["src"].name == "MIX" and command["combine"].name == "RESIDUAL" and command["op"].name == "FLOW"
        )
        if start == self.score and (cycles == 1 or softmax):
            split.dependency += 1
            start += 1
        is_score = command["op"].name == "SCORE"
        if is_score or command["weight"]:
            after = self.t.passes * (self.t.weight + self.t.gate * command["gate"])
            first_use = self.t.passes if is_score else cycles - after
            held = shown + (self.t.constant if self.constant != command["constant"] else 0)
            self.constant = command["constant"]
            missing = max(0, held - (start + first_use))
            split.memory += missing
            start += missing
        taken, done = start + take - 1, start + cycles - 1
        if is_score:
            self.score = done
        return taken, done, split


class KdaEngine:
    """The KDA engine (hw/units/kda.py)."""

    def __init__(self, t: Timing) -> None:
        self.t = t.kda

    def run(self, command: Mapping[str, Any], shown: int, valid: int) -> tuple[int, int, Split]:
        """(take, done, split)."""
        op = command["op"]
        cycles = kda_cycles(op, self.t)
        compute = self.t.read if op.name == "READ" else self.t.steps
        end = valid + cycles - 1
        return end, end, Split(compute=compute, memory=cycles - compute)


class MlaEngine:
    """The MLA engine (hw/units/mla.py)."""

    def __init__(self, t: Timing, position: int) -> None:
        self.t, self.position = t.mla, position
        self.stored = -1  # cycle of the latest cache write

    def run(self, command: Mapping[str, Any], shown: int, valid: int) -> tuple[int, int, Split]:
        """(take, done, split).  The first group is read in a cycle before ``valid`` that shows the command."""
        ahead = valid > max(shown, self.stored + 1)
        end = valid + mla_cycles(self.position, self.t, ahead) - 1
        compute = self.t.passes * mla_groups(self.position, self.t)
        return end, end, Split(compute, self.t.pipeline, 0 if ahead else self.t.unread)


class Router:
    """The router (hw/units/router.py)."""

    def __init__(self, t: Timing) -> None:
        self.t = t.router
        self.layer: int | None = None  # whose biases were read last

    def run(self, command: Mapping[str, Any], shown: int, valid: int) -> tuple[int, int, Split]:
        """(take, done, split)."""
        held = shown + (self.t.biases if self.layer != command["layer"] else 0)
        self.layer = command["layer"]
        missing = max(0, held - valid)
        end = valid + missing + self.t.route - 1
        return end, end, Split(compute=self.t.route, memory=missing)


def execution_order(program: Program, skip_head: bool) -> list[tuple[str, int, Step]]:
    """(unit, index, step) of a position's commands, each after those it waits for."""
    todo = {unit: [s for s in steps if not (skip_head and s.head)] for unit, steps in program.units.items()}
    done = dict.fromkeys(todo, 0)
    order: list[tuple[str, int, Step]] = []
    moved = True
    while moved:
        moved = False
        for unit, steps in todo.items():
            while done[unit] < len(steps) and all(done[u] >= n for u, n in steps[done[unit]].need.items()):
                order.append((unit, done[unit], steps[done[unit]]))
                done[unit] += 1
                moved = True
    stuck = [unit for unit, steps in todo.items() if done[unit] < len(steps)]
    if stuck:
        raise ValueError(f"the program never ends: {stuck[0]} waits at {todo[stuck[0]][done[stuck[0]]].label}")
    return order


class Timer:
    """Timing of the positions of one chip: ``position`` gives each.

    ``overlap`` False is a what-if: a command waits until all earlier ones of any unit are complete.
    """

    def __init__(self, p: Params, program: Program, t: Timing, overlap: bool = True) -> None:
        self.p, self.program, self.t, self.overlap = p, program, t, overlap
        self._order = {skip: execution_order(program, skip) for skip in (False, True)}
        self._known: dict[tuple[int, bool, bool], Position] = {}

    def position(self, position: int, *, skip_head: bool = False, streamed: Willing | None = None) -> Position:
        """Timing of ``position``; ``streamed``: its logits are, to a stream that is ready in the cycles it says."""
        if streamed not in (None, always):
            return self._position(position, skip_head, streamed)
        key = mla_groups(position, self.t.mla), skip_head, streamed is always
        if key not in self._known:
            self._known[key] = self._position(position, skip_head, streamed)
        return self._known[key]

    def _position(self, position: int, skip_head: bool, streamed: Willing | None) -> Position:
        loop = self.t.loop
        array, mla = ArrayUnit(self.p, self.t, streamed), MlaEngine(self.t, position)
        units: dict[str, Any] = {
            "array": array, "vector": VectorUnit(self.t), "kda": KdaEngine(self.t), "mla": mla, "router": Router(self.t)
        }  # fmt: skip
        made: dict[str, list[Slice]] = {unit: [] for unit in UNITS}
        slices: list[Slice] = []
        for unit, index, step in self._order[skip_head]:
            before = made[unit][-1] if made[unit] else None
            shown = valid = (before.take if before else 0) + loop.show
            cause = before
            waits = [made[u][n - 1] for u, n in step.need.items() if n]
            if not self.overlap and slices:
                waits.append(max(slices, key=lambda s: s.done))
            for other in waits:
                if other.done + loop.count > valid:
                    valid, cause = other.done + loop.count, other
            take, done, split = units[unit].run(step.command, shown, valid)
            one = Slice(unit, index, step, shown, valid, take, done, split, cause)
            made[unit].append(one)
            slices.append(one)
            if unit == "vector" and step.command["out"].name == "CACHE":
                mla.stored = done
        end = max(s.done for s in slices) + loop.count
        return Position(slices, max(end, array.complete if not skip_head else 0), array.logits)
