"""A tile of the vector unit: four lanes, each with its multiplier, working register and block snapshots."""

from enum import IntEnum
from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, Value, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from golden.fixed.numbers import CONST, SIG, VEC
from hw.arith.multiply import multiply_add
from hw.block import Block
from hw.layouts import T_REGS
from hw.units.quantiser import ZEROS_BITS, contribution, encode

TILE = 4  # lanes of a tile
TOTAL_BITS = 48  # a product of two 24-bit values, or a weighted sum before rounding
WORK_BITS = 46  # a weighted sum: 24-bit value, 20-bit weight, up to 4 candidates
SUM_BITS = TOTAL_BITS + 2
SHIFT_STEP = 4  # rounding shifts are 1 + 4 * shift; multipliers are pre-shifted by the rest
SHIFT_BITS = 3
WORDS = data.ArrayLayout(signed(VEC.width), TILE)


class Operand(IntEnum):
    """Bit of the one-hot operand select; snapshot i is bit SNAPSHOT + i."""

    T0 = 0
    T1 = 1
    T2 = 2
    T3 = 3
    P = 4
    O = 5  # noqa: E741
    C = 6
    WORK = 7
    SNAPSHOT = 8


class Multiplier(IntEnum):
    """Bit of the one-hot multiplier select."""

    SELF = 0  # the operand: squares
    CONST = 1
    GATE = 2
    WIDE = 3  # one value for the segment


class VectorTile(Block):
    """Four lanes: total = operand * multiplier + addend, rounded and saturated to 24 bits, and its E4M3 code.

    Equals golden.fixed.numbers.saturate(round_shift(.)) of the product (``z``), golden.fixed.vector.weighted_sum over
    several cycles, and with ``zeros`` the codes of golden.fixed.mx.quantise.

    Inputs: ``t``, ``prefix``, ``o``, ``c``, ``constant``: operands and constants of the lanes.  ``operand``,
    ``multiplier``, ``gate`` (which T register): one-hot.  ``double``: CONST and GATE times 2 more (CONST counts
    times 2 anyway).  ``wide``: the segment's multiplier.  ``half``: one-hot, adds 1 << 4 i.  ``accumulate``: adds the
    working register instead.  ``shift``: total is shifted right by 1 + 4 * shift.  ``load``: the working register
    takes z, or the total with ``partial``.  ``snapshot``: one-hot, snapshot := prefix.  ``zeros``: see quantiser.

    Outputs: ``sum`` of the four totals, ``z``, ``ored``: of the lanes' contributions to the block, ``codes``.

    Timing: every output is combinational from every operand and control input, codes also from ``zeros`` (which comes
    from ``ored``). Registers: working register and snapshots, one cycle, without reset.
    """

    def __init__(self, snapshots: int) -> None:
        self.snapshots = snapshots
        super().__init__(
            {
                "t": In(data.ArrayLayout(WORDS, T_REGS)),
                "prefix": In(WORDS),
                "o": In(WORDS),
                "c": In(WORDS),
                "constant": In(data.ArrayLayout(signed(CONST.width), TILE)),
                "operand": In(Operand.SNAPSHOT.value + snapshots),
                "multiplier": In(len(Multiplier)),
                "gate": In(T_REGS),
                "double": In(1),
                "wide": In(signed(VEC.width)),
                "half": In(1 << SHIFT_BITS),
                "accumulate": In(1),
                "shift": In(SHIFT_BITS),
                "load": In(1),
                "partial": In(1),
                "snapshot": In(snapshots),
                "zeros": In(ZEROS_BITS),
                "sum": Out(signed(SUM_BITS)),
                "z": Out(WORDS),
                "ored": Out(VEC.width),
                "codes": Out(data.ArrayLayout(8, TILE)),
            }
        )

    def body(self, platform: Any) -> Module:
        m = Module()
        totals, sizes = [], []
        works = [Signal(signed(WORK_BITS), name=f"work{i}", reset_less=True) for i in range(TILE)]
        half = Cat(*(Cat(self.half[i], Const(0, SHIFT_STEP - 1)) for i in range(1 << SHIFT_BITS)))
        for i in range(TILE):
            work, z = works[i], self.z[i]
            total = self._total(m, i, work, half)
            negative, folded = self._rounded(m, total, f"lane{i}")
            m.d.comb += z.eq(Cat(folded, Const(0, 1)) ^ negative.replicate(VEC.width))
            with m.If(self.load):
                m.d.sync += work.eq(z)
                with m.If(self.partial):
                    m.d.sync += work.eq(total)
            m.d.comb += self.codes[i].eq(encode(m, negative, folded, self.zeros, f"code{i}"))
            totals.append(total)
            sizes.append(contribution(m, negative, folded, f"lane{i}"))
        m.d.comb += self.sum.eq(sum(totals[1:], start=totals[0]))
        ored: Value = sizes[0]
        for size in sizes[1:]:
            ored = ored | size
        m.d.comb += self.ored.eq(ored)
        return m

    def _total(self, m: Module, i: int, work: Signal, half: Value) -> Signal:
        """Product and addend of lane ``i``."""
        width = VEC.width
        kept = [Signal(signed(width), name=f"snapshot{s}_{i}", reset_less=True) for s in range(self.snapshots)]
        for s, register in enumerate(kept):
            with m.If(self.snapshot[s]):
                m.d.sync += register.eq(self.prefix[i])
        registers = [self.t[r][i] for r in range(T_REGS)]
        operands = [*registers, self.prefix[i], self.o[i], self.c[i], work[:width], *kept]
        a = Signal(signed(width), name=f"a{i}")
        m.d.comb += a.eq(one_hot(self.operand, operands))
        gate = one_hot(self.gate, [r[: SIG.width] for r in registers])
        plain = Signal(signed(width - 1), name=f"plain{i}")  # constant or gate
        m.d.comb += plain.eq(
            one_hot(self.multiplier[1:3], [Cat(Const(0, 1), self.constant[i], self.constant[i][-1].replicate(6)), gate])
        )
        factor = Signal(signed(width), name=f"factor{i}")
        scaled = Signal(width, name=f"scaled{i}")
        with m.If(self.double):
            m.d.comb += scaled.eq(plain << 1)
        with m.Else():
            m.d.comb += scaled.eq(plain)
        square = a & self.multiplier[Multiplier.SELF.value].replicate(width)
        wide = self.wide & self.multiplier[Multiplier.WIDE.value].replicate(width)
        m.d.comb += factor.eq(square | wide | scaled)
        addend = Signal(signed(TOTAL_BITS), name=f"addend{i}")
        with m.If(self.accumulate):
            m.d.comb += addend.eq(work)
        with m.Else():
            m.d.comb += addend.eq(half)
        return multiply_add(m, a, factor, addend, TOTAL_BITS, name=f"total{i}")

    def _rounded(self, m: Module, total: Signal, name: str) -> tuple[Value, Signal]:
        """(sign, value inverted if negative) of the total shifted right (a half is in it already) and saturated.

        Overflow is found beside the shifter, from runs of equal bits at the top of the total.
        """
        width, top = VEC.width, TOTAL_BITS - 1
        fits: list[Value] = []  # with shift i, bits from width - 1 + 1 + 4 * i on are equal
        for i in range(1 << SHIFT_BITS):
            high = total[min(width + SHIFT_STEP * i, top) :]
            fits.append(high.all() | ~high.any())
        over = Signal(name=f"{name}_over")
        m.d.comb += over.eq(one_hot(self.half, [~fit for fit in fits])[0])
        stage: Value = total >> 1
        for i in reversed(range(SHIFT_BITS)):
            shifted = Signal(signed(width + SHIFT_STEP * ((1 << i) - 1)), name=f"{name}_shift{i}")
            with m.If(self.shift[i]):
                m.d.comb += shifted.eq(stage >> (SHIFT_STEP << i))
            with m.Else():
                m.d.comb += shifted.eq(stage)
            stage = shifted
        negative = total[top]
        folded = Signal(width - 1, name=f"{name}_folded")
        m.d.comb += folded.eq((stage[:-1] ^ negative.replicate(width - 1)) | over.replicate(width - 1))
        return negative, folded


def one_hot(select: Value, values: list[Value]) -> Value:
    """The value whose select bit is 1; 0 when none is."""
    picked: Value = Const(0, 1)
    for i, value in enumerate(values):
        picked = picked | (value & select[i].replicate(len(value)))
    return picked
