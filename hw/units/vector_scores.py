"""Residual-mix scores and their softmax (golden.fixed.vector.mix_score, softmax_weights)."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib.wiring import In, Out

from golden.fixed.functions import RECIP
from golden.fixed.numbers import CONST, SCORE, UNIT, VEC
from hw.arith.basic import saturate
from hw.arith.functions import exp2_neg, quadratic
from hw.arith.multiply import multiply_add
from hw.block import Block
from hw.units.vector_lane import one_hot
from hw.units.vector_norm import MANTISSA_BITS, PAIR_BITS, TOTAL_SUM_BITS

DOT_DROP = 6  # bits that mix_score drops from the dot product
DOT_BITS = 40
INDEX_BITS = 3


class VectorScores(Block):
    """Scores of ``candidates`` candidates in registers, softmax over the first ``n`` of them, one weight at a time.

    Score: of ``total`` (twice the dot product and half of the bits dropped), ``mantissa`` and ``pair`` of the inverse
    norm; with ``write`` it goes to register ``index``, visible in the next cycle.

    Softmax: ``exponentials`` (cycle 1) samples 2**(score - max) of the first n; ``weigh`` (cycle 2) gives ``weight``
    of candidate 0 in cycle 3; ``follow`` = i + 1 in the cycle in which weight i is used gives the next.

    ``norm_shift``: k of the inverse norm is pair - norm_shift.
    """

    def __init__(self, candidates: int, norm_shift: int) -> None:
        self.candidates = candidates
        self.norm_shift = norm_shift
        super().__init__(
            {
                "total": In(signed(TOTAL_SUM_BITS)),
                "mantissa": In(MANTISSA_BITS),
                "pair": In(PAIR_BITS),
                "write": In(1),
                "index": In(INDEX_BITS),
                "n": In(INDEX_BITS),
                "exponentials": In(1),
                "weigh": In(1),
                "follow": In(INDEX_BITS),
                "weight": Out(UNIT.width),
            }
        )

    def body(self, platform: Any) -> Module:
        m = Module()
        scores = [Signal(signed(SCORE.width), name=f"score{i}", reset_less=True) for i in range(self.candidates)]
        score = self._score(m)
        for i, register in enumerate(scores):
            with m.If(self.write & (self.index == i)):
                m.d.sync += register.eq(score)
        powers = self._powers(m, scores, self._order(m, scores, score))
        self._weights(m, powers)
        return m

    def _score(self, m: Module) -> Signal:
        """dot * mantissa, shifted and saturated."""
        dot = Signal(signed(DOT_BITS))
        m.d.comb += dot.eq(self.total >> (DOT_DROP + 1))
        product = multiply_add(m, dot, self.mantissa, 0, DOT_BITS + MANTISSA_BITS, name="product")
        # round_shift by VEC.frac + CONST.frac - DOT_DROP + 18 - SCORE.frac + k, at least ``least``
        least = VEC.frac + CONST.frac - DOT_DROP + 18 - SCORE.frac - self.norm_shift
        assert least >= 1
        stage: Value = product >> (least - 1)  # one bit below the result decides the rounding
        for i in reversed(range(PAIR_BITS)):
            shifted = Signal(signed(len(stage)), name=f"score_shift{i}")
            m.d.comb += shifted.eq(Mux(self.pair[i], stage >> (1 << i), stage))
            stage = shifted
        rounded = Signal(signed(len(stage)))
        m.d.comb += rounded.eq((stage >> 1) + stage[0])
        return saturate(m, rounded, SCORE, name="score")

    def _order(self, m: Module, scores: list[Signal], score: Signal) -> dict[tuple[int, int], Signal]:
        """Registers [i, j], i < j: score i is at least score j.  A new score is compared while it is written."""
        order = {}
        reaches = [Signal(name=f"reaches{k}") for k in range(self.candidates)]  # below k equality is enough
        for k, other in enumerate(scores):
            m.d.comb += reaches[k].eq((score - other - (self.index > k)) >= 0)
        for i in range(self.candidates):
            for j in range(i + 1, self.candidates):
                order[i, j] = Signal(name=f"order{i}_{j}", reset_less=True)
                with m.If(self.write & (self.index == i)):
                    m.d.sync += order[i, j].eq(reaches[j])
                with m.If(self.write & (self.index == j)):
                    m.d.sync += order[i, j].eq(~reaches[i])
        return order

    def _powers(self, m: Module, scores: list[Signal], order: dict[tuple[int, int], Signal]) -> list[Signal]:
        """Registers with 2**(score - max), 0 beyond the first n."""
        count = self.candidates
        counts = [Signal(name=f"counts{i}") for i in range(count)]
        m.d.comb += [c.eq(self.n > i) for i, c in enumerate(counts)]
        above = {(i, j): bit | ~counts[j] for (i, j), bit in order.items()}  # or j does not count
        best = []
        for i in range(count):
            wins = [above[i, j] for j in range(i + 1, count)] + [~above[j, i] for j in range(i)]
            best.append(Cat(*wins).all() if wins else Const(1, 1))
        highest = Signal(signed(SCORE.width))
        m.d.comb += highest.eq(one_hot(Cat(*best), list(scores)))
        powers = []
        for i, score in enumerate(scores):
            distance = Signal(SCORE.width, name=f"distance{i}")  # never negative for one that counts
            m.d.comb += distance.eq(highest - score)
            power = exp2_neg(m, Cat(Const(0, 16 - SCORE.frac), distance), name=f"exp{i}")
            register = Signal(UNIT.width, name=f"power{i}", reset_less=True)
            with m.If(self.exponentials):
                m.d.sync += register.eq(Mux(counts[i], power, 0))
            powers.append(register)
        return powers

    def _weights(self, m: Module, powers: list[Signal]) -> None:
        """power * 1 / sum, for power 0 in ``weigh`` and for power ``follow`` later."""
        total = Signal(UNIT.width + 3)
        m.d.comb += total.eq(sum(powers[1:], start=powers[0]))
        # the largest power is 1.0, so the sum is m * 2**(16 + extra) with m in [1, 2), extra 0 to 2
        top = UNIT.frac
        extra, lead = Signal(2), Signal(top + 3)
        with m.If(total[top + 2]):
            m.d.comb += [extra.eq(2), lead.eq(total)]
        with m.Elif(total[top + 1]):
            m.d.comb += [extra.eq(1), lead.eq(total << 1)]
        with m.Else():
            m.d.comb += [extra.eq(0), lead.eq(total << 2)]
        fresh, kept = Signal(MANTISSA_BITS), Signal(MANTISSA_BITS, reset_less=True)
        m.d.comb += fresh.eq(quadratic(m, RECIP, lead[12:18], lead[:12], "recip"))
        shift = Signal(2, reset_less=True)
        with m.If(self.weigh):
            m.d.sync += [kept.eq(fresh), shift.eq(extra)]
        mantissa, by = Mux(self.weigh, fresh, kept), Mux(self.weigh, extra, shift)
        power = Signal(UNIT.width)
        chosen = Cat(*(self.follow == i for i in range(self.candidates)))
        m.d.comb += power.eq(one_hot(chosen, list(powers)))
        half = Mux(by[1], 1 << 19, Mux(by[0], 1 << 18, 1 << 17))
        product = multiply_add(m, mantissa, power, half, MANTISSA_BITS + UNIT.width + 1, name="share")
        stage = product >> 18
        weight = Signal(UNIT.width, reset_less=True)
        m.d.sync += weight.eq(Mux(by[1], stage >> 2, Mux(by[0], stage >> 1, stage)))
        m.d.comb += self.weight.eq(weight)
