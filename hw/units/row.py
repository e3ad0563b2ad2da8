"""One row of the matmul array: MX dot product, scaling, accumulation, lane functions and the row's registers."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from golden.fixed.mx import DOT_FRAC, E8M0_BIAS
from golden.fixed.numbers import VEC
from hw.arith.basic import saturate
from hw.block import Block
from hw.params import BLOCK, T_REGS, Params
from hw.units.lane import CONSTS, HISTORY, Lane, LaneControl

UNITS_BITS = 18  # magnitude of an E4M3 code in units of 2**-9: up to 448 * 512
BASE_BITS = UNITS_BITS + 2  # times up to 3
TERM_BITS = BASE_BITS + 2  # times up to 12 halves
DOT_BITS = 28
SHIFT_MIN, SHIFT_MAX = -24, DOT_BITS  # beyond these a scaled dot product no longer changes
SHIFT_BASE = DOT_FRAC - VEC.frac + 2 * E8M0_BIAS  # right shift = SHIFT_BASE - both scale codes
MAX_BLOCKS = 4
SUM_BITS = VEC.width + 2


class Operand(data.Struct):
    """A decoded MX block: magnitudes in units of 2**-9, three times them, signs; SHIFT_BASE minus the scale code."""

    once: data.ArrayLayout(UNITS_BITS, BLOCK)
    thrice: data.ArrayLayout(BASE_BITS, BLOCK)
    negative: BLOCK
    shift: signed(9)


class RowControl(data.Struct):
    """Stage 1: ``valid`` word, ``first`` and ``last`` of its group, ``embed`` (an element of an embedding in place of
    column 0).

    Write-back (stage 1 of LINEAR, the last stage of the slow functions): ``slow`` takes the lane's result to T, ``add``
    adds the row sum to P in place of overwriting it.
    """

    valid: 1
    first: 1
    last: 1
    embed: 1
    slow: 1
    add: 1
    lane: LaneControl


def _sum(values: list[Value]) -> Value:
    """Sum of unsigned values (balanced, so that widths stay small; Yosys merges it into one carry-save tree)."""
    while len(values) > 1:
        pairs = [values[i] + values[i + 1] for i in range(0, len(values) - 1, 2)]
        values = pairs + values[len(values) - len(values) % 2 :]
    return values[0]


def dot(m: Module, codes: list[Value], x: Operand) -> Signal:
    """Exact sum of E2M1 times operand over a block (golden.fixed.mx.block_dots).

    A term is select (1, 2 or 3 times), sign and shift, without a multiplier. Negative terms are complemented:
    -t = ~t - (2**TERM_BITS - 1) on unsigned TERM_BITS, so N of them are corrected by N - (N << TERM_BITS).
    """
    terms: list[Value] = []
    signs: list[Value] = []
    for i, code in enumerate(codes):
        mantissa, exponent, sign = code[0], code[1:3], code[3]
        negative, normal = Signal(name=f"negative_{i}"), Signal(name=f"normal_{i}")
        m.d.comb += [negative.eq(sign ^ x.negative[i]), normal.eq(exponent.any())]
        base = Signal(BASE_BITS, name=f"base_{i}")
        picked = (
            (x.thrice[i] & (normal & mantissa).replicate(BASE_BITS))
            | (x.once[i] & (~normal & mantissa).replicate(UNITS_BITS))
            | (Cat(Const(0, 1), x.once[i]) & (normal & ~mantissa).replicate(UNITS_BITS + 1))
        )
        m.d.comb += base.eq(picked ^ negative.replicate(BASE_BITS))
        shifted = [Cat(negative.replicate(k), base, negative.replicate(2 - k)) for k in range(3)]
        term = Signal(TERM_BITS, name=f"term_{i}")
        m.d.comb += term.eq(Mux(exponent[1], Mux(exponent[0], shifted[2], shifted[1]), shifted[0]))
        terms.append(term)
        signs.append(negative)
    count = Signal(range(len(codes) + 1))
    m.d.comb += count.eq(_sum(signs))
    complement = Signal(DOT_BITS)
    m.d.comb += complement.eq((-count) << TERM_BITS)
    total = Signal(signed(DOT_BITS), name="dot")
    m.d.comb += total.eq(_sum([*terms, count, complement])[:DOT_BITS])
    return total


def _shift_of(m: Module, base: Value, scale: Value) -> Signal:
    """Right shift of a dot product, clipped."""
    wide, shift = Signal(signed(10)), Signal(signed(6), name="shift")
    m.d.comb += wide.eq(base - scale)
    with m.If(wide > SHIFT_MAX):
        m.d.comb += shift.eq(SHIFT_MAX)
    with m.Elif(wide < SHIFT_MIN):
        m.d.comb += shift.eq(SHIFT_MIN)
    with m.Else():
        m.d.comb += shift.eq(wide)
    return shift


def scaled(m: Module, x: Signal, shift: Signal, valid: Value) -> tuple[Signal, Value]:
    """x * 2**-shift as VEC (golden.fixed.mx.scaled) as (value, one to add); (0, 0) unless valid.

    The shift is early and x late: a rotation by shift mod 32, masks made from the shift alone, and an overflow test on
    x itself, beside the rotation.
    """
    n = VEC.width
    sign, left, by = x[-1], shift[-1], shift[:5]
    rotated = Signal(32)
    extended = Cat(x, sign.replicate(32 - len(x)))
    m.d.comb += rotated.eq(Cat(extended, extended) >> by)
    inside = Signal(n)  # bits that come from x: others are its sign (right shift) or 0 (left shift)
    m.d.comb += inside.eq(Cat((i + by >= 32) == left for i in range(n)))
    # bits that must equal the sign: those shifted to n - 1 and beyond, of a value with one more bit 0 below
    beyond = Cat((j - shift) >= n - 1 for j in range(-1, len(x) - 1))
    changes = (Cat(Const(0, 1), x) ^ sign.replicate(len(x) + 1))[:-1]
    fits, kept = Signal(), Signal(n)
    fill, limit = (sign & ~left).replicate(n), Cat((~sign).replicate(n - 1), sign)
    m.d.comb += [
        fits.eq(~(changes & beyond).any()),
        kept.eq(Mux(fits, (rotated[:n] & inside) | (fill & ~inside), limit)),
    ]
    last = rotated[31] & ~left & shift.any() & fits  # the last bit dropped; adding it must not pass the maximum
    value, one = Signal(signed(n), name="scaled"), Signal(name="scaled_last")
    m.d.comb += [value.eq(Mux(valid, kept, 0)), one.eq(valid & last & ~(~sign & kept[:-1].all()))]
    return value, one


class ArrayRow(Block):
    """One row of the array: 32 multiply-accumulates a cycle, one Lane, and this row's lanes of T0..T3 and P.

    Ports
    -----
    codes, scale: this row's part of the weight word (stage 1: the cycle after its address), E2M1 and E8M0.
    x: decoded operand (stage 1).
    embed_code, embed_scale: element of an embedding, in place of column 0 and the scale with control.embed.
    control: RowControl.
    t_we, p_we: write enable per register and group, at the end of this cycle; p_read: the group of P to add to.
    consts, history, history_next: see Lane.
    y: the saturated row sum (VEC), a register, in stage 2 of the last word.
    t, prefix: the registers, visible in the cycle after their write.

    Equals golden.fixed.mx.matvec and golden.fixed.lanes. One word per cycle; a LINEAR sum is in its register at the end
    of stage 1. No combinational path from inputs to outputs.
    """

    def __init__(self, p: Params) -> None:
        self.p = p
        super().__init__(
            {
                "codes": In(data.ArrayLayout(4, BLOCK)),
                "scale": In(8),
                "x": In(Operand),
                "embed_code": In(4),
                "embed_scale": In(8),
                "control": In(RowControl),
                "t_we": In(data.ArrayLayout(p.groups, T_REGS)),
                "p_we": In(p.groups),
                "p_read": In(range(p.groups)),
                "consts": In(CONSTS),
                "history": In(HISTORY),
                "history_next": Out(HISTORY),
                "y": Out(signed(VEC.width)),
                "t": Out(data.ArrayLayout(data.ArrayLayout(VEC.width, p.groups), T_REGS)),
                "prefix": Out(data.ArrayLayout(signed(VEC.width), p.groups)),
            }
        )

    def body(self, platform: object) -> Module:
        m = Module()
        model = self.p.model
        m.submodules.lane = lane = Lane(int(model.activation_situ_linear_beta), model.gate_lower_bound)
        y = self._accumulate(m)
        m.d.comb += [
            lane.y.eq(self.y),
            lane.consts.eq(self.consts),
            lane.history.eq(self.history),
            lane.control.eq(self.control.lane),
            self.history_next.eq(lane.history_next),
        ]
        self._write(m, y, lane.out)
        return m

    def _accumulate(self, m: Module) -> Signal:
        """Stage 1: add a block; returns the saturated sum, which also stays for stage 2 when the group is complete."""
        c = self.control
        codes = [Mux(c.embed, self.embed_code, self.codes[0]), *(self.codes[i] for i in range(1, BLOCK))]
        shift = _shift_of(m, self.x.shift, Mux(c.embed, self.embed_scale, self.scale))
        value, one = scaled(m, dot(m, codes, self.x), shift, c.valid)
        total, acc = Signal(signed(SUM_BITS)), Signal(signed(SUM_BITS), reset_less=True)
        before = Mux(c.first, 0, acc)
        # the rounding bit is the carry in
        m.d.comb += total.eq((Cat(Const(1, 1), before).as_signed() + Cat(one, value).as_signed()) >> 1)
        y = saturate(m, total, VEC, "y_next")
        m.d.sync += acc.eq(Mux(c.last, y, total))
        m.d.comb += self.y.eq(acc)
        return y

    def _write(self, m: Module, fast: Value, slow: Value) -> None:
        """T and P of this row's lanes. P takes row sums only (LINEAR and EMBED)."""
        c = self.control
        result = Signal(signed(VEC.width))
        m.d.comb += result.eq(Mux(c.slow, slow, fast))
        for reg in range(T_REGS):
            for group in range(self.p.groups):
                cell = Signal(VEC.width, name=f"t{reg}_{group}", reset_less=True)
                with m.If(self.t_we[reg][group]):
                    m.d.sync += cell.eq(result)
                m.d.comb += self.t[reg][group].eq(cell)
        prefix = [Signal(signed(VEC.width), name=f"p_{group}", reset_less=True) for group in range(self.p.groups)]
        before = Signal(signed(VEC.width))
        m.d.comb += before.eq(Mux(c.add, Cat(*prefix).word_select(self.p_read, VEC.width), 0))
        summed = saturate(m, before + fast, VEC, "p_next")
        for group, cell in enumerate(prefix):
            with m.If(self.p_we[group]):
                m.d.sync += cell.eq(summed)
            m.d.comb += self.prefix[group].eq(cell)
