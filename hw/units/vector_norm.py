"""Inverse norm of a segment or of the whole vector (golden.fixed.vector.inverse_norm)."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from golden.fixed.functions import RSQRT
from hw.arith.functions import quadratic
from hw.units.vector_lane import SUM_BITS

TOTAL_SUM_BITS = SUM_BITS + 4  # 64 lanes
EPS_BITS = 32
PAIR_BITS = 5  # a position among the 27 bit pairs of a sum
MANTISSA_BITS = 19


class VectorNorm(wiring.Component):
    """Adds the tiles' sums and epsilon; a cycle later gives 1 / sqrt of it.

    ``own``, ``other``: sums of the segment's tiles and of the other segment's (counted when ``whole``).  ``eps``: the
    epsilon in the sum's unit.  ``odd``: the sum has an odd number of fraction bits.

    ``total``: the sum, combinational.  ``mantissa`` (18 fraction bits) and ``pair``: of the sum in the cycle before;
    value = mantissa * 2**-(18 + k) with k = pair - (fraction bits + odd) / 2.
    """

    def __init__(self, tiles: int, others: int) -> None:
        self.module_name = f"vector_norm_{tiles}_{others}"
        super().__init__(
            {
                "own": In(data.ArrayLayout(signed(SUM_BITS), tiles)),
                "other": In(data.ArrayLayout(signed(SUM_BITS), others)),
                "whole": In(1),
                "eps": In(EPS_BITS),
                "odd": In(1),
                "total": Out(signed(TOTAL_SUM_BITS)),
                "mantissa": Out(MANTISSA_BITS),
                "pair": Out(PAIR_BITS),
            }
        )
        self.tiles = tiles
        self.others = others

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        total: Value = sum((self.own[i] for i in range(self.tiles)), start=Cat(self.eps, Const(0, 1)).as_signed())
        for i in range(self.others):
            total = total + (self.other[i] & self.whole.replicate(SUM_BITS).as_signed())
        m.d.comb += self.total.eq(total)
        aligned = Signal(TOTAL_SUM_BITS)
        m.d.comb += aligned.eq(Mux(self.odd, self.total << 1, self.total))
        lead, zeros = self._lead(m, aligned)
        number = Signal(20, reset_less=True)  # in [1, 4), 18 fraction bits
        pair = Signal(PAIR_BITS, reset_less=True)
        m.d.sync += [number.eq(lead), pair.eq((TOTAL_SUM_BITS // 2 - 1) - zeros)]
        index = Signal(7)
        m.d.comb += [
            index.eq(number[13:] - 32),
            self.mantissa.eq(quadratic(m, RSQRT, index, number[:13], "rsqrt")),
            self.pair.eq(pair),
        ]
        return m

    def _lead(self, m: Module, x: Signal) -> tuple[Value, Signal]:
        """x shifted left by bit pairs until the first pair is not 0: its first 20 bits, and how many pairs went."""
        width = 2 << PAIR_BITS
        zeros = Signal(PAIR_BITS)
        stage = Signal(width, name="lead_in")
        m.d.comb += stage.eq(x << (width - len(x)))
        for i in reversed(range(PAIR_BITS)):
            pairs = 2 << i
            nxt = Signal(width, name=f"lead_{i}")
            m.d.comb += [zeros[i].eq(~stage[width - pairs :].any()), nxt.eq(Mux(zeros[i], stage << pairs, stage))]
            stage = nxt
        return stage[width - 20 :], zeros
