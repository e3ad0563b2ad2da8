"""Head equals golden.fixed.lanes.argmax (Amaranth's simulator)."""

from dataclasses import replace

import numpy as np
import pytest
from amaranth.sim import Simulator

from golden.fixed.lanes import argmax
from golden.fixed.numbers import VEC
from hw.params import from_preset
from hw.units.head import Head


def positions(vocab, rng):
    """Logits of several positions: random, ties, extremes at the ends."""
    yield rng.integers(VEC.min, VEC.max + 1, vocab)
    yield rng.integers(-2, 3, vocab)  # many ties
    yield np.full(vocab, VEC.min)
    for where in (0, vocab - 1, vocab // 2):
        x = rng.integers(VEC.min, 0, vocab)
        x[where:] = np.maximum(x[where:], x[where])
        x[[where, vocab - 1]] = 5
        yield x


@pytest.mark.parametrize("rows,vocab", [(16, 512), (8, 32), (32, 96)])
def test_argmax_and_stream(rows, vocab):
    nano = from_preset("nano-k3")
    p = replace(nano, array_rows=rows, model=replace(nano.model, vocab_size=vocab))
    dut = Head(p)
    rng = np.random.default_rng(rows)
    groups = vocab // rows

    async def send(ctx, group, logits):
        ctx.set(dut.head_valid, 1)
        ctx.set(dut.head_group, group)
        raw = sum((int(v) & 0xFFFFFF) << (24 * i) for i, v in enumerate(logits))
        ctx.set(dut.head_logits.as_value(), raw)
        ready = ctx.get(dut.head_ready)
        await ctx.tick()
        ctx.set(dut.head_valid, 0)
        return ready

    async def drain(ctx, streamed):
        while ctx.get(dut.logits_valid):
            assert not ctx.get(dut.head_ready) and not ctx.get(dut.complete)
            ready = int(rng.integers(0, 2))
            ctx.set(dut.logits_ready, ready)
            beat = ctx.get(dut.logits_data), ctx.get(dut.logits_last)
            await ctx.tick()
            if ready:
                streamed.append(beat)
            else:
                assert (ctx.get(dut.logits_data), ctx.get(dut.logits_last)) == beat

    async def bench(ctx):
        for stream in (0, 1):
            ctx.set(dut.stream_logits, stream)
            for logits in positions(vocab, rng):
                ctx.set(dut.start, 1)
                await ctx.tick()
                ctx.set(dut.start, 0)
                streamed = []
                for group, part in enumerate(logits.reshape(groups, rows)):
                    assert not ctx.get(dut.complete) and ctx.get(dut.head_ready)
                    assert await send(ctx, group, part) == 1 - stream
                    if group % 3 == 0:
                        await drain(ctx, streamed)
                        await ctx.tick()
                    await drain(ctx, streamed)
                assert ctx.get(dut.complete)
                assert ctx.get(dut.best) == argmax(logits)
                expected = [(int(v) & 0xFFFFFFFF, int(i == vocab - 1)) for i, v in enumerate(logits)]
                assert streamed == (expected if stream else [])

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()
