"""Parts of hw.units.kda (Amaranth's simulator); the whole engine is tested in tests/cocotb/test_kda.py."""

import numpy as np
from amaranth.hdl import Module, Signal, signed
from amaranth.sim import Simulator

from golden.fixed import kda as golden
from golden.fixed.numbers import KEY, NRM, STATE, UNIT, VEC, round_shift
from hw.params import HEAD
from hw.units.kda import DIGITS, Digits, KdaLane, digits_times, recode

LIMIT = 5 << 15  # 1.25 * 2**17
CORNERS = [0, 1, -1, (1 << 17) - 1, 1 << 17, -(1 << 17), -(1 << 17) - 1, LIMIT - 1, -LIMIT, 0x15555, 0xAAAA, -0x15555]


def digits_of(value):
    """Raw bits of ``Digits``, from the definition: least digit first, by remainder."""
    one = two = neg = 0
    for i in range(DIGITS):
        digit = (value & 3) - 4 * (value & 3 > 1) if i < DIGITS - 1 else value
        assert -2 <= digit <= 2
        one |= (abs(digit) == 1) << i
        two |= (abs(digit) == 2) << i
        neg |= (digit < 0) << i
        value = (value - digit) >> 2
    return one | two << DIGITS | neg << 2 * DIGITS


def test_recode_and_product():
    m = Module()
    value, x, extra = Signal(signed(19)), Signal(signed(24)), Signal()
    digits = Signal(Digits)
    m.d.comb += digits.eq(recode(m, value, "value"))
    y = digits_times(m, digits, x, Signal(signed(20), init=-12345), {3: extra}, 44, "y")
    rng = np.random.default_rng(5)
    values = [*CORNERS, *(int(v) for v in rng.integers(-LIMIT, LIMIT, 150))]
    xs = [VEC.min, VEC.max, 0, -1, *(int(v) for v in rng.integers(VEC.min, VEC.max, 3))]

    async def bench(ctx):
        for v in values:
            ctx.set(value, v)
            for w in xs:
                ctx.set(x, w)
                ctx.set(extra, w & 1)
                await ctx.delay(1e-9)
                assert ctx.get(y) == v * w - 12345 + 8 * (w & 1), (v, w)
            sum_of_digits = sum(
                4**i * (ctx.get(digits.one[i]) + 2 * ctx.get(digits.two[i])) * (1 - 2 * ctx.get(digits.neg[i]))
                for i in range(DIGITS)
            )
            assert sum_of_digits == v

    sim = Simulator(m)
    sim.add_testbench(bench)
    sim.run()


def set_digits(ctx, port, value):
    raw = digits_of(int(value))
    for i, part in enumerate((port.one, port.two, port.neg)):
        ctx.set(part, raw >> (DIGITS * i) & ((1 << DIGITS) - 1))


def test_lane():
    """One value column through SCAN, a wait, READ and WRITE, twice with other operands."""
    rng = np.random.default_rng(0)
    dut = KdaLane()

    async def token(ctx):
        x = rng.standard_normal((2, HEAD))
        k, q = np.floor(x / np.linalg.norm(x, axis=-1, keepdims=True) * 2**KEY.frac + 0.5).astype(np.int64)
        one = 1 << UNIT.frac
        state = rng.integers(STATE.min, STATE.max + 1, (HEAD, 1)) >> rng.integers(0, 20, (HEAD, 1))
        v = rng.integers(VEC.min, VEC.max + 1, 1) >> rng.integers(0, 20)
        alpha, beta = np.minimum(rng.integers(0, one + 9000, HEAD), one), rng.integers(0, one + 1)
        expected = golden.state_update(state, k, q, v, alpha, beta)
        for row in range(HEAD):
            ctx.set(dut.control.first, row == 0)
            for port, values in ((dut.alpha, alpha), (dut.k, k), (dut.q, q)):
                set_digits(ctx, port, values[row])
            ctx.set(dut.state, int(state[row, 0]) & 0xFFFFFF)
            await ctx.tick()
        ctx.set(dut.control.first, 0)
        set_digits(ctx, dut.k, 0)
        set_digits(ctx, dut.q, 0)
        await ctx.tick().repeat(3)
        ctx.set(dut.control.read, 1)
        ctx.set(dut.v, int(v[0]) & 0xFFFFFF)
        qk = round_shift((q * k).sum(), KEY.frac)
        set_digits(ctx, dut.q, round_shift(beta * qk, UNIT.frac))
        await ctx.tick()
        ctx.set(dut.control.read, 0)
        ctx.set(dut.v, 0)
        set_digits(ctx, dut.q, 0)
        for row in range(HEAD):
            set_digits(ctx, dut.alpha, rng.integers(0, one))  # the cycle in which the memory is read
            set_digits(ctx, dut.k, 0)
            await ctx.tick()
            set_digits(ctx, dut.alpha, alpha[row])
            set_digits(ctx, dut.k, round_shift(beta * k[row], UNIT.frac))
            ctx.set(dut.state, int(state[row, 0]) & 0xFFFFFF)
            ctx.set(dut.control.store, 1)
            await ctx.delay(1e-9)
            assert ctx.get(dut.new_state) == int(expected.state[row, 0]) & 0xFFFFFF, row
            assert ctx.get(dut.o) == int(expected.o[0]) & ((1 << NRM.width) - 1)
            await ctx.tick()
            ctx.set(dut.control.store, 0)

    async def bench(ctx):
        await token(ctx)
        await token(ctx)

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()
