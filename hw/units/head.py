"""Head: argmax of the logits (golden.fixed.lanes.argmax) and, when asked for, the logits as a stream."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from golden.fixed.numbers import VEC
from hw.block import Block
from hw.params import Params

__all__ = ["Head"]


def _larger(m: Module, values: list[tuple[Value, Value]], name: str) -> tuple[Value, Value]:
    """(value, index) of the largest signed value, the first one of equals, by a tree."""
    level = 0
    while len(values) > 1:
        winners: list[tuple[Value, Value]] = []
        for i in range(0, len(values), 2):
            (left, left_index), (right, right_index) = values[i : i + 2]
            value = Signal(signed(VEC.width), name=f"{name}_{level}_{i}")
            index = Signal(len(left_index) + 1, name=f"{name}_index_{level}_{i}")
            above = Signal(name=f"{name}_right_{level}_{i}")
            m.d.comb += [
                above.eq(right > left),
                value.eq(Mux(above, right, left)),
                index.eq(Cat(Mux(above, right_index, left_index), above)),
            ]
            winners.append((value, index))
        values = winners
        level += 1
    return values[0]


class Head(Block):
    """Running argmax over the groups of logits of one position, and the logits stream.

    Ports
    -----
    start: pulse, a new position begins: the old best is forgotten. A group in the same cycle is the new one's.
    head_valid, head_group, head_logits: one group of ``array_rows`` logits (VEC); groups come in order, one per cycle.
    best, complete: lowest index of the largest logit of the groups seen since ``start``, valid once ``complete`` is
    high: all groups were seen and, when streaming, accepted. Both are registered state: they hold until ``start``, and
    show a group from the cycle after ``head_valid`` on.
    stream_logits: level, stable from ``start`` to ``complete``: every group is streamed.
    head_ready: low from ``head_valid`` until a streamed group is accepted but always high when not streaming. While it
    is low no group may come. There is a combinational path from ``head_valid`` and ``stream_logits``.
    logits_valid, logits_ready, logits_data, logits_last: the stream, one sign-extended logit per beat in token order,
    ``last`` with the last one of the position. A beat waits for nothing and is stable until accepted.

    Throughput: a group per cycle; when streaming one beat per cycle, the first in the cycle after ``head_valid``.
    """

    def __init__(self, p: Params) -> None:
        self.rows = p.array_rows
        self.groups = p.model.vocab_size // p.array_rows
        super().__init__(
            {
                "start": In(1),
                "head_valid": In(1),
                "head_group": In(range(self.groups)),
                "head_logits": In(data.ArrayLayout(VEC.width, self.rows)),
                "head_ready": Out(1),
                "best": Out(p.token_bits),
                "complete": Out(1),
                "stream_logits": In(1),
                "logits_valid": Out(1),
                "logits_ready": In(1),
                "logits_data": Out(32),
                "logits_last": Out(1),
            }
        )

    def body(self, platform: Any) -> Module:
        m = Module()
        seen = Signal(range(self.groups + 1))
        before = Signal.like(seen)
        m.d.comb += before.eq(Mux(self.start, 0, seen))
        m.d.sync += seen.eq(before + self.head_valid)
        self._argmax(m, before == 0)
        streaming = self._stream(m)
        m.d.comb += [
            self.complete.eq((seen == self.groups) & ~streaming),
            self.head_ready.eq(~(streaming | (self.head_valid & self.stream_logits))),
        ]
        return m

    def _argmax(self, m: Module, first: Value) -> None:
        """Best of the group, then of all."""
        leaves = [(self.head_logits[i].as_signed(), Cat()) for i in range(self.rows)]
        value, row = _larger(m, leaves, "largest")
        best_value = Signal(signed(VEC.width), reset_less=True)
        with m.If(self.head_valid & (first | (value > best_value))):
            m.d.sync += [best_value.eq(value), self.best.eq(Cat(row, self.head_group))]

    def _stream(self, m: Module) -> Value:
        """Shift out a captured group; returns whether one is there."""
        left = Signal(range(self.rows + 1))  # beats
        last = Signal(reset_less=True)
        buffer = Signal(VEC.width * self.rows, reset_less=True)
        with m.If(self.head_valid & self.stream_logits):
            m.d.sync += [
                left.eq(self.rows),
                last.eq(self.head_group == self.groups - 1),
                buffer.eq(self.head_logits.as_value()),
            ]
        with m.Elif(self.logits_valid & self.logits_ready):
            m.d.sync += [left.eq(left - 1), buffer.eq(buffer >> VEC.width)]
        m.d.comb += [
            self.logits_valid.eq(left != 0),
            self.logits_data.eq(buffer[: VEC.width].as_signed()),
            self.logits_last.eq(last & (left == 1)),
        ]
        return left != 0
