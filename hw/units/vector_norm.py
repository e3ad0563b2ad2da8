"""Inverse norm of a segment or of the whole vector (golden.fixed.vector.inverse_norm)."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from golden.fixed.functions import RSQRT
from hw.arith.functions import quadratic
from hw.block import Block
from hw.units.vector_lane import SUM_BITS

TOTAL_SUM_BITS = SUM_BITS + 4  # 64 lanes
EPS_BITS = 32
PAIR_BITS = 5  # a position among the 27 bit pairs of a sum
MANTISSA_BITS = 19


class VectorNorm(Block):
    """Adds the tiles' sums and ``extra``; gives 1 / sqrt of it.

    ``own``, ``other``: sums of the segment's tiles and of the other segment's (counted when ``whole``).  ``extra``: an
    epsilon in the sum's unit, or a rounding bit.  ``odd``: the total has an odd number of fraction bits.

    ``total``: the sum, one cycle later.  ``mantissa`` (18 fraction bits) and ``pair`` of the inverse root, two cycles
    later: value = mantissa * 2**-(18 + k) with k = pair - (fraction bits + odd) / 2; only for a total of 1 or more.
    A new sum may come every cycle; no combinational path from input to output.
    """

    def __init__(self, tiles: int, others: int) -> None:
        self.module_name = f"vector_norm_{tiles}_{others}"
        super().__init__(
            {
                "own": In(data.ArrayLayout(signed(SUM_BITS), tiles)),
                "other": In(data.ArrayLayout(signed(SUM_BITS), others)),
                "whole": In(1),
                "extra": In(EPS_BITS),
                "odd": In(1),
                "total": Out(signed(TOTAL_SUM_BITS)),
                "mantissa": Out(MANTISSA_BITS),
                "pair": Out(PAIR_BITS),
            }
        )
        self.tiles = tiles
        self.others = others

    def body(self, platform: Any) -> Module:
        m = Module()
        total: Value = sum((self.own[i] for i in range(self.tiles)), start=Cat(self.extra, Const(0, 1)).as_signed())
        for i in range(self.others):
            total = total + (self.other[i] & self.whole.replicate(SUM_BITS).as_signed())
        kept = Signal(signed(TOTAL_SUM_BITS), reset_less=True)
        aligned = Signal(TOTAL_SUM_BITS)
        odd = Signal(reset_less=True)
        m.d.sync += [kept.eq(total), odd.eq(self.odd)]
        m.d.comb += aligned.eq(Mux(odd, kept << 1, kept))
        lead, zeros = self._lead(m, aligned)
        number, index = Signal(20), Signal(7)  # in [1, 4), 18 fraction bits
        m.d.comb += [number.eq(lead), index.eq(number[13:] - 32)]
        mantissa, pair = Signal(MANTISSA_BITS, reset_less=True), Signal(PAIR_BITS, reset_less=True)
        m.d.sync += [
            mantissa.eq(quadratic(m, RSQRT, index, number[:13], "rsqrt")),
            pair.eq((TOTAL_SUM_BITS // 2 - 1) - zeros),
        ]
        m.d.comb += [self.total.eq(kept), self.mantissa.eq(mantissa), self.pair.eq(pair)]
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
