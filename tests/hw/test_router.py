"""hw.units.router in Amaranth's simulator: loading and a few routes; tests/cocotb/test_router.py has the wide tests."""

import numpy as np
from amaranth.sim import Simulator

from golden.fixed.numbers import BIAS, SIG
from golden.fixed.router import route
from hw.layouts import Space
from hw.params import from_preset
from hw.units.router import Router


def test_route():
    p = from_preset("micro-k3")
    dut = Router(p)
    experts, layers = p.model.num_experts, p.moe_layers
    rng = np.random.default_rng(3)
    bias = rng.integers(BIAS.min, BIAS.max + 1, (layers, experts))

    async def bench(ctx):
        for layer in range(layers):
            for part in range(experts // 2):
                low, high = (int(b) & 0xFFFF for b in bias[layer, 2 * part : 2 * part + 2])
                for name, value in {"addr": layer, "part": part, "data": low | high << 16}.items():
                    ctx.set(getattr(dut.load, name), value)
                ctx.set(dut.load.space, Space.ROUTER)
                ctx.set(dut.load.valid, 1)
                await ctx.tick()
        ctx.set(dut.load.valid, 0)
        for _ in range(30):
            layer = int(rng.integers(0, layers))
            scores = rng.integers(0, (1 << SIG.frac) + 1, experts) >> rng.integers(0, 21, experts)
            for e, score in enumerate(scores):
                ctx.set(dut.t[0][e], int(score) | 5 << SIG.width)
            ctx.set(dut.cmd.layer, layer)
            await ctx.tick()
            ctx.set(dut.valid, 1)
            assert ctx.get(dut.done) and ctx.get(dut.take)
            await ctx.tick()
            ctx.set(dut.valid, 0)
            picks, weights = route(scores, bias[layer], 2)
            assert [ctx.get(dut.expert[i]) for i in range(2)] == list(picks)
            await ctx.tick().repeat(2)
            assert [ctx.get(dut.expert_weight[i]) for i in range(2)] == list(weights)

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()
