"""Head against golden.fixed.lanes.argmax: ties, gaps, the logits stream under back-pressure, reset in the middle."""

import random
from dataclasses import replace

import cocotb
import numpy as np
from cocotb.triggers import ReadOnly, RisingEdge, Timer

from golden.fixed.lanes import argmax
from golden.fixed.numbers import VEC
from hw.params import from_preset
from tests.cocotb.runner import parameters, start


class Bench:
    """Drives one head and collects its stream."""

    def __init__(self, dut):
        self.dut = dut
        chosen = parameters()
        self.rows, self.vocab = chosen["array_rows"], chosen["vocab_size"]
        nano = from_preset("nano-k3")
        self.p = replace(nano, array_rows=self.rows, model=replace(nano.model, vocab_size=self.vocab))
        self.groups = self.vocab // self.rows
        self.rng = np.random.default_rng(random.getrandbits(32))
        self.beats = []
        self.rate = 1.0  # how often the sink is ready

    async def begin(self):
        """Clock, reset and the sink."""

        def idle():
            for name in ("start", "head_valid", "stream_logits", "logits_ready"):
                getattr(self.dut, name).value = 0

        await start(self.dut, before=idle)
        cocotb.start_soon(self.sink())
        return self

    async def sink(self):
        """Accepts beats; a beat that waits must not change."""
        waiting = None
        while True:
            self.dut.logits_ready.value = int(random.random() < self.rate)
            await ReadOnly()
            beat = int(self.dut.logits_data.value), int(self.dut.logits_last.value)
            valid, ready = int(self.dut.logits_valid.value), int(self.dut.logits_ready.value)
            if not self.dut.rst.value:
                assert waiting in (None, beat) and (valid or waiting is None), "a waiting beat changed"
            waiting = beat if valid and not ready and not self.dut.rst.value else None
            if valid and ready and not self.dut.rst.value:
                self.beats.append(beat)
            await RisingEdge(self.dut.clk)

    async def cycle(self):
        """One clock edge, then wait until outputs have settled."""
        await RisingEdge(self.dut.clk)
        await Timer(1, "ns")

    async def position(self, logits, stream, gaps):
        """One position; checks completion, answer and stream."""
        dut = self.dut
        self.beats.clear()
        dut.stream_logits.value = stream
        together = random.random() < 0.5  # the first group may come with start
        dut.start.value = 1
        if not together:
            await self.cycle()
            dut.start.value = 0
            assert not dut.complete.value
        for group, part in enumerate(logits.reshape(self.groups, self.rows)):
            while not dut.head_ready.value or random.random() < gaps:
                await self.cycle()
                dut.start.value = 0
                together = False
            dut.head_valid.value = 1
            dut.head_group.value = group
            dut.head_logits.value = sum((int(v) & 0xFFFFFF) << (24 * i) for i, v in enumerate(part))
            await Timer(1, "ns")
            assert bool(dut.head_ready.value) == (not stream)
            assert together or not dut.complete.value
            await self.cycle()
            dut.start.value = 0
            together = False
            dut.head_valid.value = 0
            dut.head_logits.value = random.getrandbits(24 * self.rows)
            await Timer(1, "ns")
        waited = 0
        while not dut.complete.value:
            assert stream, "without a stream, complete follows the last group at once"
            await self.cycle()
            waited += 1
            assert waited < 100 * self.rows
        assert int(dut.best.value) == argmax(logits)
        expected = [(int(v) & 0xFFFFFFFF, int(i == self.vocab - 1)) for i, v in enumerate(logits)]
        assert self.beats == (expected if stream else [])

    def cases(self):
        """Logits: random, many ties, all equal, the largest or smallest value at chosen places."""
        rng, vocab = self.rng, self.vocab
        yield rng.integers(VEC.min, VEC.max + 1, vocab)
        yield rng.integers(-1, 2, vocab)
        yield np.full(vocab, VEC.min)
        yield np.full(vocab, VEC.max)
        for place in (0, self.rows - 1, self.rows, vocab - 1, int(rng.integers(vocab))):
            x = rng.integers(VEC.min, VEC.max, vocab)
            x[place] = VEC.max
            yield x
            x = np.full(vocab, VEC.min)
            x[[place, int(rng.integers(vocab))]] = VEC.min + 1
            yield x
        yield -np.arange(vocab)
        yield np.arange(vocab)


@cocotb.test()
async def answers(dut):
    """Every case without a stream: back to back, then with gaps."""
    bench = await Bench(dut).begin()
    for gaps in (0.0, 0.4):
        for logits in bench.cases():
            await bench.position(logits, 0, gaps)
            for _ in range(random.randrange(3)):
                assert dut.complete.value and int(dut.best.value) == argmax(logits)
                await bench.cycle()


@cocotb.test()
async def streams(dut):
    """Streams at several rates of the sink, with and without gaps; positions without a stream between."""
    bench = await Bench(dut).begin()
    for i, logits in enumerate(bench.cases()):
        bench.rate = (1.0, 0.5, 0.1, 0.9)[i % 4]
        await bench.position(logits, int(i % 5 != 4), (0.0, 0.3)[i // 4 % 2])


@cocotb.test()
async def reset_in_the_middle(dut):
    """Reset while a group is streamed: nothing is left of it."""
    bench = await Bench(dut).begin()
    for cycles in range(1, 6):
        bench.rate = 0.5
        dut.stream_logits.value = 1
        dut.head_valid.value = 1
        dut.head_group.value = 0
        await bench.cycle()
        dut.head_valid.value = 0
        for _ in range(cycles):
            await bench.cycle()
        dut.rst.value = 1
        await bench.cycle()
        dut.rst.value = 0
        await Timer(1, "ns")
        assert dut.head_ready.value and not dut.logits_valid.value and not dut.complete.value
        await bench.position(bench.rng.integers(VEC.min, VEC.max + 1, bench.vocab), 1, 0.0)
