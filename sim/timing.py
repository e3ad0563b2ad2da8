"""Timing of one position: when each command of the program is shown, valid, taken and complete, to the clock cycle.

The units' latencies and hazards are those of hw/timing.py and the program is the object that the RTL's issuers hold;
this file adds only how a unit goes through its commands.  Nothing here depends on data: the same position takes the
same cycles whatever the token.  Cycle 0 is the position's restart (docs/chip.md).

A position starts with every unit idle and nothing read ahead.  The chip keeps words read ahead over a restart, but it
makes no difference: all first commands but the embedding wait for it, longer than a read takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hw.params import Params
from hw.program import UNITS, Program, Step
from hw.timing import Timing, kda_cycles, mla_cycles, mla_groups, vector_cycles, vector_take
from sim.streams import Willing, always, taken


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


Times = tuple[int, int, int, int, int]  # take, done, and the Split of the cycles from valid to take
Row = tuple[int, int, int, int, int, int, int, int]  # shown, valid, Times, number of the cause (-1: the restart)
TAKE, DONE = 2, 3  # of a row


@dataclass
class Position:
    """All commands of a position in an order in which they can be executed, and the cycles of each.

    ``end``: cycle in which it is over (the next restart, unless its token has to wait).  ``logits``: cycle of the last
    logit's beat, when streamed.
    """

    order: Sequence[Prepared]
    rows: list[Row]
    end: int
    logits: int | None = None

    @cached_property
    def slices(self) -> list[Slice]:
        """The commands."""
        made: list[Slice] = []
        for one, (shown, valid, take, done, compute, dependency, memory, cause) in zip(
            self.order, self.rows, strict=True
        ):
            split = Split(compute, dependency, memory)
            before = made[cause] if cause >= 0 else None
            made.append(Slice(one.unit, one.index, one.step, shown, valid, take, done, split, before))
        return made

    @cached_property
    def units(self) -> dict[str, Total]:
        """Cycles of each unit."""
        totals = {unit: Total() for unit in UNITS}
        for one, (shown, valid, take, _, compute, dependency, memory, _) in zip(self.order, self.rows, strict=True):
            total = totals[one.unit]
            total.busy += take - valid + 1
            total.stalled += valid - shown
            total.split.compute += compute
            total.split.dependency += dependency
            total.split.memory += memory
        return totals


# Each unit below prepares a command once (``work``), and runs it in every position: ``run`` of a command that is shown
# and valid from these cycles on.


@dataclass(frozen=True, slots=True)
class ArrayWork:
    """A command of the array: groups of ``words`` words.

    ``meets``: (distance, function before): it is a memory's port that both would use.  ``alone``: no hazard is about
    this function.
    """

    func: str
    latency: int
    groups: int
    words: int
    fetch: int
    meets: dict[tuple[int, str], bool]
    alone: bool


class ArrayUnit:
    """The array, group by group (hw/units/array.py)."""

    def __init__(self, p: Params, t: Timing, streamed: Willing | None) -> None:
        self.t, self.streamed = t, streamed
        self.logits_at_once = p.array_rows * t.array.word_groups
        self.dependency = self.memory = 0  # cycles that the command at work has waited
        self.next_word = 0  # first cycle in which the weight memory has another word
        self.written = -1  # cycle at whose end the latest group's result is written
        self.ended: deque[tuple[int, str]] = deque(maxlen=4)  # last words of the latest groups: cycle, function
        self.head_free = 0  # first cycle in which a streamed group of logits may begin
        self.complete = 0  # the head has seen all logits, and streamed them
        self.logits: int | None = None

    @staticmethod
    def work(p: Params, t: Timing, command: Mapping[str, Any]) -> ArrayWork:
        """Prepare a command."""
        array, func = t.array, command["func"].name
        embed = func == "EMBED"
        groups, blocks = (p.groups, 1) if embed else (command["groups"], command["blocks"])
        mine = [h for h in array.hazards if h.func == func]
        return ArrayWork(
            func, array.latency.of(command["func"]), -(-groups // array.word_groups), -(-blocks // array.word_blocks),
            array.fetch if embed else 0, {(h.distance, f): h.memory for h in mine for f in h.after},
            not mine and not any(func in h.after for h in array.hazards),
        )  # fmt: skip

    def run(self, w: ArrayWork, shown: int, valid: int) -> Times:
        """Times of a command."""
        rate = self.t.array.word
        first = max(valid + w.fetch, self.next_word)
        self.dependency, self.memory = 0, first - valid + (w.groups * w.words - 1) * (rate - 1)
        ready = first + (w.words - 1) * rate  # of a group's last word
        if w.func == "HEAD" and self.streamed is not None:
            last = self._stream(w, ready)
        elif w.alone:  # after the first one, no group can meet another
            last = max(ready, self.written - w.latency + 1)
            self.dependency += last - ready
            last += (w.groups - 1) * w.words * rate
        else:
            for _ in range(w.groups):
                last = self._last_word(w, ready)
                ready = last + w.words * rate
        self.next_word = last + rate
        self.written = last + w.latency
        if w.func == "HEAD":
            self.complete = max(self.head_free, self.written + self.t.loop.head)
        return last, last + w.latency, w.groups * w.words, self.dependency, self.memory

    def _last_word(self, w: ArrayWork, cycle: int) -> int:
        """Cycle of a group's last word, which is ready to go in ``cycle``."""
        while True:
            ports = [w.meets[key] for at, func in self.ended if (key := (cycle - at, func)) in w.meets]
            if not ports and cycle + w.latency > self.written:
                break
            if ports and all(ports):
                self.memory += 1
            else:
                self.dependency += 1
            cycle += 1
        self.written = cycle + w.latency
        self.ended.append((cycle, w.func))
        return cycle

    def _stream(self, w: ArrayWork, ready: int) -> int:
        """Last word of logits that are streamed: a group begins when all of the one before have left."""
        assert self.streamed is not None
        rest = (w.words - 1) * self.t.array.word  # cycles from a group's first word to its last
        first = ready - rest
        for _ in range(w.groups):
            begin = max(first, self.head_free)
            self.memory += begin - first
            last = self._last_word(w, begin + rest)
            beat = last + w.latency + self.t.loop.head
            for _ in range(self.logits_at_once):
                beat = taken(beat, self.streamed) + 1
            self.head_free, self.logits = beat, beat - 1
            first = last + self.t.array.word
        return first - self.t.array.word


@dataclass(frozen=True, slots=True)
class VectorWork:
    """A command of the vector unit.

    ``waits``: it may not begin while a score is written.  ``constant``: word that it uses ``first_use`` cycles after it
    begins.
    """

    cycles: int
    take: int
    waits: bool
    is_score: bool
    constant: int | None
    first_use: int
    stores: bool  # writes the MLA engine's cache


class VectorUnit:
    """The vector unit (hw/units/vector.py)."""

    def __init__(self, t: Timing, mla: MlaEngine) -> None:
        self.t, self.mla = t.vector, mla
        self.score = -1  # cycle in which the latest score is written
        self.constant: int | None = None  # word of the constant memory that was read last

    @staticmethod
    def work(p: Params, t: Timing, command: Mapping[str, Any]) -> VectorWork:
        """Prepare a command."""
        vector = t.vector
        cycles, take = vector_cycles(command, vector), vector_take(command, vector)
        is_score, is_flow = command["op"].name == "SCORE", command["op"].name == "FLOW"
        softmax = is_flow and command["src"].name == "MIX" and command["combine"].name == "RESIDUAL"
        after = vector.passes * (vector.weight + vector.gate * command["gate"])
        return VectorWork(
            cycles, take, cycles == 1 or softmax, is_score,
            command["constant"] if is_score or command["weight"] else None,
            vector.passes if is_score else cycles - after, is_flow and command["out"].name == "CACHE",
        )  # fmt: skip

    def run(self, w: VectorWork, shown: int, valid: int) -> Times:
        """Times of a command."""
        dependency = int(w.waits and valid == self.score)
        memory = 0
        if w.constant is not None:
            held = shown + (self.t.constant if self.constant != w.constant else 0)
            self.constant = w.constant
            memory = max(0, held - (valid + dependency + w.first_use))
        start = valid + dependency + memory
        done = start + w.cycles - 1
        if w.is_score:
            self.score = done
        if w.stores:
            self.mla.stored = done
        return start + w.take - 1, done, w.take, dependency, memory


class KdaEngine:
    """The KDA engine (hw/units/kda.py)."""

    @staticmethod
    def work(p: Params, t: Timing, command: Mapping[str, Any]) -> tuple[int, int, int]:
        """Prepare a command: (cycles, those of them at its peak, those in which its last row is still added)."""
        op = command["op"]
        compute = t.kda.read if op.name == "READ" else t.kda.steps
        return kda_cycles(op, t.kda), compute, t.kda.drain if op.name == "SCAN" else 0

    def run(self, w: tuple[int, int, int], shown: int, valid: int) -> Times:
        """Times of a command."""
        cycles, compute, drain = w
        end = valid + cycles - 1
        return end, end, compute, drain, cycles - compute - drain


class MlaEngine:
    """The MLA engine (hw/units/mla.py)."""

    def __init__(self, t: Timing, position: int) -> None:
        self.t = t.mla
        self.cycles = {ahead: mla_cycles(position, t.mla, ahead) for ahead in (False, True)}
        self.compute = t.mla.passes * mla_groups(position, t.mla)
        self.stored = -1  # cycle of the latest cache write

    @staticmethod
    def work(p: Params, t: Timing, command: Mapping[str, Any]) -> None:
        """All commands are alike."""

    def run(self, w: None, shown: int, valid: int) -> Times:
        """Times of a command.  The first group is read in a cycle before ``valid`` that shows the command."""
        ahead = valid > max(shown, self.stored + 1)
        end = valid + self.cycles[ahead] - 1
        return end, end, self.compute, self.t.pipeline, 0 if ahead else self.t.unread


class Router:
    """The router (hw/units/router.py)."""

    def __init__(self, t: Timing) -> None:
        self.t = t.router
        self.layer: int | None = None  # whose biases were read last

    @staticmethod
    def work(p: Params, t: Timing, command: Mapping[str, Any]) -> int:
        """Prepare a command: its layer."""
        return int(command["layer"])

    def run(self, w: int, shown: int, valid: int) -> Times:
        """Times of a command."""
        held = shown + (self.t.biases if self.layer != w else 0)
        self.layer = w
        missing = max(0, held - valid)
        end = valid + missing + self.t.route - 1
        return end, end, self.t.route, 0, missing


KINDS: dict[str, Any] = {
    "array": ArrayUnit, "vector": VectorUnit, "kda": KdaEngine, "mla": MlaEngine, "router": Router
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prepared:
    """A command in the order of execution.

    ``before``: number, in that order, of its unit's command before it (-1: none); ``waits``: those of the commands
    whose results it waits for.
    """

    unit: str
    index: int
    step: Step
    work: Any
    before: int
    waits: tuple[int, ...]


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
        self._orders: dict[bool, list[Prepared]] = {}
        self._known: dict[tuple[int, bool, bool], Position] = {}

    def position(self, position: int, *, skip_head: bool = False, streamed: Willing | None = None) -> Position:
        """Timing of ``position``; ``streamed``: its logits are, to a stream that is ready in the cycles it says."""
        if streamed not in (None, always):
            return self._position(position, skip_head, streamed)
        key = mla_groups(position, self.t.mla), skip_head, streamed is always
        if key not in self._known:
            self._known[key] = self._position(position, skip_head, streamed)
        return self._known[key]

    def _order(self, skip_head: bool) -> list[Prepared]:
        if skip_head not in self._orders:
            order = execution_order(self.program, skip_head)
            number = {(unit, index): i for i, (unit, index, _) in enumerate(order)}
            self._orders[skip_head] = [
                Prepared(
                    unit, index, step, KINDS[unit].work(self.p, self.t, step.command),
                    number.get((unit, index - 1), -1), tuple(number[u, n - 1] for u, n in step.need.items() if n),
                )
                for unit, index, step in order
            ]  # fmt: skip
        return self._orders[skip_head]

    def _position(self, position: int, skip_head: bool, streamed: Willing | None) -> Position:
        show, count = self.t.loop.show, self.t.loop.count
        array, mla = ArrayUnit(self.p, self.t, streamed), MlaEngine(self.t, position)
        units: dict[str, Any] = {
            "array": array, "vector": VectorUnit(self.t, mla), "kda": KdaEngine(), "mla": mla, "router": Router(self.t)
        }  # fmt: skip
        order = self._order(skip_head)
        rows: list[Row] = []
        latest = -1  # number of the command that is the last to be complete
        for one in order:
            cause = one.before
            shown = valid = (rows[cause][TAKE] if cause >= 0 else 0) + show
            waits = one.waits if self.overlap or latest < 0 else (*one.waits, latest)
            for other in waits:
                if rows[other][DONE] + count > valid:
                    valid, cause = rows[other][DONE] + count, other
            times = units[one.unit].run(one.work, shown, valid)
            if latest < 0 or times[1] > rows[latest][DONE]:
                latest = len(rows)
            rows.append((shown, valid, *times, cause))
        end = rows[latest][DONE] + count
        return Position(order, rows, max(end, 0 if skip_head else array.complete), array.logits)
