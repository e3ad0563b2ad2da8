"""The Booth multiplier equals the integer product (Amaranth's simulator)."""

import numpy as np
import pytest
from amaranth.hdl import Module, Signal, signed, unsigned
from amaranth.sim import Simulator

from hw.arith.multiply import multiply_add


def corners(width, is_signed, rng, n):
    """Extremes, Booth digit patterns and random values of every magnitude."""
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if is_signed else (0, (1 << width) - 1)
    fixed = [low, low + 1, high, high - 1, 0, 1, -1, 0x555555, 0xAAAAAA, -0x555555]
    spread = rng.integers(low, high + 1, n) >> rng.integers(0, width, n)
    return np.clip(np.concatenate([fixed, spread]), low, high)


@pytest.mark.parametrize(
    "a_shape,b_shape,width",
    [
        (signed(24), signed(24), 48),
        (signed(40), unsigned(19), 60),
        (unsigned(17), unsigned(19), 37),
        (signed(7), signed(5), 12),
    ],
)
def test_multiply_add(a_shape, b_shape, width):
    m = Module()
    a, b, c = Signal(a_shape), Signal(b_shape), Signal(signed(width - 2))
    y = multiply_add(m, a, b, c, width)
    rng = np.random.default_rng(width)
    a_values, b_values = (corners(s.width, s.signed, rng, 20) for s in (a_shape, b_shape))
    addends = rng.integers(-(1 << (width - 3)), 1 << (width - 3), 8)
    cases = [(int(i), int(j), int(addends[(i + j) % 8]) if (i & 3) else 0) for i in a_values for j in b_values]

    async def bench(ctx):
        for i, j, k in cases:
            ctx.set(a, i)
            ctx.set(b, j)
            ctx.set(c, k)
            await ctx.delay(1e-9)
            wrapped = (i * j + k + (1 << (width - 1))) % (1 << width) - (1 << (width - 1))
            assert ctx.get(y) == wrapped, (i, j, k)

    sim = Simulator(m)
    sim.add_testbench(bench)
    sim.run()
