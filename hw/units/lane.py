"""Lane functions of one array row: conv + SiLU, SiTU-GLU, KDA decay and the gate's sigmoid, pipelined."""

import math

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from golden.fixed import functions, lanes
from golden.fixed.numbers import CONST, RATE, SIG, UNIT, VEC
from hw.arith.basic import absolute, round_shift_by, saturate
from hw.arith.multiply import as_signed, multiply_add
from hw.params import LANE_CONSTS

ONE = 1 << SIG.frac
CONSTS = data.ArrayLayout(CONST.width, LANE_CONSTS)
HISTORY = data.ArrayLayout(signed(VEC.width), 3)
EXP2_ROW = len(functions.SIGMOID.table)  # the tables lie one behind the other
INDEX_BITS = 7
DX_BITS = functions.SIGMOID.dx_bits
SUM_BITS = SIG.width + functions.GUARD  # of a table function before its last rounding
UP_SHIFT = lanes.TANH_SCALE_FRAC - 1
PHI_SHIFT = 2 * SIG.frac - 2 - 16


class LaneControl(data.Struct):
    """What each pipeline stage of a lane does, one bit per choice; stage 1 is the cycle of the group's last word.

    A bit of stage n is 1 only in the cycle in which a group of that function is in stage n; with none set a stage
    passes its value on (GATE).
    """

    conv1: 1  # products of the two oldest taps
    conv2: 1
    decay2: 1
    up2: 1  # SiTU's second branch
    situ3: 1  # SiTU's first branch
    up3: 1
    decay3: 1
    product4: 1  # the result is the product: conv and SiTU up
    situ4: 1
    up4: 1
    decay5: 1
    clear: 1  # the history reads as 0 (stages 1 and 2)


def _quadratic(m: Module, rows: list[tuple[int, int, int]], index: Value, dx: Value, name: str) -> Signal:
    """golden's Quadratic on the rows of one or two tables, before the last rounding (GUARD more fraction bits).

    Each rounded shift is a multiply-add with half an ulp in its addend.
    """
    shapes = []
    for column in zip(*rows, strict=True):
        low, high = min(column), max(column)
        bits = max(high.bit_length(), (~low).bit_length() if low < 0 else 0)
        shapes.append(signed(bits + 1) if low < 0 else unsigned(bits))
    c0, c1, c2 = (Signal(shape, name=f"{name}_c{i}") for i, shape in enumerate(shapes))
    with m.Switch(index):
        for row, values in enumerate(rows):
            with m.Case(row):
                m.d.comb += [c.eq(v) for c, v in zip((c0, c1, c2), values, strict=True)]
        with m.Default():  # an unused index repeats the last row
            m.d.comb += [c.eq(v) for c, v in zip((c0, c1, c2), rows[-1], strict=True)]
    half = Const(1 << (DX_BITS - 1), DX_BITS)
    slope_bits = max(len(c1), len(c2)) + 1
    start = Cat(half, as_signed(c1)).as_signed()
    slope = multiply_add(m, c2, dx, start, DX_BITS + slope_bits, f"{name}_slope") >> DX_BITS
    return (multiply_add(m, slope, dx, Cat(half, c0), DX_BITS + SUM_BITS, f"{name}_sum") >> DX_BITS)[:SUM_BITS]


def _segment(m: Module, a: Value, name: str) -> tuple[Value, Value, Value]:
    """(table row, dx, outside) of sigmoid's argument, a magnitude with 14 fraction bits."""
    frac = functions.SIGMOID_IN_FRAC
    inside = a[: frac + 4]
    index, dx = Signal(INDEX_BITS, name=f"{name}_row"), Signal(DX_BITS, name=f"{name}_dx")
    with m.If(~inside[frac + 2 :].any()):
        m.d.comb += [index.eq(inside[10:]), dx.eq(inside[:10] << 3)]
    with m.Elif(~inside[frac + 3]):
        m.d.comb += [index.eq(64 + inside[11 : frac + 2]), dx.eq(inside[:11] << 2)]
    with m.Else():
        m.d.comb += [index.eq(96 + inside[13 : frac + 3]), dx.eq(inside[:13])]
    return index, dx, a[frac + 4 :].any()


def _finish_sigmoid(m: Module, total: Value, outside: Value, negative: Value, name: str) -> Signal:
    """Last rounding, mirrored for negative arguments: 1 - round(total) is round_down(8 - total), by complement.

    ``total`` of the sigmoid table is below 2**23 (8 times one) at every argument, so that one is never passed.
    """
    bits = SUM_BITS - 1
    out = Signal(SIG.width, name=name)
    mirrored = total[:bits] ^ negative.replicate(bits)
    rounded = (mirrored + (1 << (functions.GUARD - 1))) >> functions.GUARD
    m.d.comb += out.eq(Mux(outside, Mux(negative, 0, ONE), rounded))
    return out


class Lane(wiring.Component):
    """Slow functions of one row: golden.fixed.lanes gate, conv then silu, situ and decay.

    Ports
    -----
    y: the row sum (VEC), in stage 2.
    consts, history: outputs of the lane-constant and conv-history memories, valid in stages 1 and 2 of a CONV group
    (DECAY: constants in stage 2); history is oldest first.
    history_next: registered (h1, h2, newest), valid in stage 3 of a CONV group.
    control: see LaneControl.
    out: the result: in stage 5 of DECAY, in stage 4 of the others; VEC, SIG or UNIT, zero-extended.

    Throughput: one group per cycle; a CONV group uses both multipliers in stages 1 and 2, a DECAY group the second
    table unit in stage 5 (a SiTU gate uses it in stage 3): the array unit keeps these apart.
    Combinational paths: ``control`` (stage 4 and 5 bits) to ``out``.
    """

    def __init__(self, linear_beta: int, lower_bound: float) -> None:
        self.linear_beta = linear_beta
        self.decay_factor = lanes.decay_factor(lower_bound)
        self.up_factor = math.floor(2.0 / linear_beta * 2**lanes.TANH_SCALE_FRAC + 0.5)
        super().__init__(
            {
                "y": In(signed(VEC.width)),
                "consts": In(CONSTS),
                "history": In(HISTORY),
                "history_next": Out(HISTORY),
                "control": In(LaneControl),
                "out": Out(VEC.width),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        argument = self._stage_2(m)
        exponent = Signal(UNIT.frac + 3, reset_less=True)
        sigma, operand, power = self._stage_3(m, argument, exponent)
        self._stage_4(m, sigma, operand, power, exponent)
        return m

    def _stage_2(self, m: Module) -> Signal:
        """Conv sum, decay's rate * (f + dt), SiTU's 2 u / linear_beta; registers sigmoid's argument (14 fraction
        bits)."""
        c, y = self.control, self.y
        old = [Signal(signed(VEC.width), name=f"h{i}") for i in range(3)]
        m.d.comb += [h.eq(Mux(c.clear, 0, self.history[i])) for i, h in enumerate(old)]
        taps = [self.consts[i].as_signed() for i in range(LANE_CONSTS)]
        rate = self.consts[1]
        factor_bits = max(RATE.width + 1, self.up_factor.bit_length()) + 1
        a0, b0 = Signal(signed(VEC.width)), Signal(signed(CONST.width))
        a1, b1 = Signal(signed(VEC.width)), Signal(signed(factor_bits))
        # decay: (dt << 2) * rate + f * rate, doubled so that it is rounded at the bit where conv is
        assert RATE.frac + 1 == CONST.frac
        with m.If(c.conv1):
            m.d.comb += [a0.eq(old[0]), b0.eq(taps[0]), a1.eq(old[1]), b1.eq(taps[1])]
        with m.Else():
            m.d.comb += [a0.eq(Mux(c.decay2, rate << 3, old[2])), a1.eq(y)]
            m.d.comb += b0.eq(Mux(c.decay2, taps[0], Mux(c.conv2, taps[2], 0)))
            m.d.comb += b1.eq(Mux(c.decay2, rate << 1, Mux(c.up2, self.up_factor, taps[3])))
        partial = Signal(signed(VEC.width + CONST.width + 1), reset_less=True)
        width = VEC.width + factor_bits
        half = Mux(c.conv1, 0, Mux(c.up2, 1 << (UP_SHIFT - 1), 1 << (CONST.frac - 1)))
        addend = Signal(signed(width))
        m.d.comb += addend.eq(Mux(c.conv2, partial, 0) + half)
        total = multiply_add(m, a1, b1, multiply_add(m, a0, b0, addend, width, "first"), width, "total")
        m.d.sync += partial.eq(total)
        z = saturate(m, total >> CONST.frac, VEC, "z")
        argument = Signal(signed(VEC.width + 1), reset_less=True)
        m.d.sync += argument.eq(Mux(c.up2, total >> UP_SHIFT, Mux(c.conv2 | c.decay2, z, y) << 1))
        m.d.sync += Cat(*self.history_next).eq(Cat(old[1], old[2], y))
        return argument

    def _stage_3(self, m: Module, x: Signal, exponent: Signal) -> tuple[Signal, Signal, Value]:
        """Sigmoids; registers sigmoid(x) and what stage 4 multiplies with it: conv z, SiTU 2 sigmoid(x / 2) - 1,
        decay's factor, or SiTU up's tanh alone. Returns these and, from ``exponent``, the mantissa of decay's 2**-t.
        """
        c = self.control
        magnitude = Signal(len(x))
        m.d.comb += magnitude.eq(absolute(x))
        row, dx, outside = _segment(m, magnitude, "a")
        total = _quadratic(m, list(functions.SIGMOID.table), row, dx, "a")
        sigma_x = _finish_sigmoid(m, total, outside, x[-1], "sigma_x")

        row, dx, outside = _segment(m, magnitude[1:], "b")
        row_b, dx_b = Signal(INDEX_BITS), Signal(DX_BITS)
        m.d.comb += row_b.eq(Mux(c.decay5, EXP2_ROW + exponent[12:16], row))
        m.d.comb += dx_b.eq(Mux(c.decay5, exponent[:12] << 1, dx))
        both = list(functions.SIGMOID.table) + list(functions.EXP2.table)
        total_b = _quadratic(m, both, row_b, dx_b, "b")
        sigma_half = _finish_sigmoid(m, total_b, outside, x[-1], "sigma_half")
        power = (total_b + (1 << (functions.GUARD - 1))) >> functions.GUARD

        sigma, operand = Signal(SIG.width, reset_less=True), Signal(signed(VEC.width), reset_less=True)
        m.d.sync += sigma.eq(sigma_x)
        tanh_up = (sigma_x << 1) - ONE
        up_shift = SIG.frac - 16
        up = (self.linear_beta * tanh_up + (1 << (up_shift - 1))) >> up_shift
        with m.If(c.up3):
            m.d.sync += operand.eq(up << 1)  # phi * up is rounded one bit lower than z * sigma
        with m.Elif(c.situ3):
            m.d.sync += operand.eq((sigma_half << 1) - ONE)
        with m.Elif(c.decay3):
            m.d.sync += operand.eq(self.decay_factor)
        with m.Else():
            m.d.sync += operand.eq(x[1:].as_signed())
        return sigma, operand, power

    def _stage_4(self, m: Module, sigma: Signal, operand: Signal, power: Value, exponent: Signal) -> None:
        """The product, and for decay (stage 5) 2**-t; selects the result."""
        c = self.control
        phi = Signal(signed(20), reset_less=True)
        other = Signal(signed(SIG.width + 1))
        m.d.comb += other.eq(Mux(c.up4, phi, sigma))
        half = Mux(c.situ4, 1 << (PHI_SHIFT - 1), 1 << (SIG.frac - 1))
        product = multiply_add(m, operand, other, half, VEC.width + SIG.width + 1, "product")
        result = product >> SIG.frac
        m.d.sync += exponent.eq(result)
        with m.If(c.situ4):
            m.d.sync += phi.eq(product >> PHI_SHIFT)
        mantissa = Signal(functions.EXP2.out_frac + 1)
        shift = Signal(4)
        m.d.comb += mantissa.eq(power)
        m.d.comb += shift.eq(exponent[UNIT.frac :] + (functions.EXP2.out_frac - UNIT.frac))
        alpha = round_shift_by(m, mantissa, shift, 9, "alpha")
        with m.If(c.product4):
            m.d.comb += self.out.eq(result)
        with m.Elif(c.decay5):
            m.d.comb += self.out.eq(alpha)
        with m.Else():
            m.d.comb += self.out.eq(sigma)
