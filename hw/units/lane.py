"""Lane functions of one array row: conv + SiLU, SiTU-GLU, KDA decay and the gate's sigmoid, pipelined."""

import math

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from golden.fixed import functions, lanes
from golden.fixed.numbers import CONST, RATE, SIG, UNIT, VEC
from hw.arith.basic import absolute, round_shift, round_shift_by, saturate
from hw.params import LANE_CONSTS

ONE = 1 << SIG.frac
CONSTS = data.ArrayLayout(CONST.width, LANE_CONSTS)
HISTORY = data.ArrayLayout(signed(VEC.width), 3)
EXP2_ROW = len(functions.SIGMOID.table)  # the tables lie one behind the other
INDEX_BITS = 7
DX_BITS = functions.SIGMOID.dx_bits


class LaneControl(data.Struct):
    """What each pipeline stage of a lane does, one bit per choice; stage 1 is the cycle of the group's last word.

    Stages 2, 3 and 4 hold a group's function only while the group is in that stage; a stage with no bit set passes
    its sum through (LINEAR and GATE).
    """

    conv1: 1  # stage 1: products of the two oldest taps
    conv2: 1  # stage 2: conv, decay or the SiTU up branch
    decay2: 1
    up2: 1
    conv3: 1  # stage 3: conv, SiTU gate, SiTU up, decay
    situ3: 1
    up3: 1
    decay3: 1
    product4: 1  # stage 4: result is the product (conv and SiTU up)
    up4: 1
    situ4: 1
    decay4: 1
    clear: 1  # history reads as 0 (stages 1 and 2)


def _quadratic(m: Module, rows: list[tuple[int, int, int]], index: Value, dx: Value, name: str) -> Value:
    """golden Quadratic on the rows of one or two tables with a common dx scale."""
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
    slope = c1 + round_shift(c2 * dx, DX_BITS)
    value = Signal(signed(SIG.width + 2), name=f"{name}_value")
    m.d.comb += value.eq(round_shift(c0 + round_shift(slope * dx, DX_BITS), functions.GUARD))
    return value


def _segment(m: Module, x: Value, name: str) -> tuple[Value, Value, Value]:
    """(table row, dx, outside) of sigmoid's argument x, signed with 14 fraction bits."""
    frac = functions.SIGMOID_IN_FRAC
    a = Signal(len(x), name=f"{name}_abs")
    m.d.comb += a.eq(absolute(x))
    inside = a[: frac + 4]
    index, dx = Signal(INDEX_BITS, name=f"{name}_row"), Signal(DX_BITS, name=f"{name}_dx")
    with m.If(~inside[frac + 2 :].any()):
        m.d.comb += [index.eq(inside[10:]), dx.eq(inside[:10] << 3)]
    with m.Elif(~inside[frac + 3]):
        m.d.comb += [index.eq(64 + inside[11 : frac + 2]), dx.eq(inside[:11] << 2)]
    with m.Else():
        m.d.comb += [index.eq(96 + inside[13 : frac + 3]), dx.eq(inside[:13])]
    outside = a[frac + 4 :].any() if len(a) > frac + 4 else Const(0)
    return index, dx, outside


def _finish_sigmoid(m: Module, value: Value, outside: Value, negative: Value, name: str) -> Signal:
    """Clip to one, mirror for negative arguments."""
    y, out = Signal(SIG.width, name=f"{name}_pos"), Signal(SIG.width, name=name)
    m.d.comb += y.eq(Mux(outside | (value > ONE), ONE, value))
    m.d.comb += out.eq(Mux(negative, ONE - y, y))
    return out


class Lane(wiring.Component):
    """Slow functions of one row: golden.fixed.lanes gate, conv then silu, situ and decay.

    Ports
    -----
    y: the row sum (VEC), complete in stage 2.
    consts, history: outputs of the lane-constant and conv-history memories, valid in stages 1 and 2 of a CONV group
    (DECAY: constants in stage 2); history is oldest first.
    history_next: registered (h1, h2, newest), valid in stage 3 of a CONV group.
    control: see LaneControl.
    out: the result in stage 4: VEC, SIG or UNIT, zero-extended.

    Throughput: one group per cycle; a CONV group uses both multipliers in stages 1 and 2, a DECAY group the second
    table unit in stage 4 (a SiTU gate uses it in stage 3): the array unit keeps these apart.
    Combinational paths: none from an input to ``out`` except ``control`` (stage 4 bits); none to history_next.
    """

    def __init__(self, linear_beta: int, lower_bound: float) -> None:
        self.linear_beta = linear_beta
        self.lower_bound = lower_bound
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
        a = self._stage_2(m)
        sigma, operand, value = self._stage_3(m, a)
        self._stage_4(m, sigma, operand, value)
        return m

    def _stage_2(self, m: Module) -> Signal:
        """Conv sum, decay's rate * (f + dt), SiTU's 2 u / linear_beta; registers sigmoid's argument (14 fraction
        bits)."""
        c, y = self.control, self.y
        old = [Signal(signed(VEC.width), name=f"h{i}") for i in range(3)]
        m.d.comb += [h.eq(Mux(c.clear, 0, self.history[i])) for i, h in enumerate(old)]
        taps = [self.consts[i].as_signed() for i in range(LANE_CONSTS)]
        dt, rate = taps[0], self.consts[1]
        factor_bits = max(RATE.width + 1, self.up_factor.bit_length()) + 1
        a0, b0 = Signal(signed(VEC.width)), Signal(signed(RATE.width + 1))
        a1, b1 = Signal(signed(VEC.width)), Signal(signed(factor_bits))
        # decay: twice the product, so that it is rounded at the bit where conv is
        assert RATE.frac + 1 == CONST.frac
        with m.If(c.conv1):
            m.d.comb += [a0.eq(old[0]), b0.eq(taps[0]), a1.eq(old[1]), b1.eq(taps[1])]
        with m.Else():
            m.d.comb += [a0.eq(Mux(c.decay2, dt << 3, old[2])), a1.eq(y)]
            m.d.comb += b0.eq(Mux(c.decay2, rate, Mux(c.conv2, taps[2], 0)))
            m.d.comb += b1.eq(Mux(c.decay2, rate << 1, Mux(c.up2, self.up_factor, taps[3])))
        partial = Signal(signed(VEC.width + CONST.width + 1), reset_less=True)
        total = Signal(signed(VEC.width + factor_bits))
        m.d.comb += total.eq(a0 * b0 + a1 * b1 + Mux(c.conv2, partial, 0))
        m.d.sync += partial.eq(total)
        z = saturate(m, round_shift(total, CONST.frac), VEC, "z")
        a = Signal(signed(VEC.width + 1), reset_less=True)
        wide = Mux(c.conv2 | c.decay2, z, y)
        m.d.sync += a.eq(Mux(c.up2, round_shift(total, lanes.TANH_SCALE_FRAC - 1), wide << 1))
        m.d.sync += Cat(*self.history_next).eq(Cat(old[1], old[2], y))
        return a

    def _stage_3(self, m: Module, a: Signal) -> tuple[Signal, Signal, Value]:
        """Sigmoids: registers sigmoid(a) and the second operand of stage 4 (conv: z, SiTU: tanh, decay: exponent);
        the second table unit's value, which in stage 4 of a decay is that of 2**-t."""
        c = self.control
        index, dx, outside = _segment(m, a, "a")
        value = _quadratic(m, list(functions.SIGMOID.table), index, dx, "a")
        sigma_a = _finish_sigmoid(m, value, outside, a[-1], "sigma_a")
        sigma = Signal(SIG.width, reset_less=True)
        operand = Signal(signed(VEC.width), reset_less=True)
        m.d.sync += sigma.eq(sigma_a)

        half = a[1:].as_signed()  # 14 fraction bits: half of g
        index_b, dx_b, outside_b = _segment(m, half, "b")
        t = operand[: UNIT.frac + 3]
        row, row_dx = Signal(INDEX_BITS), Signal(DX_BITS)
        m.d.comb += row.eq(Mux(c.decay4, EXP2_ROW + t[12:16], index_b))
        m.d.comb += row_dx.eq(Mux(c.decay4, t[:12] << 1, dx_b))
        both = list(functions.SIGMOID.table) + list(functions.EXP2.table)
        value_b = _quadratic(m, both, row, row_dx, "b")
        sigma_b = _finish_sigmoid(m, value_b, outside_b, half[-1], "sigma_b")

        tanh_up = (sigma_a << 1) - ONE
        up = round_shift(self.linear_beta * tanh_up, SIG.frac - 16)
        exponent = round_shift(sigma_a * Const(lanes.decay_factor(self.lower_bound)), SIG.frac)
        with m.If(c.up3):
            m.d.sync += operand.eq(up << 1)
        with m.Elif(c.situ3):
            m.d.sync += operand.eq((sigma_b << 1) - ONE)
        with m.Elif(c.decay3):
            m.d.sync += operand.eq(exponent)
        with m.Else():
            m.d.sync += operand.eq(half)
        return sigma, operand, value_b

    def _stage_4(self, m: Module, sigma: Signal, operand: Signal, value: Value) -> None:
        """Products and 2**-t; selects the result."""
        c = self.control
        phi = Signal(signed(20), reset_less=True)
        product = Signal(signed(VEC.width + SIG.width + 1))
        m.d.comb += product.eq(operand * Mux(c.up4, phi, sigma))
        with m.If(c.situ4):
            m.d.sync += phi.eq(round_shift(product, 2 * SIG.frac - 2 - 16))
        mantissa = Signal(functions.EXP2.out_frac + 1)
        m.d.comb += mantissa.eq(value)
        shift = Signal(4)
        m.d.comb += shift.eq(operand[UNIT.frac : UNIT.frac + 3] + (functions.EXP2.out_frac - UNIT.frac))
        alpha = round_shift_by(m, mantissa, shift, 9, "alpha")
        with m.If(c.product4):
            m.d.comb += self.out.eq(round_shift(product, SIG.frac))
        with m.Elif(c.decay4):
            m.d.comb += self.out.eq(alpha)
        with m.Else():
            m.d.comb += self.out.eq(sigma)
