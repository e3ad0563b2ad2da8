"""hw.arith equals golden.fixed.numbers and golden.fixed.functions bit for bit (Amaranth's simulator)."""

import numpy as np
import pytest
from amaranth.hdl import Module, Signal, signed, unsigned
from amaranth.sim import Simulator

from golden.fixed import functions as golden
from golden.fixed import numbers
from hw.arith import basic, functions


def evaluate(in_shape, build, values):
    """Outputs of the combinational block ``build(m, x) -> [values]`` at each input."""
    m = Module()
    x = Signal(in_shape)
    outs = []
    for value in build(m, x):
        out = Signal(value.shape())
        m.d.comb += out.eq(value)
        outs.append(out)
    results = []

    async def bench(ctx):
        for value in values:
            ctx.set(x, int(value))
            await ctx.delay(1e-9)
            results.append([ctx.get(o) for o in outs])

    sim = Simulator(m)
    sim.add_testbench(bench)
    sim.run()
    return np.array(results, np.int64).T


def edges_and_random(edges, low, high, n=1500, seed=1):
    """Every table edge and its neighbours, the ends of the range, and random values."""
    rng = np.random.default_rng(seed)
    points = np.concatenate([np.asarray(edges)[:, None] + np.arange(-1, 2)]).ravel()
    spread = rng.integers(low, high + 1, n) >> rng.integers(0, max(1, int(high).bit_length()), n)
    return np.unique(np.clip(np.concatenate([points, [low, high], spread]), low, high))


def test_sigmoid_segment():
    """Row, offset and range give golden's sigmoid at every edge, from its own table."""
    edges = [
        s * int((start + i * w) * 2**14)
        for start, n, w in golden.SIGMOID_REGIONS
        for i in range(n + 1)
        for s in (1, -1)
    ]
    x = edges_and_random(edges, -(2**24), 2**24 - 1)
    row, dx, outside = evaluate(signed(25), lambda m, v: functions.sigmoid_segment(m, v, "x"), x)
    one = 1 << numbers.SIG.frac
    y = np.where(outside, one, np.minimum(golden.SIGMOID(row, dx), one))
    np.testing.assert_array_equal(np.where(x < 0, one - y, y), golden.sigmoid(x))


def test_exp2_neg():
    t = edges_and_random([i << 12 for i in range(16 * 34)], 0, 2**26 - 1)
    (y,) = evaluate(unsigned(26), lambda m, v: [functions.exp2_neg(m, v)], t)
    np.testing.assert_array_equal(y, golden.exp2_neg(t))


@pytest.mark.parametrize("width,frac", [(53, 32), (53, 26), (20, 10)])
def test_rsqrt(width, frac):
    edges = [((32 + i) << 13) << s >> 5 for i in range(97) for s in (0, 1, 10)] + [1 << i for i in range(width)]
    v = edges_and_random(edges, 1, 2**width - 1)
    y, k = evaluate(unsigned(width), lambda m, x: functions.rsqrt(m, x, Signal(6, init=frac)), v)
    expected, expected_k = golden.rsqrt(v, frac)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(k, expected_k)


@pytest.mark.parametrize("width", [19, 25, 10])
def test_recip(width):
    v = edges_and_random([(64 + i) << s for i in range(65) for s in range(0, width - 6)], 1, 2**width - 1)
    y, p = evaluate(unsigned(width), lambda m, x: functions.recip(m, x), v)
    expected, expected_p = golden.recip(v)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(p, expected_p)


@pytest.mark.parametrize("shift", [-3, 0, 1, 7, 30])
def test_round_shift(shift):
    x = edges_and_random([0], -(2**20), 2**20 - 1, 400)
    (y,) = evaluate(signed(21), lambda m, v: [basic.round_shift(v, shift)], x)
    np.testing.assert_array_equal(y, numbers.round_shift(x, shift))


def test_round_shift_by():
    x = edges_and_random([0], -(2**20), 2**20 - 1, 300)
    for shift in (0, 1, 5, 20, 31):
        build = lambda m, v: [basic.round_shift_by(m, v, Signal(5, init=shift), 31)]  # noqa: B023, E731
        (y,) = evaluate(signed(21), build, x)
        np.testing.assert_array_equal(y, numbers.round_shift(x, shift))


@pytest.mark.parametrize("fmt", [numbers.VEC, numbers.CACHE, numbers.UNIT])
def test_saturate(fmt):
    x = edges_and_random([fmt.min, fmt.max, 0], -(2**27), 2**27 - 1, 400)
    (y,) = evaluate(signed(28), lambda m, v: [basic.saturate(m, v, fmt)], x)
    np.testing.assert_array_equal(y, numbers.saturate(x, fmt))
