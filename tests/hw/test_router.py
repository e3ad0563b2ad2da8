"""Router equals golden.fixed.router.route: random scores, ties, zeros, extreme biases, latency."""

import dataclasses

import numpy as np
import pytest
from amaranth.sim import Simulator

from golden.fixed.numbers import BIAS, SIG, ints
from golden.fixed.router import route
from hw.layouts import Space
from hw.params import Params, from_preset
from hw.units.router import Router


def cases(experts: int) -> list[tuple[np.ndarray, int]]:
    """(scores, layer): random ones and the corners."""
    rng = np.random.default_rng(experts)
    one = 1 << SIG.frac
    corners = [np.zeros(experts), np.full(experts, one), np.arange(experts) == experts - 1, np.arange(experts) * 0 + 1]
    wide = [rng.integers(0, one + 1, experts) for _ in range(20)]
    narrow = [rng.integers(0, 1 << rng.integers(1, 21), experts) for _ in range(20)]
    close = [one // 2 + rng.integers(-1, 2, experts) for _ in range(10)]
    return [(ints(s), i % 2) for i, s in enumerate(corners + wide + narrow + close)]


@pytest.mark.parametrize(
    "experts,top_k,scale", [(16, 2, 1.0), (4, 2, 1.0), (16, 1, 1.0), (8, 2, 2.828), (7, 2, 1.0), (32, 2, 0.5)]
)
def test_router_equals_twin(experts, top_k, scale):
    model = dataclasses.replace(
        from_preset("nano-k3").model, num_experts=experts, num_experts_per_token=top_k, routed_scaling_factor=scale
    )
    p = Params(model)
    dut = Router(p)
    rng = np.random.default_rng(1)
    biases = [ints(np.zeros(experts)), rng.integers(BIAS.min, BIAS.max + 1, experts)]

    async def load(ctx):
        for layer, bias in enumerate(biases):
            word = sum((int(b) & 0xFFFF) << (16 * e) for e, b in enumerate(bias))
            for part in range(-(-experts * 16 // 32)):
                ctx.set(dut.load.valid, 1)
                ctx.set(dut.load.space, Space.ROUTER)
                ctx.set(dut.load.addr, layer)
                ctx.set(dut.load.part, part)
                ctx.set(dut.load.data, (word >> (32 * part)) & 0xFFFFFFFF)
                await ctx.tick()
        ctx.set(dut.load.valid, 0)

    async def bench(ctx):
        await load(ctx)
        for i, (scores, layer) in enumerate(cases(experts)):
            for e, s in enumerate(scores):
                # the bits above SIG are not the router's business
                ctx.set(dut.t[0][e], int(s) | (i % 4) << 22)
            ctx.set(dut.cmd.layer, layer)
            ctx.set(dut.valid, 1)
            cycles = 1
            while not ctx.get(dut.done):
                await ctx.tick()
                cycles += 1
            assert ctx.get(dut.take) and cycles == 2 + top_k
            await ctx.tick()
            ctx.set(dut.valid, 0)
            picked, weights = route(scores, biases[layer], top_k, scale)
            assert [ctx.get(dut.expert[k]) for k in range(top_k)] == list(picked)
            assert [ctx.get(dut.expert_weight[k]) for k in range(top_k)] == list(weights)
            for _ in range(i % 3):
                await ctx.tick()
                assert not ctx.get(dut.done)

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()
