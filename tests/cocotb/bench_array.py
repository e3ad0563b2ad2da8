"""Benches of the array unit; the model and the checks are in array_model."""

import dataclasses

import cocotb
import numpy as np
from cocotb.triggers import FallingEdge, RisingEdge

from golden.fixed import functions, lanes
from golden.fixed.mx import E2M1_HALVES
from golden.fixed.numbers import SIG, VEC, round_shift
from hw.layouts import Dest, Func
from hw.params import from_preset
from tests.cocotb.array_model import (
    ArrayModel,
    Command,
    exact_operand,
    exact_words,
    prepare,
    random_command,
    run_commands,
)
from tests.cocotb.runner import parameters, report, start

WORDS = 160
T_DESTS = (Dest.T0, Dest.T1, Dest.T2, Dest.T3)


class CocotbIo:
    """Ports by name, as flat integers. Inputs change after the rising edge, outputs are read at the falling one."""

    def __init__(self, dut):
        self.dut = dut

    def set(self, name, value):
        getattr(self.dut, name).value = value

    def get(self, name):
        return int(getattr(self.dut, name).value)

    async def settle(self):
        await FallingEdge(self.dut.clk)

    async def tick(self):
        await RisingEdge(self.dut.clk)


def chip():
    """The parameters the caller asked for."""
    return dataclasses.replace(from_preset(parameters()["preset"]), array_rows=parameters()["rows"])


async def begin(dut, seed, change=None):
    """(io, model, generator) after reset, loading and writing everything once; ``change(model)`` before."""
    io, rng = CocotbIo(dut), np.random.default_rng(seed)
    model = ArrayModel(chip(), rng, words=WORDS)
    if change is not None:
        change(model)
    await start(dut, before=lambda: [io.set(name, 0) for name in ("valid", "load")])
    await prepare(io, model, rng)
    return io, model, rng


@cocotb.test()
async def random_commands(dut):
    """Random commands, with gaps and a head that is not always ready."""
    io, model, rng = await begin(dut, 1)
    for gap, ready, count in ((0.0, 1.0, 60), (0.3, 0.5, 60), (0.9, 0.9, 15)):
        commands = [random_command(model.p, rng, model.words) for _ in range(count)]
        bench = await run_commands(io, model, rng, commands, gap=gap, ready=ready)
        assert bench.head_seen == sum(c.groups for c in commands if c.func == Func.HEAD)


@cocotb.test()
async def every_pair_of_functions(dut):
    """Each function behind each other, short commands without gaps: shared circuits and the write port."""
    io, model, rng = await begin(dut, 2)
    commands = []
    for a in Func:
        for b in Func:
            for blocks in ((1, 1), (1, 2), (2, 1)):
                for func, n in zip((a, b), blocks, strict=True):
                    c = random_command(model.p, rng, model.words, (func,))
                    c.blocks, c.base, c.expert = n, 0, 0
                    c.groups = min(c.groups, 2)
                    commands.append(c)
    bench = await run_commands(io, model, rng, commands)
    assert bench.completed == len(commands)


def _chunks(p, values):
    """Values as arrays [groups, rows], groups at most a register's, the last one filled up."""
    size = p.groups * p.array_rows
    values = np.resize(values, -(-len(values) // size) * size)
    return values.reshape(-1, p.groups, p.array_rows)


def _around(points):
    points = np.asarray(points)
    near = (points[:, None] + np.arange(-1, 2)).ravel()
    return np.unique(np.clip(np.concatenate([near, -near, [VEC.min, VEC.max]]), VEC.min, VEC.max))


def _sigmoid_edges():
    """Arguments (14 fraction bits) at which sigmoid's table changes its row."""
    return np.array([int((s + i * w) * 2**14) for s, n, w in functions.SIGMOID_REGIONS for i in range(n + 1)])


def _decay_points(lower_bound):
    """z (VEC) on both sides of every change of exp2's table row or shift."""
    z = np.arange(-(17 << 13), 17 << 13)
    t = round_shift(lanes.sigmoid(z << 1) * lanes.decay_factor(lower_bound), SIG.frac)
    row = t >> 12
    edge = np.flatnonzero(np.diff(row))
    assert len(set(row)) == int(row.max()) + 1 > 100
    return np.concatenate([z[edge], z[edge + 1], [VEC.min, VEC.max]])


@cocotb.test()
async def table_edges(dut):
    """Every row of the function tables at both ends, through each lane function."""

    def unit_constants(model):
        model.consts[: model.p.groups] = 0, 0, 0, 1 << 12  # conv: the newest value
        model.consts[model.p.groups : 2 * model.p.groups] = 0, 1 << 11, 0, 0  # decay: rate 1

    io, model, rng = await begin(dut, 3, unit_constants)
    p = model.p
    edges = _sigmoid_edges()
    full, half = _around(edges // 2), _around(edges)
    factor = np.floor(2.0 / p.model.activation_situ_linear_beta * 2**20 + 0.5)
    up = _around((edges * 2.0**19 / factor).astype(np.int64))
    gate = np.concatenate([full, half])
    up = rng.permutation(np.resize(up, len(gate)))
    cases = {
        Func.GATE: (_chunks(p, full), 0),
        Func.CONV: (_chunks(p, full), 0),
        Func.DECAY: (_chunks(p, np.concatenate([_decay_points(p.model.gate_lower_bound), full[::7]])), p.groups),
        Func.SITU: (np.concatenate([_chunks(p, gate)[..., None], _chunks(p, up)[..., None]], axis=-1), 0),
    }
    for func, (chunks, const) in cases.items():
        for i, values in enumerate(chunks):
            if func == Func.SITU:  # gate and up groups alternate
                values = np.moveaxis(values, -1, 1).reshape(-1, p.array_rows)
            exact_words(model, 0, values)
            c = Command(func=func, groups=len(values), dest=T_DESTS[i % 4], const=const, first=i % 2)
            c = exact_operand(c)
            np.testing.assert_array_equal(model.logits(c), values)
            await run_commands(io, model, rng, [c])
    report(groups=sum(len(chunks) for chunks, _ in cases.values()))


@cocotb.test()
async def scale_edges(dut):
    """Every shift of a block, left and right, for the smallest, largest and random dot products; saturation."""
    io, model, rng = await begin(dut, 4)
    p = model.p
    rows, groups = p.array_rows, p.groups
    largest = {1: 7, -1: 15}
    for kind in range(6):
        for sign in (1, -1):
            codes, weights = np.zeros(32, np.int64), rng.integers(0, 16, (groups, rows, 32))
            if kind == 0:  # one product of one unit
                codes[5], weights[:] = 1, 0
                weights[..., 5] = 1 if sign == 1 else 9
            elif kind == 1:  # all products the largest
                codes[:], weights[:] = 126, largest[sign]
            elif kind == 2:  # halves and nearly halves
                codes[0], codes[1], weights[:] = 0x08 + rng.integers(64), 1, 0
                weights[..., 0], weights[..., 1] = 2 if sign == 1 else 10, rng.integers(0, 16, (groups, rows))
            else:
                codes = rng.integers(0, 126, 32) | rng.integers(0, 2, 32) << 7
            for lowest in range(-36, 36, groups * rows):
                scales = np.clip(127 + lowest + np.arange(groups * rows).reshape(groups, rows), 0, 254)
                model.codes[:groups], model.scales[:groups] = weights, scales
                c = Command(groups=groups, dest=T_DESTS[kind % 4], codes=np.tile(codes, (8, 1)), scales=np.full(8, 127))
                await run_commands(io, model, rng, [c])
    assert max(E2M1_HALVES) == 12
    # sums of four saturated blocks, then added to P until it saturates
    for sign in (1, -1):
        model.codes[:4], model.scales[:4] = largest[sign], 130
        c = Command(blocks=4, dest=Dest.P, codes=np.full((8, 32), 126), scales=np.full(8, 127))
        await run_commands(io, model, rng, [c, dataclasses.replace(c, dest=Dest.P_ADD)])
        half = Command(blocks=1, dest=Dest.P_ADD, base=8, codes=c.codes, scales=c.scales)
        model.codes[8], model.scales[8] = largest[-sign], 0
        await run_commands(io, model, rng, [half, half])


@cocotb.test()
async def embedding(dut):
    """Every token position in a word, with scales from far below to far above the range."""
    io, model, rng = await begin(dut, 5)
    per_word = model.p.array_rows // model.p.hidden_blocks
    model.scales[:4] = np.clip(rng.integers(96, 150, model.scales[:4].shape), 0, 254)
    tokens = rng.permutation(4 * per_word)
    await run_commands(io, model, rng, [Command(func=Func.EMBED, token=int(t)) for t in tokens])
    junk = [Command(func=Func.EMBED, token=int(t), base=3, blocks=4, groups=5, dest=Dest.T1) for t in tokens[:3]]
    await run_commands(io, model, rng, junk, gap=0.5)


def _spacing(bench):
    """Cycles from each word to the next over all commands of a run."""
    return np.diff(np.concatenate(bench.issues)).tolist()


@cocotb.test()
async def pace(dut):
    """Words are issued without a bubble wherever the contract says so, and with exactly the stated ones elsewhere."""
    io, model, rng = await begin(dut, 6)

    async def spacing(*shapes):
        commands = []
        for func, groups, blocks in shapes:
            c = random_command(model.p, rng, model.words, (func,))
            c.groups, c.blocks, c.base, c.const, c.group0, c.expert, c.serial = groups, blocks, 0, 0, 0, 0, 0
            c.dest = Dest.T0
            commands.append(c)
        return _spacing(await run_commands(io, model, rng, commands))

    for func in (Func.LINEAR, Func.GATE, Func.SITU, Func.HEAD, Func.DECAY):
        assert set(await spacing((func, 2, 1), (func, 2, 2), (func, 2, 1))) == {1}, func
    assert await spacing((Func.LINEAR, 2, 2), (Func.GATE, 1, 1), (Func.CONV, 1, 2)) == [1] * 6
    assert await spacing((Func.CONV, 2, 1), (Func.CONV, 2, 2)) == [2, 1, 1, 1, 1]
    assert await spacing((Func.CONV, 2, 1), (Func.CONV, 2, 1)) == [2, 2, 2]
    assert await spacing((Func.CONV, 2, 2), (Func.LINEAR, 1, 1)) == [1, 1, 1, 3]
    assert await spacing((Func.CONV, 1, 2), (Func.LINEAR, 2, 4)) == [1] * 9
    assert await spacing((Func.DECAY, 1, 1), (Func.SITU, 2, 1)) == [3, 1]
    assert await spacing((Func.DECAY, 1, 1), (Func.GATE, 1, 1), (Func.HEAD, 2, 1)) == [2, 2, 1]
