"""Counters of a run."""

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from hw.block import Block

WIDTH = 32


class Counters(Block):
    """Counters of a run; all stop for good when ``cycles`` is at its greatest value (after 43 s at 100 MHz).

    So the busy, stalled and idle cycles of every unit always sum to ``cycles``.

    Ports
    -----
    clear: the run starts in the next cycle. running: count. restart, position_end, token_out, token_stall: the token
    loop's strobes. busy, stalled, idle: the units' strobes.
    cycles, tokens, positions, token_stalls: totals. last_cycles: from the cycle after a position's restart to its
    end, for the last one completed (saturates). units: busy, stalled, idle of each unit.
    """

    def __init__(self, units: Sequence[str], width: int = WIDTH) -> None:
        several = len(units)
        kinds = data.StructLayout({"busy": width, "stalled": width, "idle": width})
        super().__init__(
            {
                "clear": In(1),
                "running": In(1),
                "restart": In(1),
                "position_end": In(1),
                "token_out": In(1),
                "token_stall": In(1),
                "busy": In(several),
                "stalled": In(several),
                "idle": In(several),
                "cycles": Out(width),
                "tokens": Out(width),
                "positions": Out(width),
                "token_stalls": Out(width),
                "last_cycles": Out(width),
                "units": Out(data.ArrayLayout(kinds, several)),
            }
        )

    def body(self, platform: Any) -> Module:
        m = Module()
        counting = Signal()
        m.d.comb += counting.eq(self.running & ~self.cycles.all())

        def count(counter: Value, strobe: Value) -> None:
            with m.If(self.clear):
                m.d.sync += counter.eq(0)
            with m.Elif(counting & strobe):
                m.d.sync += counter.eq(counter + 1)

        count(self.cycles, self.running)
        count(self.tokens, self.token_out)
        count(self.positions, self.position_end)
        count(self.token_stalls, self.token_stall)
        for unit in range(len(self.busy)):
            for kind in ("busy", "stalled", "idle"):
                count(getattr(self.units[unit], kind), getattr(self, kind)[unit])
        since = Signal.like(self.cycles, reset_less=True)
        m.d.sync += since.eq(Mux(self.restart, 1, since + ~since.all()))
        with m.If(self.clear):
            m.d.sync += self.last_cycles.eq(0)
        with m.Elif(self.position_end):
            m.d.sync += self.last_cycles.eq(since)
        return m
