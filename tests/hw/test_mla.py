"""MLA engine equals golden.fixed.mla: Amaranth's simulator, small sizes and the timing of its ports."""

from dataclasses import replace

import numpy as np
import pytest
from amaranth.sim import Simulator

from golden.fixed import mla as golden
from golden.fixed.functions import exp2_neg, recip
from golden.fixed.numbers import CACHE, CTX, NRM, SCORE, UNIT, VEC, round_shift, saturate
from hw.params import Params, from_preset
from hw.units.mla import MlaEngine, mla_cycles


class Reference:
    """The cache and the golden answer."""

    def __init__(self, p: Params, rng: np.random.Generator) -> None:
        self.p, self.rng, self.heads = p, rng, p.model.num_attention_heads
        self.cache = rng.integers(CACHE.min, CACHE.max + 1, (p.mla_layers, p.model.max_positions, 48))

    def write(self, layer, position, latent, key):
        """Store an entry; ``key`` is VEC."""
        self.cache[layer, position] = np.concatenate([latent, golden.to_cache(key, VEC.frac)])

    def attend(self, layer, position, latent_query, rope_query):
        """(context [heads, 32] CTX, mantissas) of raw VEC queries [heads, 32] and [heads, 16]."""
        query = golden.to_query(np.concatenate([latent_query, rope_query], axis=-1))
        entries = self.cache[layer, : position + 1]
        factor = golden.score_factor(self.p.model.qk_nope_head_dim, self.p.model.qk_rope_head_dim)
        s = golden.scores(query, entries, factor)
        e = exp2_neg((s.max(axis=-1, keepdims=True) - s) << (16 - SCORE.frac))
        mantissa, log = recip(e.sum(axis=-1))
        total = e @ entries[:, :32]
        shifted = saturate(round_shift(total, CACHE.frac - CTX.frac + log[:, None]), CTX)
        final = saturate(round_shift(shifted * mantissa[:, None], CTX.frac + 18 - NRM.frac), NRM)
        np.testing.assert_array_equal(final, golden.context(s, entries[:, :32]))  # the reference is golden's
        return shifted, mantissa


def pack(values, width):
    """Raw words of a vector, lane 0 lowest."""
    return sum((int(v) & ((1 << width) - 1)) << (width * i) for i, v in enumerate(values))


def unpack(word, width, n):
    """Signed words of a raw vector."""
    values = [(word >> (width * i)) & ((1 << width) - 1) for i in range(n)]
    return np.array([v - (1 << width) if v >> (width - 1) else v for v in values])


def registers(p, latent_query, rope_query, key, rng):
    """Raw T registers, random where MLA does not look."""
    t = rng.integers(VEC.min, VEC.max + 1, (4, p.lanes))
    heads = p.model.num_attention_heads
    t[0, : 32 * heads] = latent_query.ravel()
    t[3, : 16 * heads] = rope_query.ravel()
    t[3, 16 * heads : 16 * heads + 16] = key
    return pack(t.ravel(), VEC.width)


def queries(heads, rng, scale):
    """Random VEC queries of a given magnitude."""
    draw = lambda n: np.clip(rng.normal(0, scale, (heads, n)).astype(np.int64), VEC.min, VEC.max)  # noqa: E731
    return draw(32), draw(16)


def sizes():
    """(name, parameters): presets and other widths."""
    micro = from_preset("micro-k3")
    small = replace(micro, model=replace(micro.model, max_positions=16))
    return [pytest.param(small, id="micro-2"), pytest.param(replace(small, mla_positions=1), id="micro-1")]


@pytest.mark.parametrize("p", sizes())
def test_attention(p):
    rng = np.random.default_rng(7)
    dut = MlaEngine(p)
    reference = Reference(p, rng)
    last = p.model.max_positions - 1
    cases = [(0, 0, 1 << 12), (1, 0, 1 << 14), (0, 1, 3000), (1, 2, 1 << 20), (0, 3, 100), (0, last, 2000)]

    async def command(ctx, layer, position, scale, gap):
        latent, key = rng.integers(CACHE.min, CACHE.max + 1, 32), rng.integers(-(1 << 18), 1 << 18, 16)
        query = queries(reference.heads, rng, scale)
        reference.write(layer, position, latent, key)
        t = registers(p, *query, key, rng)
        ctx.set(dut.t.as_value(), t)
        ctx.set(dut.position, position)
        ctx.set(dut.cache_latent.as_value(), pack(latent, CACHE.width))
        ctx.set(dut.cache_layer, layer)
        ctx.set(dut.cache_we, 1)
        await ctx.tick()
        ctx.set(dut.cache_we, 0)
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
        assert cycles == mla_cycles(p, position, ahead=gap in (1, 3))
        await ctx.tick()
        ctx.set(dut.valid, 0)
        context, mantissa = reference.attend(layer, position, *query)
        got = unpack(ctx.get(dut.context.as_value()), CTX.width, p.lanes)
        np.testing.assert_array_equal(got[: 32 * reference.heads], context.ravel())
        assert [ctx.get(dut.context_mantissa[h]) for h in range(reference.heads)] == mantissa.tolist()

    async def fill(ctx):
        for layer in range(p.mla_layers):
            for position in range(p.model.max_positions):
                key = np.clip(rng.normal(0, 4000, 16).astype(np.int64), VEC.min, VEC.max)
                latent = np.clip(rng.normal(0, 2048, 32).astype(np.int64), CACHE.min, CACHE.max)
                reference.write(layer, position, latent, key)
                ctx.set(dut.t.as_value(), pack([0] * 3 * p.lanes + [0] * 16 * reference.heads + key.tolist(), 24))
                ctx.set(dut.position, position)
                ctx.set(dut.cache_latent.as_value(), pack(latent, CACHE.width))
                ctx.set(dut.cache_layer, layer)
                ctx.set(dut.cache_we, 1)
                await ctx.tick()
        ctx.set(dut.cache_we, 0)

    async def bench(ctx):
        await fill(ctx)
        for i, case in enumerate(cases):
            await command(ctx, *case, gap=i % 4)

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()


def test_equal_values_give_that_value():
    """With the same latent everywhere, one position and many return it (within the rounding of 1/m)."""
    p = from_preset("micro-k3")
    latent = np.arange(-16, 16) * 1000
    s = np.zeros((1, 64), np.int64)
    many = golden.context(s, np.broadcast_to(latent, (64, 32)))
    one = golden.context(s[:, :1], latent[None])
    np.testing.assert_array_equal(many, one)
    assert np.abs(one - (latent << (NRM.frac - CACHE.frac))).max() <= 1 << (NRM.frac - UNIT.frac)
    assert p.mla_positions == 2
