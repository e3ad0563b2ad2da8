"""Lane functions of one array row: conv + SiLU, SiTU-GLU, KDA decay and the gate's sigmoid, pipelined."""

import math

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from golden.fixed import functions, lanes
from golden.fixed.numbers import CONST, RATE, SIG, UNIT, VEC
from hw.arith.basic import round_shift_by, saturate
from hw.arith.functions import sigmoid_segment
from hw.arith.multiply import as_signed, multiply_add
from hw.block import Block
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
    conv3: 1
    situ3: 1  # SiTU's first branch
    up3: 1
    decay3: 1
    decay4: 1
    clear: 1  # the history reads as 0 (stages 1 and 2)


class Segment(data.Struct):
    """Where on the sigmoid an argument lies: coefficients and offset of its segment."""

    c0: 23
    c1: 18
    c2: signed(12)
    dx: DX_BITS
    outside: 1
    negative: 1


def _table(m: Module, rows: list[tuple[int, int, int]], index: Value, name: str) -> list[Signal]:
    """Coefficients c0, c1, c2 of a row of one or two tables."""
    coefficients = []
    for i, column in enumerate(zip(*rows, strict=True)):
        low, high = min(column), max(column)
        bits = max(high.bit_length(), (~low).bit_length() if low < 0 else 0)
        coefficients.append(Signal(signed(bits + 1) if low < 0 else unsigned(bits), name=f"{name}_c{i}"))
    with m.Switch(index):
        for row, values in enumerate(rows):
            with m.Case(row):
                m.d.comb += [c.eq(v) for c, v in zip(coefficients, values, strict=True)]
        with m.Default():  # an unused index repeats the last row
            m.d.comb += [c.eq(v) for c, v in zip(coefficients, rows[-1], strict=True)]
    return coefficients


def _quadratic(m: Module, coefficients: list[Value], dx: Value, name: str) -> Value:
    """golden's Quadratic before its last rounding (GUARD more fraction bits).

    Each rounded shift is a multiply-add with half an ulp in its addend.
    """
    c0, c1, c2 = coefficients
    half = Const(1 << (DX_BITS - 1), DX_BITS)
    slope_bits = max(len(c1), len(c2)) + 1
    start = Cat(half, as_signed(c1)).as_signed()
    slope = multiply_add(m, c2, dx, start, DX_BITS + slope_bits, f"{name}_slope") >> DX_BITS
    return (multiply_add(m, slope, dx, Cat(half, c0), DX_BITS + SUM_BITS, f"{name}_sum") >> DX_BITS)[:SUM_BITS]


def _mirror(total: Value, negative: Value) -> tuple[Value, Value]:
    """(value, one to add): sigmoid of the sign wanted, inside the tables, from the sum of the positive one.

    1 - round(total) is round_down(8 - total), by complement. ``total`` of the sigmoid table is below 2**23 (8 times
    one) at every argument, so that one is never passed.
    """
    bits = SUM_BITS - 1
    mirrored = total[:bits] ^ negative.replicate(bits)
    return mirrored[functions.GUARD :], mirrored[functions.GUARD - 1]


def _finish_sigmoid(m: Module, total: Value, outside: Value, negative: Value, name: str) -> Signal:
    """Last rounding and both ends."""
    value, one = _mirror(total, negative)
    out = Signal(SIG.width, name=name)
    m.d.comb += out.eq(Mux(outside, Mux(negative, 0, ONE), value + one))
    return out


class Lane(Block):
    """Slow functions of one row: golden.fixed.lanes gate, conv then silu, situ and decay.

    Ports
    -----
    y: the row sum (VEC), in stage 2.
    consts, history: outputs of the lane-constant and conv-history memories, valid in stages 1 and 2 of a CONV group
    (DECAY: constants in stage 2); history is oldest first.
    history_next: registered (h1, h2, newest), valid in stage 3 of a CONV group.
    control: see LaneControl.
    out: the result: in stage 4 of DECAY, in stage 3 of the others; VEC, SIG or UNIT, zero-extended.

    Throughput: one group per cycle; a CONV group uses both multipliers in stages 1 and 2, a DECAY group the second
    table unit in stage 4 (a SiTU gate uses it in stage 2): the array unit keeps these apart.
    Combinational paths: ``control`` (stage 3 and 4 bits) to ``out``.
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

    def body(self, platform: object) -> Module:
        m = Module()
        segment, operand = Signal(Segment, reset_less=True), Signal(signed(VEC.width), reset_less=True)
        exponent = Signal(UNIT.frac + 3, reset_less=True)
        z = self._multiply_add(m, segment)
        tanh, power = self._second_table(m, exponent)
        m.d.sync += operand.eq(Mux(self.control.conv2, z, tanh))
        sigma, product = self._stage_3(m, segment, operand, exponent)
        self._result(m, sigma, product, self._power_of_two(m, power, exponent))
        return m

    def _multiply_add(self, m: Module, segment: Signal) -> Signal:
        """Stage 2: conv sum, decay's rate * (f + dt), SiTU's 2 u / linear_beta; registers the sigmoid's segment there
        and returns the conv sum."""
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
        history = Signal(HISTORY, reset_less=True)
        m.d.sync += Cat(*history).eq(Cat(old[1], old[2], y))
        m.d.comb += self.history_next.eq(history)

        z = saturate(m, total >> CONST.frac, VEC, "z")
        argument = Signal(signed(VEC.width + 1))  # 14 fraction bits
        m.d.comb += argument.eq(Mux(c.up2, total >> UP_SHIFT, Mux(c.conv2 | c.decay2, z, y) << 1))
        row, dx, outside = sigmoid_segment(m, argument, "a")
        coefficients = _table(m, list(functions.SIGMOID.table), row, "a")
        fields = [segment.c0, segment.c1, segment.c2, segment.dx, segment.outside, segment.negative]
        values = [*coefficients, dx, outside, argument[-1]]
        m.d.sync += [field.eq(value) for field, value in zip(fields, values, strict=True)]
        return z

    def _second_table(self, m: Module, exponent: Signal) -> tuple[Value, Value]:
        """Stage 2: 2 sigmoid(y / 2) - 1, tanh(y / 4) of SiTU's first branch. Or stage 4: mantissa of 2**-exponent."""
        row, dx, outside = sigmoid_segment(m, self.y, "b")
        decay = self.control.decay4
        row_b, dx_b = Signal(INDEX_BITS), Signal(DX_BITS)
        m.d.comb += row_b.eq(Mux(decay, EXP2_ROW + exponent[12:16], row))
        m.d.comb += dx_b.eq(Mux(decay, exponent[:12] << 1, dx))
        both = list(functions.SIGMOID.table) + list(functions.EXP2.table)
        total = _quadratic(m, _table(m, both, row_b, "b"), dx_b, "b")
        sigma = _finish_sigmoid(m, total, outside, self.y[-1], "sigma_half")
        return (sigma << 1) - ONE, (total + (1 << (functions.GUARD - 1))) >> functions.GUARD

    def _stage_3(self, m: Module, segment: Signal, operand: Signal, exponent: Signal) -> tuple[Value, Value]:
        """Sigmoid and the product of every function: sigmoid * z (conv), * tanh (SiTU, kept as phi), * decay's factor
        (kept as exponent), or SiTU's tanh of the second branch * phi."""
        c = self.control
        total = _quadratic(m, [segment.c0, segment.c1, segment.c2], segment.dx, "a")
        sigma = _finish_sigmoid(m, total, segment.outside, segment.negative, "sigma")
        phi = Signal(signed(20), reset_less=True)
        late, early = Signal(signed(VEC.width)), Signal(signed(VEC.width))
        # phi * up is rounded one bit lower than z * sigma
        m.d.comb += late.eq(Mux(c.up3, self._up(m, total, segment) << 1, sigma))
        m.d.comb += early.eq(Mux(c.up3, phi, Mux(c.decay3, self.decay_factor, operand)))
        half = Mux(c.situ3, 1 << (PHI_SHIFT - 1), 1 << (SIG.frac - 1))
        product = multiply_add(m, late, early, half, VEC.width + SIG.width + 1, "product")
        with m.If(c.situ3):
            m.d.sync += phi.eq(product >> PHI_SHIFT)
        m.d.sync += exponent.eq(product >> SIG.frac)
        return sigma, product >> SIG.frac

    def _up(self, m: Module, total: Value, segment: Signal) -> Signal:
        """golden's situ_linear from the sigmoid's sum, without waiting for its rounding."""
        shift = SIG.frac - 16
        value, one = _mirror(total, segment.negative)
        limit = self.linear_beta << 16
        twice = 2 * self.linear_beta
        inside, up = Signal(signed(SIG.width + 7)), Signal(signed(23), name="up")
        start = (1 << (shift - 1)) - self.linear_beta * ONE
        m.d.comb += inside.eq((value * twice + Mux(one, twice + start, start)) >> shift)
        m.d.comb += up.eq(Mux(segment.outside, Mux(segment.negative, -limit, limit), inside))
        return up

    def _power_of_two(self, m: Module, mantissa: Value, exponent: Signal) -> Signal:
        """Stage 4 of decay: 2**-exponent as UNIT."""
        short, shift = Signal(functions.EXP2.out_frac + 1), Signal(4)
        m.d.comb += short.eq(mantissa)
        m.d.comb += shift.eq(exponent[UNIT.frac :] + (functions.EXP2.out_frac - UNIT.frac))
        return round_shift_by(m, short, shift, 9, "alpha")

    def _result(self, m: Module, sigma: Value, product: Value, power: Value) -> None:
        """The result of the group that ends here."""
        c = self.control
        with m.If(c.decay4):
            m.d.comb += self.out.eq(power)
        with m.Elif(c.conv3 | c.up3):
            m.d.comb += self.out.eq(product)
        with m.Else():
            m.d.comb += self.out.eq(sigma)
