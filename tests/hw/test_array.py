"""The array unit equals the twin in Amaranth's simulator (a few commands; the full bench is tests/cocotb)."""

import dataclasses

import numpy as np
import pytest
from amaranth.hdl import Value
from amaranth.sim import Simulator

from hw.layouts import Func
from hw.params import from_preset
from hw.units.array import ArrayUnit
from tests.cocotb.array_model import ArrayModel, prepare, random_command, run_commands


class PysimIo:
    """Ports of the unit by name, as flat integers."""

    def __init__(self, ctx, dut):
        self.ctx, self.dut = ctx, dut

    def set(self, name, value):
        port = Value.cast(getattr(self.dut, name))
        self.ctx.set(port, value)

    def get(self, name):
        return self.ctx.get(Value.cast(getattr(self.dut, name)))

    async def settle(self):
        pass

    async def tick(self):
        await self.ctx.tick()


@pytest.mark.parametrize("preset,rows", [("micro-k3", 8)])
def test_commands(preset, rows):
    p = dataclasses.replace(from_preset(preset), array_rows=rows)
    dut = ArrayUnit(p)
    rng = np.random.default_rng(7)
    model = ArrayModel(p, rng, words=48)
    funcs = [f for f in Func for _ in range(2)]
    done = []

    async def bench(ctx):
        io = PysimIo(ctx, dut)
        await prepare(io, model, rng)
        commands = [random_command(p, rng, model.words, (f,)) for f in rng.permutation(funcs)]
        done.append(await run_commands(io, model, rng, commands, gap=0.3, ready=0.6))

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()
    assert done[0].completed == len(funcs)
