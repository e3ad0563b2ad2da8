"""MLA engine in Amaranth's simulator: answers and cycles at the ends of its sizes (the rest is in tests/cocotb)."""

import numpy as np
import pytest
from amaranth.sim import Simulator

from golden.fixed import mla as golden
from golden.fixed.numbers import CACHE, CTX, NRM, UNIT
from hw.timing import mla_cycles, timing
from hw.units.mla import MlaEngine
from tests.hw.mla_reference import Reference, pack, params, unpack, vec


@pytest.mark.parametrize("positions", [1, 8])  # 8: all positions are one group
def test_attention(positions):
    p = params("micro-k3", positions, max_positions=8)
    rng = np.random.default_rng(7)
    dut = MlaEngine(p)
    reference = Reference(p)

    async def store(ctx, layer, position, latent, key, t):
        reference.write(layer, position, latent, key)
        ctx.set(dut.cmd.as_value(), layer)
        await ctx.tick()  # what is read ahead now is old once the entry is stored
        ctx.set(dut.t.as_value(), t)
        ctx.set(dut.position, position)
        ctx.set(dut.cache_latent.as_value(), pack(latent, CACHE.width))
        ctx.set(dut.cache_layer, layer)
        ctx.set(dut.cache_we, 1)
        await ctx.tick()
        ctx.set(dut.cache_we, 0)

    async def attend(ctx, layer, position, gap, query):
        for _ in range(gap):
            ctx.set(dut.cmd.as_value(), layer ^ (gap == 2))  # 2: another layer's command is shown before
            await ctx.tick()
        ctx.set(dut.cmd.as_value(), layer)
        ctx.set(dut.valid, 1)
        cycles = 1
        while not ctx.get(dut.done):
            assert not ctx.get(dut.take)
            await ctx.tick()
            cycles += 1
        assert cycles == mla_cycles(position, timing(p).mla, ahead=gap in (1, 3)) and ctx.get(dut.take)
        await ctx.tick()
        ctx.set(dut.valid, 0)
        context, mantissa = reference.attend(layer, position, *query)
        got = unpack(ctx.get(dut.context.as_value()), CTX.width, p.lanes)
        np.testing.assert_array_equal(got, context.ravel())
        assert [ctx.get(dut.context_mantissa[h]) for h in range(reference.heads)] == mantissa.tolist()

    async def bench(ctx):
        for position in range(p.model.max_positions):
            for layer in range(p.mla_layers):
                latent, key = rng.integers(CACHE.min, CACHE.max + 1, 32), vec(rng, 3000, 16)
                query = vec(rng, 2.0 ** rng.integers(10, 22), 1, 32), vec(rng, 3000, 1, 16)
                await store(ctx, layer, position, latent, key, reference.registers(rng, *query, key))
                await attend(ctx, layer, position, position % 4, query)

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()


def test_equal_values_give_that_value():
    """With the same latent everywhere, one position and many return it (within the rounding of 1/m)."""
    latent = np.arange(-16, 16) * 1000
    s = np.zeros((1, 64), np.int64)
    many = golden.context(s, np.broadcast_to(latent, (64, 32)))
    one = golden.context(s[:, :1], latent[None])
    np.testing.assert_array_equal(many, one)
    assert np.abs(one - (latent << (NRM.frac - CACHE.frac))).max() <= 1 << (NRM.frac - UNIT.frac)
