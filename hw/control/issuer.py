"""Issuing commands: one table of commands per unit, and the counts of completed commands they wait for."""

from collections.abc import Mapping, Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from hw.block import Block
from hw.program import Step


def body_length(steps: Sequence[Step]) -> int:
    """Steps before the first of the head; the head's steps must be the last ones."""
    body = next((i for i, step in enumerate(steps) if step.head), len(steps))
    if not all(step.head for step in steps[body:]):
        raise ValueError("a step of the head comes before one that is not")
    return body


def count_layout(lengths: Mapping[str, int]) -> data.StructLayout:
    """Completed commands of every unit, given the lengths of their programs."""
    return data.StructLayout({unit: bits_for(length) for unit, length in lengths.items()})


class Issuer(Block):
    """Shows the commands of one unit's program in order, each once what it needs is complete.

    Parameters
    ----------
    unit: name of the unit.
    steps: the unit's program. command: its payload, a Struct.
    lengths: number of commands in the program of every unit.

    Ports
    -----
    restart: pulse, begins the program, only while ``finished``; ``skip_head`` is sampled with it.
    counts: commands that each unit has completed since the restart.
    cmd, valid, take: see docs/chip.md. take without valid has no effect.
    finished: every command was taken and is complete.
    busy, stalled, idle: exactly one is high: valid; a command waits; no command left.

    Timing: restart in cycle c shows the first command in c+1; take in c shows the next one in c+1. ``valid`` and
    ``finished`` are combinational from ``counts`` by comparisons with registers. The table is logic from a register
    (the next command's number) to a register (cmd), which ``take`` enables.
    """

    def __init__(
        self, unit: str, steps: Sequence[Step], command: type[data.Struct], lengths: Mapping[str, int]
    ) -> None:
        self.unit = unit
        self.module_name = f"issuer_{unit}"
        self.total = len(steps)
        self._steps = list(steps)
        self._command = command
        self._body = body_length(steps)
        self._counts = count_layout(lengths)
        self._waits = [u for u in lengths if any(step.need.get(u, 0) for step in steps)]
        super().__init__(
            {
                "restart": In(1),
                "skip_head": In(1),
                "counts": In(self._counts),
                "cmd": Out(command),
                "valid": Out(1),
                "take": In(1),
                "finished": Out(1),
                "busy": Out(1),
                "stalled": Out(1),
                "idle": Out(1),
            }
        )

    def _entry(self) -> data.StructLayout:
        """A table entry: the payload and the counts it waits for."""
        need = data.StructLayout({u: self._counts[u].shape for u in self._waits})
        return data.StructLayout({"cmd": self._command, "need": need})

    def _word(self, step: Step) -> int:
        """Bits of a table entry."""
        need = {u: step.need.get(u, 0) for u in self._waits}
        return self._entry().const({"cmd": step.command, "need": need}).as_bits()

    def body(self, platform: Any) -> Module:
        m = Module()
        total = len(self._steps)
        layout = self._entry()
        shown = Signal(layout, reset_less=True)
        waiting = Signal()  # a command is shown
        pointer = Signal(range(total + 1))  # of the next command; 0 while none is shown
        end = Signal.like(pointer, reset_less=True)  # commands of this token
        length = Mux(self.skip_head, self._body, total)
        taken = Signal()
        last = Signal()
        m.d.comb += [taken.eq(self.take & self.valid), last.eq(pointer == end)]
        with m.If(self.restart):
            m.d.sync += [end.eq(length), waiting.eq(length != 0), pointer.eq(length != 0)]
        with m.Elif(taken):
            m.d.sync += [waiting.eq(~last), pointer.eq(Mux(last, 0, pointer + 1))]
        with m.If(self.restart | taken):
            m.d.sync += Value.cast(shown).eq(self._table(m, pointer))

        ready = Signal()
        met = [getattr(shown.need, u) <= getattr(self.counts, u) for u in self._waits]
        m.d.comb += [
            ready.eq(Cat(*met).all()),
            self.cmd.eq(shown.cmd),
            self.valid.eq(waiting & ready),
            self.finished.eq(~waiting & (getattr(self.counts, self.unit) == end)),
            self.busy.eq(self.valid),
            self.stalled.eq(waiting & ~ready),
            self.idle.eq(~waiting),
        ]
        return m

    def _table(self, m: Module, pointer: Signal) -> Signal:
        """The entry at ``pointer``, as logic."""
        entry = Signal(self._entry().size)
        with m.Switch(pointer):
            for i, step in enumerate(self._steps):
                with m.Case(i):
                    m.d.comb += entry.eq(self._word(step))
        return entry


class Sequencer(Block):
    """The issuers of all units and the counts of completed commands.

    Parameters: ``programs``, steps by unit; ``commands``, payload by unit.

    Ports
    -----
    restart, skip_head: begin all programs (only while ``finished``); counts go to 0.
    cmd_<unit>, valid_<unit>, take_<unit>, done_<unit>: see docs/chip.md.
    finished: every program is at its end and every command complete.
    busy, stalled, idle: one bit per unit, in the order of ``programs``.

    Timing: ``done`` in cycle c is counted in c+1, when commands that wait for it are valid: no bubble. restart in c:
    first commands in c+1. The last ``done`` in c: finished in c+1.
    """

    def __init__(self, programs: Mapping[str, Sequence[Step]], commands: Mapping[str, type[data.Struct]]) -> None:
        self._units = list(programs)
        check_reachable(programs)
        lengths = {u: len(steps) for u, steps in programs.items()}
        self._issuers = {u: Issuer(u, programs[u], commands[u], lengths) for u in self._units}
        ports: dict[str, Any] = {}
        for u in self._units:
            ports |= {f"cmd_{u}": Out(commands[u]), f"valid_{u}": Out(1), f"take_{u}": In(1), f"done_{u}": In(1)}
        several = len(self._units)
        super().__init__(
            {
                "restart": In(1),
                "skip_head": In(1),
                "finished": Out(1),
                **ports,
                "busy": Out(several),
                "stalled": Out(several),
                "idle": Out(several),
            }
        )

    def body(self, platform: Any) -> Module:
        m = Module()
        issuers = list(self._issuers.values())
        counts = Signal(count_layout({u: i.total for u, i in self._issuers.items()}))
        for unit, issuer in self._issuers.items():
            m.submodules[f"issuer_{unit}"] = issuer
            count = getattr(counts, unit)
            with m.If(self.restart):
                m.d.sync += count.eq(0)
            with m.Elif(getattr(self, f"done_{unit}")):
                m.d.sync += count.eq(count + 1)
            m.d.comb += [
                issuer.restart.eq(self.restart),
                issuer.skip_head.eq(self.skip_head),
                issuer.counts.eq(counts),
                issuer.take.eq(getattr(self, f"take_{unit}")),
                getattr(self, f"cmd_{unit}").eq(issuer.cmd),
                getattr(self, f"valid_{unit}").eq(issuer.valid),
            ]
        m.d.comb += [
            self.finished.eq(Cat(*(i.finished for i in issuers)).all()),
            self.busy.eq(Cat(*(i.busy for i in issuers))),
            self.stalled.eq(Cat(*(i.stalled for i in issuers))),
            self.idle.eq(Cat(*(i.idle for i in issuers))),
        ]
        return m


def check_reachable(programs: Mapping[str, Sequence[Step]]) -> None:
    """Refuse programs that can never end: with and without the head, every command's needs must come true."""
    for unit, steps in programs.items():
        unknown = {u for step in steps for u in step.need} - set(programs)
        if unknown:
            raise ValueError(f"{unit} waits for unknown units: {', '.join(sorted(unknown))}")
    for skip in (False, True):
        todo = {u: list(steps[: body_length(steps)] if skip else steps) for u, steps in programs.items()}
        done = dict.fromkeys(programs, 0)
        moved = True
        while moved:
            moved = False
            for unit, steps in todo.items():
                while done[unit] < len(steps) and all(done[v] >= n for v, n in steps[done[unit]].need.items()):
                    done[unit] += 1
                    moved = True
        stuck = [f"{u} at {steps[done[u]].label}" for u, steps in todo.items() if done[u] < len(steps)]
        if stuck:
            raise ValueError(f"the program never ends{' without its head' if skip else ''}: {', '.join(stuck)}")
