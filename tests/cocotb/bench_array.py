"""Benches of the array unit; the model and the checks are in array_model."""

import dataclasses

import cocotb
import numpy as np
from cocotb.triggers import FallingEdge, RisingEdge

from golden.fixed import functions, lanes
from golden.fixed.mx import E2M1_HALVES
from golden.fixed.numbers import SIG, UNIT, VEC, round_shift, to_fixed, to_float
from golden.formats import E2M1, encode_element
from hw.layouts import Dest, Func
from hw.params import from_preset
from tests import cases
from tests.cocotb.array_model import (
    ArrayModel,
    Command,
    exact_operand,
    exact_words,
    prepare,
    random_command,
    run_commands,
    unpack,
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
    for func, (chunks, constant) in cases.items():
        for i, values in enumerate(chunks):
            if func == Func.SITU:  # gate and up groups alternate
                values = np.moveaxis(values, -1, 1).reshape(-1, p.array_rows)
            exact_words(model, 0, values)
            c = Command(func=func, groups=len(values), dest=T_DESTS[i % 4], constant=constant, first=i % 2)
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


def _grouped(p, *columns):
    """Columns [n] as arrays [groups, rows], zeros behind them."""
    groups = -(-len(columns[0]) // p.array_rows)
    assert groups <= p.groups
    return [np.pad(c, (0, groups * p.array_rows - len(c))).reshape(groups, p.array_rows) for c in columns]


async def _results(io, model, rng, command, n):
    """What the chip's T0 holds in its first n lanes after a command that was compared with the twin."""
    await run_commands(io, model, rng, [command])
    return unpack(io.get("t"), VEC.width, n)


@cocotb.test()
async def small_cases(dut):
    """Decay, SiTU-GLU, the router's scores and the products of MX codes as tests/cases.py has them."""

    def decay_constants(model):
        _, dt_bias, rate = _grouped(model.p, *cases.decay_operands())
        model.consts[: len(rate), :, 0], model.consts[: len(rate), :, 1] = dt_bias, rate

    io, model, rng = await begin(dut, 7, decay_constants)
    p = model.p
    f = _grouped(p, cases.decay_operands()[0])[0]
    exact_words(model, 0, f)
    got = await _results(io, model, rng, exact_operand(Command(func=Func.DECAY, groups=len(f))), len(cases.KDA_ALPHA))
    assert cases.ulps(got, [case.alpha for case in cases.KDA_ALPHA], UNIT) <= cases.KDA_ALPHA_ULPS

    g, u, want = np.array(cases.SITU_GLU).T
    pairs = np.stack(_grouped(p, to_fixed(g, VEC), to_fixed(u, VEC)), axis=1).reshape(-1, p.array_rows)
    exact_words(model, 0, pairs)
    got = await _results(io, model, rng, exact_operand(Command(func=Func.SITU, groups=len(pairs))), len(want))
    assert cases.ulps(got, want, VEC) <= cases.SITU_GLU_ULPS

    for case in cases.ROUTER:
        logits, _ = cases.route_operands(case, p.lanes)
        exact_words(model, 0, logits.reshape(p.groups, p.array_rows))
        got = await _results(io, model, rng, exact_operand(Command(func=Func.GATE, groups=p.groups)), p.lanes)
        assert cases.ulps(got, 1 / (1 + np.exp(-to_float(logits, VEC))), SIG) <= cases.SIGMOID_ULPS
    report(cases=[len(cases.KDA_ALPHA), len(want), len(cases.ROUTER)])


ONE_E2M1, ONE_E4M3, ONE_E8M0, LANE = 2, 56, 127, 5


@cocotb.test()
async def small_format_cases(dut):
    """The codes of tests/cases.py, multiplied by 1 (scales by their inverse): exact in every lane they are in."""
    io, model, rng = await begin(dut, 8)
    rows = model.p.array_rows

    async def product(e2m1=ONE_E2M1, w_scale=ONE_E8M0, e4m3=ONE_E4M3, x_scale=ONE_E8M0):
        model.codes[0], model.scales[0] = 0, w_scale
        model.codes[0, :, LANE] = e2m1
        codes = np.zeros((8, 32), np.int64)
        codes[3, LANE] = e4m3
        c = Command(slot=3, codes=codes, scales=np.full(8, x_scale))
        return to_float(await _results(io, model, rng, c, rows), VEC)

    for case in (case for case in cases.E8M0 if case.value is not None):
        other = 254 - case.code
        assert case.value * 2.0 ** (other - 127) == 1.0
        assert (await product(w_scale=case.code, x_scale=other) == 1.0).all()
        assert (await product(w_scale=other, x_scale=case.code) == 1.0).all()
    for case in (case for case in cases.E4M3_DECODE if case.value is not None):
        assert (await product(e4m3=case.code) == case.value).all()
    inputs, want = np.array(cases.E2M1_ENCODE).T
    for row in range(len(want)):  # every case in every row
        got = await product(e2m1=np.resize(np.roll(encode_element(inputs, E2M1), -row), rows))
        np.testing.assert_array_equal(got, np.resize(np.roll(want, -row), rows))


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
            c.groups, c.blocks, c.base, c.constant, c.group0, c.expert, c.serial = groups, blocks, 0, 0, 0, 0, 0
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
