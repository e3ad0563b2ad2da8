"""hw.units.kda equals golden.fixed.kda bit for bit, with the cycles that its docstring states (Amaranth's simulator)."""

import numpy as np
import pytest
from amaranth.sim import Simulator

from golden.fixed import kda as golden
from golden.fixed.numbers import KEY, NRM, SIG, STATE, UNIT, VEC, round_shift
from hw.layouts import KdaOp
from hw.params import HEAD, from_preset
from hw.units.kda import KdaEngine


def pack(values, width):
    """Integers as one word, the first in the lowest bits."""
    return sum((int(v) & ((1 << width) - 1)) << (width * i) for i, v in enumerate(values))


def unpack(word, width, count):
    """Signed integers of a word."""
    raw = np.array([(word >> (width * i)) & ((1 << width) - 1) for i in range(count)], np.int64)
    return raw - ((raw >> (width - 1)) << width)


def keys(rng, heads, kind):
    """Keys of norm up to 1 and a little more (the limit that rounding allows): one of several kinds."""
    if kind == "one":
        return np.eye(HEAD, dtype=np.int64)[rng.integers(0, HEAD, heads)] * rng.choice([KEY.min, KEY.max], (heads, 1))
    if kind == "flat":  # q . k just above 1 when q = k: 19 bits
        return rng.choice([-23174, 23174], (heads, HEAD))
    x = rng.standard_normal((heads, HEAD))
    x = x / np.linalg.norm(x, axis=-1, keepdims=True) * rng.uniform(0.1, 1.0)
    return np.floor(x * 2**KEY.frac + 0.5).astype(np.int64)


def values(rng, shape, fmt, kind):
    """Integers of a format: the ends of the range, or of random size."""
    if kind == "ends":
        return rng.choice([fmt.min, fmt.max, 0], shape)
    return rng.integers(fmt.min, fmt.max + 1, shape) >> rng.integers(0, fmt.width - 3, shape)


def units(rng, shape, kind):
    """UNIT values; 0 and 1.0 at the ends."""
    one = 1 << UNIT.frac
    return rng.choice([0, one, one - 1, 1], shape) if kind == "ends" else rng.integers(0, one + 1, shape)


async def command(ctx, dut, op, layer, gap):
    """One command after ``gap`` idle cycles; returns its cycles, the one of take and done included."""
    ctx.set(dut.valid, 0)
    for _ in range(gap):
        await ctx.tick()
    ctx.set(dut.valid, 1)
    ctx.set(dut.cmd.op, op)
    ctx.set(dut.cmd.layer, layer)
    for cycles in range(1, 200):
        take, done = ctx.get(dut.take), ctx.get(dut.done)
        await ctx.tick()
        assert take == done
        if done:
            ctx.set(dut.valid, 0)
            return cycles
    raise AssertionError(f"{op} does not end")


def set_register(ctx, dut, number, lanes):
    """Lanes of T register ``number``, the missing ones as garbage."""
    for i in range(len(dut.t[number])):
        ctx.set(dut.t[number][i], int(lanes[i]) & 0xFFFFFF if i < len(lanes) else 0xABCDEF)


KINDS = [("random", "random"), ("one", "ends"), ("flat", "ends"), ("random", "ends"), ("flat", "random")]


@pytest.mark.parametrize("preset", ["nano-k3", "micro-k3"])
def test_layers_and_tokens(preset):
    p = from_preset(preset)
    heads, layers, lanes = p.model.kda_num_heads, p.kda_layers, HEAD * p.model.kda_num_heads
    dut = KdaEngine(p)
    rng = np.random.default_rng(7)

    async def bench(ctx):
        for address in range(HEAD * layers):
            ctx.set(dut.state.data[address], int.from_bytes(rng.bytes(lanes * 3), "little"))
        state = values(rng, (layers, heads, HEAD, HEAD), STATE, "random")  # the first token must not see it
        for token in range(len(KINDS)):
            for layer in range(layers):
                key_kind, kind = KINDS[(token + layer) % len(KINDS)]
                k, q = keys(rng, heads, key_kind), keys(rng, heads, key_kind)
                q = np.where(rng.random((heads, 1)) < 0.4, k, q)
                q = np.where(rng.random((heads, 1)) < 0.2, np.maximum(-k, KEY.min), q)
                v, beta = values(rng, (heads, HEAD), VEC, kind), rng.integers(0, (1 << SIG.frac) + 1, heads)
                beta = np.where(rng.random(heads) < 0.3, 1 << SIG.frac, beta)
                alpha = units(rng, (heads, HEAD), kind)
                for port, x in ((dut.k_we, k), (dut.q_we, q)):
                    ctx.set(dut.key.as_value(), sum(pack(h, KEY.width) << (HEAD * KEY.width * i) for i, h in enumerate(x)))
                    ctx.set(port, 1)
                    await ctx.tick()
                    ctx.set(port, 0)
                ctx.set(dut.key.as_value(), int.from_bytes(rng.bytes(144), "little"))
                ctx.set(dut.first, int(token == 0))
                set_register(ctx, dut, 3, alpha.ravel() | (0x2A << UNIT.width))
                assert await scan(ctx, layer) == HEAD + 1
                set_register(ctx, dut, 1, v.ravel())
                set_register(ctx, dut, 0, beta)
                assert await command(ctx, dut, KdaOp.READ, layer, gap()) == 1
                set_register(ctx, dut, 1, rng.integers(0, 1 << 24, lanes))
                set_register(ctx, dut, 0, rng.integers(0, 1 << 24, lanes))
                before = np.zeros_like(state[layer]) if token == 0 else state[layer]
                expected = golden.state_update(before, k, q, v, alpha, round_shift(beta, SIG.frac - UNIT.frac))
                check_o(ctx, expected.o)
                assert await command(ctx, dut, KdaOp.WRITE, layer, gap()) == 2 * HEAD
                check_o(ctx, expected.o)
                state[layer] = expected.state
                for row in range(HEAD):
                    word = ctx.get(dut.state.data[layer * HEAD + row])
                    np.testing.assert_array_equal(
                        unpack(word, STATE.width, lanes), expected.state[:, row].ravel(), f"{token} {layer} {row}"
                    )

    def gap():
        return int(rng.integers(0, 3))

    async def scan(ctx, layer):
        """SCAN with T3, which is copied, overwritten after the first cycle."""
        ctx.set(dut.valid, 0)
        for _ in range(gap()):
            await ctx.tick()
        ctx.set(dut.valid, 1)
        ctx.set(dut.cmd.op, KdaOp.SCAN)
        ctx.set(dut.cmd.layer, layer)
        await ctx.tick()
        set_register(ctx, dut, 3, rng.integers(0, 1 << 24, lanes))
        ctx.set(dut.first, int(rng.integers(0, 2)))
        return 1 + await command(ctx, dut, KdaOp.SCAN, layer, 0)

    def check_o(ctx, expected):
        got = unpack(ctx.get(dut.o.as_value()), NRM.width, p.lanes)
        np.testing.assert_array_equal(got[:lanes], expected.ravel())
        assert not got[lanes:].any()

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()
