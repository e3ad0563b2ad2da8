"""MlaEngine against golden.fixed.mla: whole decodes, chosen scores at every table edge, cycles, reset in the middle."""

import random

import cocotb
import numpy as np
from cocotb.triggers import ReadOnly, RisingEdge, Timer

from golden.fixed.functions import EXP2, RECIP
from golden.fixed.numbers import CACHE, CTX, QUERY, SCORE, UNIT, VEC, round_shift
from hw.layouts import MANTISSA_BITS
from hw.timing import mla_cycles, timing
from tests.cocotb.runner import parameters, report, start
from tests.hw.mla_reference import Reference, pack, params, unpack, vec

ONE = 1 << UNIT.frac


class Bench:
    """Drives one engine; knows what it must answer and when."""

    def __init__(self, dut):
        self.dut = dut
        chosen = parameters()
        self.p = params(chosen["preset"], chosen.get("mla_positions"), chosen.get("max_positions"))
        self.rng = np.random.default_rng(random.getrandbits(32))
        self.reference = Reference(self.p)
        self.heads = self.reference.heads
        self.last = self.p.model.max_positions - 1
        self.ahead = None  # the layer whose first group was read ahead

    async def begin(self):
        """Clock and reset, strobes low."""

        def idle():
            self.dut.valid.value = 0
            self.dut.cache_we.value = 0
            self.dut.cmd.value = random.randrange(self.p.mla_layers)

        await start(self.dut, before=idle)
        self.ahead = None
        return self

    async def idle(self, cycles, layer=None):
        """Cycles without a command; another layer's may be shown."""
        for _ in range(cycles):
            shown = random.randrange(self.p.mla_layers) if layer is None else layer
            self.dut.cmd.value = shown
            await RisingEdge(self.dut.clk)
            self.ahead = shown

    async def store(self, layer, position, latent, key):
        """Write one entry: one cycle."""
        self.reference.write(layer, position, latent, key)
        rope = vec(self.rng, 1000, self.heads, 16)
        self.dut.t.value = self.reference.registers(self.rng, vec(self.rng, 1000, self.heads, 32), rope, key)
        self.dut.position.value = position
        self.dut.cache_latent.value = pack(latent, CACHE.width)
        self.dut.cache_layer.value = layer
        self.dut.cache_we.value = 1
        await RisingEdge(self.dut.clk)
        self.dut.cache_we.value = 0
        self.dut.cache_latent.value = random.getrandbits(CACHE.width * 32)
        self.ahead = None

    def show(self, layer, position, query):
        """Command and operands on the wires."""
        key = self.rng.integers(VEC.min, VEC.max + 1, 16)
        self.dut.t.value = self.reference.registers(self.rng, *query, key)
        self.dut.position.value = position
        self.dut.cmd.value = layer
        self.dut.valid.value = 1

    async def attend(self, layer, position, query):
        """One command; checks its answer and its cycles."""
        self.show(layer, position, query)
        cycles = 0
        done = False
        while not done:
            await ReadOnly()
            cycles += 1
            done = bool(self.dut.done.value)
            assert bool(self.dut.take.value) == done
            assert cycles < 1000
            await RisingEdge(self.dut.clk)
        assert cycles == mla_cycles(position, timing(self.p).mla, ahead=self.ahead == layer), (
            f"{cycles} cycles at {position}"
        )
        self.ahead = None
        self.dut.valid.value = 0
        await Timer(1, "ns")
        assert not self.dut.done.value
        context, mantissa = self.reference.attend(layer, position, *query)
        got = unpack(int(self.dut.context.value), CTX.width, self.p.lanes)
        np.testing.assert_array_equal(got[: 32 * self.heads], context.ravel())
        assert not got[32 * self.heads :].any()
        raw = int(self.dut.context_mantissa.value)
        mask = (1 << MANTISSA_BITS) - 1
        assert [(raw >> (MANTISSA_BITS * h)) & mask for h in range(self.heads)] == mantissa.tolist()

    async def attend_scores(self, layer, below):
        """Attend to positions with scores ``below`` [T] under the first one's, which is 0; other lanes are random."""
        query = np.zeros((self.heads, 32), np.int64), np.zeros((self.heads, 16), np.int64)
        drop = QUERY.frac + CACHE.frac - SCORE.frac
        coarse = 14 - drop  # the score before scaling is lane 0 + (lane 1 + lane 2) << coarse
        query[0][:, :3] = np.array([1 << drop, 1 << 14, 1 << 14]) << (VEC.frac - QUERY.frac)
        for position, distance in enumerate(below):
            short = -(int(distance) << 18) // self.reference.factor
            while round_shift(short * self.reference.factor, 18) > -distance:
                short -= 1
            while round_shift(short * self.reference.factor, 18) < -distance:
                short += 1
            latent = self.rng.integers(CACHE.min, CACHE.max + 1, 32)
            high = short >> coarse
            latent[1] = np.clip(high, CACHE.min, CACHE.max)
            latent[0], latent[2] = short - (high << coarse), high - latent[1]
            await self.store(layer, position, latent, vec(self.rng, 1e5, 16))
        position = len(below) - 1
        np.testing.assert_array_equal(self.reference.scores(layer, position, *query)[0], -np.asarray(below))
        await self.idle(random.randrange(2))
        await self.attend(layer, position, query)


@cocotb.test()
async def decode(dut):
    """Position after position (some of the later ones), both layers, any pause before each command."""
    bench = await Bench(dut).begin()
    rng, heads = bench.rng, bench.heads
    for position in range(bench.last + 1):
        for layer in range(bench.p.mla_layers):
            latent = np.clip(rng.normal(0, 2048, 32).astype(np.int64), CACHE.min, CACHE.max)
            await bench.idle(random.randrange(2), layer)  # what is read ahead now is old once the entry is stored
            await bench.store(layer, position, latent, vec(rng, 2.0 ** rng.integers(8, 18), 16))
            if 24 < position < bench.last and random.random() < 0.8:
                continue  # long contexts take most of the time
            await bench.idle(random.randrange(3), random.choice((None, layer)))
            scale = 2.0 ** rng.integers(8, 17)
            await bench.attend(layer, position, (vec(rng, scale, heads, 32), vec(rng, scale, heads, 16)))


@cocotb.test()
async def extremes(dut):
    """Every operand at an end of its range: sums at their largest, scores that saturate, all weights 1."""
    bench = await Bench(dut).begin()
    heads = bench.heads
    full = bench.last
    for low, value in ((True, CACHE.min), (False, CACHE.max)):
        for position in range(full + 1):
            key = np.full(16, VEC.min if low else VEC.max)
            await bench.store(0, position, np.full(32, value), key)
        for query in (VEC.min, VEC.max, 0):
            await bench.attend(0, full, (np.full((heads, 32), query), np.full((heads, 16), query)))
            await bench.attend(0, 0, (np.full((heads, 32), query), np.full((heads, 16), query)))
    # scores at both ends: distances beyond 2**-32
    latent = np.full(32, CACHE.max)
    await bench.store(1, 0, -latent, np.full(16, VEC.min))
    await bench.store(1, 1, latent, np.full(16, VEC.max))
    await bench.store(1, 2, -latent, np.full(16, VEC.min))
    ends = (np.full((heads, 32), VEC.max), np.full((heads, 16), VEC.max))
    s = bench.reference.scores(1, 2, *ends)
    assert s.max() == SCORE.max and s.min() == SCORE.min
    for position in (0, 1, 2):
        await bench.attend(1, position, ends)


@cocotb.test()
async def exp2_edges(dut):
    """Scores at both sides of every segment edge of 2**-t, down to where it is 0."""
    bench = await Bench(dut).begin()
    segment = 1 << (EXP2.dx_bits - 2)  # t has two fraction bits more than SCORE
    edges = np.arange(0, 34 * len(EXP2.table)) * segment
    distances = np.unique(np.maximum(edges[:, None] + np.arange(-1, 2), 0).ravel())
    rng = bench.rng
    distances = rng.permutation(np.concatenate([distances, rng.integers(0, 1 << 19, 64)]))
    layer = 0
    for start_at in range(0, len(distances), bench.last):
        await bench.attend_scores(layer, [0, *distances[start_at : start_at + bench.last]])
        layer = (layer + 1) % bench.p.mla_layers


@cocotb.test()
async def recip_edges(dut):
    """Sums of weights at both sides of every segment edge of 1/m, for several m; and weights that are powers of two."""
    bench = await Bench(dut).begin()
    count = len(RECIP.table)
    most = bench.last.bit_length() - 1
    sums = [((count + i) << 10) + d for i in range(count) for d in (-1, 0, 1)]
    sums += [(((count + i) << 10) + d) << random.randint(1, most) for i in range(0, count, 5) for d in (-1, 0, 1)]
    reached = 0
    for i, total in enumerate(sums):
        ones, rest = max(1, total >> UNIT.frac), total & (ONE - 1)
        below = [0] * ones + [(UNIT.frac - b) << SCORE.frac for b in range(UNIT.frac) if rest >> b & 1]
        if total >= ONE and len(below) <= bench.last + 1:
            reached += 1
            await bench.attend_scores(i % bench.p.mla_layers, below)
    report(sums=reached)


@cocotb.test()
async def later_entries_do_not_matter(dut):
    """An answer is the same whatever the entries behind ``position`` hold."""
    bench = await Bench(dut).begin()
    rng, heads = bench.rng, bench.heads
    for position in range(bench.last + 1):
        await bench.store(0, position, rng.integers(-3000, 3000, 32), vec(rng, 3000, 16))
    query = vec(rng, 3000, heads, 32), vec(rng, 3000, heads, 16)
    for position in range(min(10, bench.last)):
        answers = []
        for _ in range(2):
            await bench.attend(0, position, query)
            answers.append(int(dut.context.value))
            for later in range(position + 1, min(position + 9, bench.last + 1)):
                await bench.store(0, later, rng.integers(CACHE.min, CACHE.max + 1, 32), vec(rng, 1e6, 16))
        assert answers[0] == answers[1]


@cocotb.test()
async def reset_in_the_middle(dut):
    """Reset in any cycle of a command leaves an engine that works, its cache intact."""
    bench = await Bench(dut).begin()
    rng, heads = bench.rng, bench.heads
    position = min(bench.last, 2 * bench.p.mla_positions)
    for p in range(position + 1):
        await bench.store(0, p, rng.integers(-3000, 3000, 32), vec(rng, 3000, 16))
    query = vec(rng, 3000, heads, 32), vec(rng, 3000, heads, 16)
    for cycles in range(1, mla_cycles(position, timing(bench.p).mla) + 1):
        bench.show(0, position, query)
        for _ in range(cycles):
            await RisingEdge(dut.clk)
        dut.rst.value = 1
        dut.valid.value = 0
        await RisingEdge(dut.clk)
        dut.rst.value = 0
        bench.ahead = None
        await bench.idle(cycles % 2, 0)
        await bench.attend(0, position, query)
