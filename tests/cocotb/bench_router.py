"""Router against golden.fixed.router.route: picks, weights, cycles; loading; random gaps between commands."""

import random

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge

from golden.fixed import lanes
from golden.fixed.functions import RECIP
from golden.fixed.numbers import BIAS, SIG, UNIT, VEC
from golden.fixed.router import route
from hw.layouts import EXPERT_BITS, EXPERT_WEIGHT_BITS, LoadBus, Space
from hw.params import T_REGS
from tests import cases
from tests.cocotb.router_sizes import make_params
from tests.cocotb.runner import parameters, report, start

ONE = 1 << SIG.frac


class Bench:
    """Drives one router."""

    def __init__(self, dut):
        self.dut = dut
        self.p = make_params(parameters()["size"])
        self.rng = np.random.default_rng(random.getrandbits(32))
        self.experts, self.layers = self.p.model.num_experts, self.p.moe_layers
        self.top_k = self.p.model.num_experts_per_token
        self.bias = np.zeros((self.layers, self.experts), np.int64)
        self.held = None  # layer whose biases the unit has read

    async def tick(self):
        """One cycle; follows which biases the unit has read."""
        dut = self.dut
        await RisingEdge(dut.clk)  # reads are of the cycle that ends here
        load = LoadBus.from_bits(int(dut.load.value))
        if int(dut.rst.value) or (load.valid and load.space == Space.ROUTER):
            self.held = None
        elif int(dut.cmd.value) < max(2, self.layers):
            self.held = int(dut.cmd.value)

    async def begin(self):
        """Reset, and biases in memory."""

        def idle():
            self.dut.valid.value = 0
            self.dut.load.value = 0

        await start(self.dut, before=idle)

    async def load(self, bias, order=random.shuffle):
        """Writes biases of all layers through the load bus, the pieces in any order, with foreign writes between."""
        self.bias = np.asarray(bias, np.int64)
        pieces = []
        parts = -(-self.experts // 2)
        for layer in range(self.layers):
            raw = [int(b) & 0xFFFF for b in self.bias[layer]] + [random.getrandbits(16)]
            pieces += [(Space.ROUTER, layer, i, raw[2 * i] | raw[2 * i + 1] << 16) for i in range(parts)]
        for space in (Space.WEIGHTS, Space.VECTOR, Space.LANE):
            pieces += [(space, random.randrange(self.layers), random.randrange(parts), random.getrandbits(32))] * 3
        order(pieces)
        for space, addr, part, word in pieces:
            const = LoadBus.const({"valid": 1, "space": space, "addr": addr, "part": part, "data": word})
            self.dut.load.value = const.as_bits()
            await self.tick()
            if random.random() < 0.3:
                self.dut.load.value = const.as_bits() & ~1 ^ (1 << 20)  # not valid
                await self.tick()
        self.dut.load.value = 0

    def set_scores(self, scores):
        """T0, with garbage above the scores, in the other lanes and registers."""
        word = random.getrandbits(T_REGS * self.p.lanes * VEC.width)
        for e, score in enumerate(scores):
            low = e * VEC.width
            word = word & ~(((1 << SIG.width) - 1) << low) | int(score) << low
        self.dut.t.value = word

    async def route(self, layer, scores, shown_before=None):
        """One command; returns experts and weights. ``shown_before``: cycles that cmd is shown without valid."""
        dut = self.dut
        shown_before = random.randrange(3) if shown_before is None else shown_before
        for _ in range(shown_before):
            dut.cmd.value = layer
            dut.valid.value = 0
            await self.tick()
            assert not int(dut.take.value) and not int(dut.done.value)
        dut.cmd.value = layer
        dut.valid.value = 1
        self.set_scores(scores)
        cycles = 1 if self.held == layer else 2
        assert cycles == 1 or not shown_before
        for cycle in range(1, cycles + 1):
            await self.tick()
            end = cycle == cycles
            assert (int(dut.take.value), int(dut.done.value)) == (end, end), f"cycle {cycle} of {cycles}"
        dut.valid.value = 0
        dut.cmd.value = random.randrange(8)  # the next command, or anything
        await self.tick()
        experts = self.fields(dut.expert, EXPERT_BITS)  # first cycle after done
        self.set_scores(self.rng.integers(0, ONE, self.experts))
        await self.tick()
        await self.tick()
        assert self.fields(dut.expert, EXPERT_BITS) == experts
        return experts, self.fields(dut.expert_weight, EXPERT_WEIGHT_BITS)

    def fields(self, port, width):
        """The picked ones' fields of an output; the unused one must not matter but be 0."""
        word = int(port.value)
        fields = [word >> (width * i) & ((1 << width) - 1) for i in range(2)]
        assert self.top_k == 2 or fields[1] == 0
        return fields[: self.top_k]

    async def check(self, layer, scores, **options):
        """One command against the twin; returns the chip's experts and weights."""
        experts, weights = route(scores, self.bias[layer], self.top_k, self.p.model.routed_scaling_factor)
        got = await self.route(layer, scores, **options)
        assert got == (list(experts), list(weights)), (layer, scores, self.bias[layer])
        return got

    def random_bias(self, spread=None):
        """Biases of all layers, of random size, or the ends of the range."""
        bias = self.rng.integers(BIAS.min, BIAS.max + 1, (self.layers, self.experts))
        return bias >> (self.rng.integers(0, 16, (self.layers, self.experts)) if spread is None else spread)


@cocotb.test()
async def random_scores(dut):
    """Scores and biases of every size."""
    bench = Bench(dut)
    await bench.begin()
    for spread in (None, 0, 12):
        await bench.load(bench.random_bias(spread))
        for _ in range(60):
            scores = bench.rng.integers(0, ONE + 1, bench.experts) >> bench.rng.integers(0, 21, bench.experts)
            await bench.check(random.randrange(bench.layers), scores)


@cocotb.test()
async def small_cases(dut):
    """The cases of tests/cases.py that this size can hold; the array's bench has the scores of their logits."""
    bench = Bench(dut)
    await bench.begin()
    ran = []
    for i, case in enumerate(cases.ROUTER):
        same = (bench.top_k, bench.p.model.routed_scaling_factor) == (cases.ROUTER_TOP_K, case.scale)
        if not same or len(case.logits) > bench.experts:
            continue
        logits, bias = cases.route_operands(case, bench.experts)
        await bench.load(np.tile(bias, (bench.layers, 1)))
        picked, weights = await bench.check(0, lanes.gate(logits))
        weights = cases.by_expert(picked, weights, case)
        assert weights is not None and cases.ulps(weights, case.weights, UNIT) <= cases.ROUTER_ULPS
        ran.append(i)
    report(cases=ran)


@cocotb.test()
async def ties(dut):
    """Equal keys go to the lowest index: all equal, and few different values."""
    bench = Bench(dut)
    await bench.begin()
    await bench.load(np.zeros((bench.layers, bench.experts)))
    for value in (0, 1, 5, ONE):
        await bench.check(0, np.full(bench.experts, value))
    for _ in range(60):
        await bench.check(random.randrange(bench.layers), bench.rng.integers(0, 3, bench.experts) * (ONE // 2))
    # a bias that exactly makes up for a score, and one ulp less
    bias = bench.rng.integers(-40, 40, (bench.layers, bench.experts))
    await bench.load(bias)
    for _ in range(60):
        layer = random.randrange(bench.layers)
        near = bench.rng.choice([0, 0, 0, -1, 1], bench.experts)
        await bench.check(layer, (100 - bias[layer]) * 64 + near)


@cocotb.test()
async def extremes(dut):
    """Ends of scores and biases; negative keys."""
    bench = Bench(dut)
    await bench.begin()
    for low, high in ((BIAS.min, BIAS.max), (BIAS.min, BIAS.min), (BIAS.max, BIAS.max)):
        await bench.load(bench.rng.choice([low, high], (bench.layers, bench.experts)))
        for _ in range(20):
            scores = bench.rng.choice([0, 1, 2, ONE - 1, ONE], bench.experts)
            await bench.check(random.randrange(bench.layers), scores)


@cocotb.test()
async def reciprocal_edges(dut):
    """Sums at and beside every segment edge of the table of 1/x, in several binades."""
    bench = Bench(dut)
    await bench.begin()
    await bench.load(np.full((bench.layers, bench.experts), -5))
    segments = len(RECIP.table)
    seen = set()
    for binade in (6, 12, 19, 20):
        for i in range(segments):
            total = (segments + i << binade) // segments + random.choice([-1, 0, 1])
            first = min(max(total // 2 + random.randrange(-total // 3, total // 3 + 1), 1), ONE)
            scores = np.zeros(bench.experts, np.int64)
            places = random.sample(range(bench.experts), 2)
            scores[places[0]] = first if bench.top_k == 2 else min(total, ONE)
            if bench.top_k == 2:
                scores[places[1]] = min(max(total - first, 0), ONE)
            await bench.check(random.randrange(bench.layers), scores)
            seen.add((binade, i))
    report(edges=len(seen))


@cocotb.test()
async def load_between(dut):
    """A bias word that is loaded again after it was read for the same layer is the one used."""
    bench = Bench(dut)
    await bench.begin()
    for _ in range(8):
        await bench.load(bench.random_bias(0))
        scores = bench.rng.integers(0, ONE + 1, bench.experts)
        dut.cmd.value = 0
        await bench.tick()
        await bench.check(0, scores, shown_before=1)
        await bench.check(0, scores)


@cocotb.test()
async def reset_in_between(dut):
    """A reset while weights are made; the first command after it reads its biases anew."""
    bench = Bench(dut)
    await bench.begin()
    await bench.load(bench.random_bias(0))
    scores = bench.rng.integers(0, ONE + 1, bench.experts)
    await bench.check(0, scores)
    dut.valid.value, dut.cmd.value = 1, 0
    await bench.tick()
    dut.valid.value, dut.rst.value = 0, 1
    await bench.tick()
    dut.rst.value = 0
    await bench.check(0, scores, shown_before=0)


@cocotb.test()
async def one_per_cycle(dut):
    """Commands of one layer back to back: the experts of each follow in the next cycle."""
    bench = Bench(dut)
    await bench.begin()
    await bench.load(bench.random_bias(4))
    dut.cmd.value = 0
    await bench.tick()
    expected = None
    for _ in range(20):
        scores = bench.rng.integers(0, ONE + 1, bench.experts)
        dut.valid.value = 1
        bench.set_scores(scores)
        await bench.tick()
        assert int(dut.done.value) and int(dut.take.value)
        if expected is not None:
            assert bench.fields(dut.expert, EXPERT_BITS) == expected
        expected = list(route(scores, bench.bias[0], bench.top_k)[0])
    dut.valid.value = 0
