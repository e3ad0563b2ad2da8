"""The issuers run any program exactly as an executable model of the contract (docs/chip.md, Commands) says."""

import random

import pytest
from amaranth.hdl import Value
from amaranth.lib import data
from amaranth.sim import Simulator

from hw.control.issuer import Sequencer, body_length, check_reachable
from hw.layouts import ArrayCommand, KdaCommand, MlaCommand, RouterCommand, VectorCommand
from hw.params import from_preset
from hw.program import Step, compile_program

UNITS = ("array", "vector", "router")
COMMANDS = {
    "array": ArrayCommand,
    "vector": VectorCommand,
    "kda": KdaCommand,
    "mla": MlaCommand,
    "router": RouterCommand,
}


class Payload(data.Struct):
    """Stands for a unit's command."""

    number: 6
    other: 3


def programs(seed):
    """Random programs that end: needs point at commands that come earlier in a random interleaving."""
    rng = random.Random(seed)
    order = [u for u in UNITS for _ in range(rng.randint(1, 9))]
    rng.shuffle(order)
    head_from = rng.randint(0, len(order))
    out = {u: [] for u in UNITS}
    for i, unit in enumerate(order):
        need = {v: rng.randint(0, len(out[v])) for v in UNITS if rng.random() < 0.6}
        command = {"number": len(out[unit]), "other": rng.randrange(8)}
        out[unit].append(Step(command, need, i >= head_from, f"{unit}{i}"))
    return out


def fields(payload, word):
    """Values of a command's fields, from its bits."""
    layout = data.Layout.cast(payload)
    return {name: word >> field.offset & (1 << field.width) - 1 for name, field in layout}


def values(command):
    """A step's values as plain numbers."""
    return {name: getattr(value, "value", value) for name, value in command.items()}


def simulate(steps, tokens, seed, payloads=None):
    """Run tokens (skip_head flags) on random-latency units; checks every cycle against the model."""
    rng = random.Random(seed)
    payloads = payloads or dict.fromkeys(steps, Payload)
    units = tuple(steps)
    dut = Sequencer(steps, payloads)

    async def bench(ctx):
        for skip in tokens:
            await run_token(ctx, skip)

    async def run_token(ctx, skip):
        length = {u: body_length(s) if skip else len(s) for u, s in steps.items()}
        taken, done = dict.fromkeys(units, 0), dict.fromkeys(units, 0)
        pending = {u: [] for u in units}  # cycles until done, in order
        ctx.set(dut.restart, 1)
        ctx.set(dut.skip_head, skip)
        await ctx.tick()
        ctx.set(dut.restart, 0)
        ctx.set(dut.skip_head, rng.getrandbits(1))  # only sampled with restart
        for _ in range(2000):
            takes = {}
            for i, u in enumerate(units):
                waiting = taken[u] < length[u]
                ready = waiting and all(done[v] >= n for v, n in steps[u][taken[u]].need.items())
                assert ctx.get(getattr(dut, f"valid_{u}")) == ready
                strobes = [ctx.get(x) >> i & 1 for x in (dut.busy, dut.stalled, dut.idle)]
                assert strobes == [ready, waiting and not ready, not waiting]
                if waiting:
                    word = ctx.get(Value.cast(getattr(dut, f"cmd_{u}")))
                    assert fields(payloads[u], word) == values(steps[u][taken[u]].command)
                takes[u] = ready and rng.random() < 0.6
                ctx.set(getattr(dut, f"take_{u}"), takes[u] or (not ready and rng.random() < 0.2))
                pending[u] = [max(0, p - 1) for p in pending[u]] + ([rng.randint(0, 3)] if takes[u] else [])
                finishes = bool(pending[u]) and pending[u][0] == 0
                ctx.set(getattr(dut, f"done_{u}"), finishes)
                if finishes:
                    pending[u].pop(0)
                taken[u] += takes[u]
                takes[u] = finishes
            assert ctx.get(dut.finished) == all(done[u] == length[u] for u in units)
            if all(done[u] == length[u] for u in units):
                return
            await ctx.tick()
            for u in units:
                done[u] += takes[u]
        pytest.fail("the program did not end")

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed):
    simulate(programs(seed), [0, 1, 1, 0, 0], seed)


@pytest.mark.parametrize("preset", ["nano-k3", "micro-k3"])
def test_compiled_program(preset):
    """The program of a preset: every field of every command, with and without the head."""
    simulate(compile_program(from_preset(preset)).units, [0, 1], 1, COMMANDS)


def test_unit_with_head_steps_only():
    steps = {
        "array": [Step({"number": 1, "other": 0}, {}, False, "a")],
        "vector": [Step({"number": 2, "other": 0}, {"array": 1}, True, "b")],
        "router": [],
    }
    simulate(steps, [1, 0, 1, 1], 1)


def test_refused_programs():
    wait = Step({"number": 0, "other": 0}, {"vector": 1}, False, "first")
    with pytest.raises(ValueError, match="never ends: array at first"):
        check_reachable({"array": [wait], "vector": []})
    head = Step({"number": 0, "other": 0}, {}, True, "head")
    with pytest.raises(ValueError, match="never ends without its head: array at first"):
        check_reachable({"array": [wait], "vector": [head]})
    with pytest.raises(ValueError, match="comes before"):
        body_length([head, wait])
    with pytest.raises(ValueError, match="unknown units: vector"):
        check_reachable({"array": [wait]})
