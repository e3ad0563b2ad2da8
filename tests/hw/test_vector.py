"""VectorUnit equals the golden functions bit for bit, in the cycles that it states (Amaranth's simulator)."""

import pytest
from amaranth.sim import Simulator

from golden.fixed.numbers import CACHE, KEY
from hw.layouts import Out, Space, VectorOp
from hw.timing import vector_cycles, vector_take
from hw.units.vector import VectorUnit
from tests.hw.vector_reference import Reference, Stimulus, params


def pack(values, width):
    """Lane values as one integer, lane 0 in the low bits."""
    return sum((int(v) & ((1 << width) - 1)) << (width * i) for i, v in enumerate(values))


async def load(ctx, dut, constants):
    """Write the constant memory over the load bus."""
    for addr, word in enumerate(constants):
        bits = pack(word, 16)
        for part in range(dut.memory.lanes):
            data = (bits >> (32 * part)) & 0xFFFFFFFF
            ctx.set(dut.load, {"valid": 1, "space": Space.VECTOR, "addr": addr, "part": part, "data": data})
            await ctx.tick()
    ctx.set(dut.load, {"valid": 0})


def drive(ctx, dut, given):
    """Put operands on the inputs."""
    for name in ("t", "prefix", "kda_o", "context"):
        value = getattr(given, name)
        ctx.set(getattr(dut, name).as_value(), pack(value.ravel(), 24))
    ctx.set(dut.context_mantissa.as_value(), pack(given.context_mantissa, 19))
    ctx.set(dut.expert_weight.as_value(), pack(given.expert_weight, 19))


async def execute(ctx, dut, reference, command, given):
    """Show a command from the cycle before it is valid; check cycles and results."""
    drive(ctx, dut, given)
    ctx.set(dut.cmd, command)
    await ctx.tick()
    ctx.set(dut.valid, 1)
    expected = reference.run(command, given)
    for cycle in range(1, vector_cycles(command) + 1):
        done, take = ctx.get(dut.done), ctx.get(dut.take)
        assert (done, take) == (cycle == vector_cycles(command), cycle == vector_take(command)), (cycle, command)
        if done:
            check_writes(ctx, dut, command, expected)
        await ctx.tick()
        if take:
            ctx.set(dut.valid, 0)
    for slot, (codes, scale) in expected.slots.items():
        got = ctx.get(dut.slots[slot])
        assert ([got.codes[i] for i in range(32)], got.scale) == (codes, scale), command


def check_writes(ctx, dut, command, expected):
    """The ports of the KDA engine and the cache in the cycle of done."""
    flow = command["op"] == VectorOp.FLOW
    enables = {Out.KDA_K: dut.k_we, Out.KDA_Q: dut.q_we, Out.CACHE: dut.cache_we}
    for out, enable in enables.items():
        assert ctx.get(enable) == (flow and command["out"] == out)
    if expected.key is not None:
        assert ctx.get(dut.key.as_value()) == pack(expected.key, KEY.width), command
    if expected.latent is not None:
        assert ctx.get(dut.cache_latent.as_value()) == pack(expected.latent, CACHE.width), command
        assert ctx.get(dut.cache_layer) == command["layer"]


@pytest.mark.parametrize("preset,count", [("micro-k3", 20)])
def test_random_commands(preset, count):
    p = params(preset)
    stimulus = Stimulus(p, seed=7)
    reference = Reference(p, stimulus.constants())
    dut = VectorUnit(p, constants=stimulus.words)

    async def bench(ctx):
        await load(ctx, dut, reference.constants)
        for command in [*stimulus.opening(), *(stimulus.command() for _ in range(count))]:
            await execute(ctx, dut, reference, command, stimulus.operands())

    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(bench)
    sim.run()
