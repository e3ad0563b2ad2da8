"""KdaEngine against golden.fixed.kda.state_update: o, the memory's contents, cycles, and what may change meanwhile."""

import random

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge

from golden.fixed import kda as golden
from golden.fixed.numbers import KEY, NRM, SATURATIONS, SIG, STATE, UNIT, VEC, round_shift, to_fixed
from hw.layouts import KdaOp
from hw.memory.sram import Sram
from hw.params import HEAD, T_REGS, from_preset
from hw.timing import kda_cycles
from tests import cases
from tests.cocotb.runner import parameters, start

CYCLES = {op: kda_cycles(op) for op in (KdaOp.SCAN, KdaOp.READ, KdaOp.WRITE)}
KEY_KINDS = ("random", "one", "flat")  # by the norm's spread: any, one key only, all equal
VALUE_KINDS = ("random", "ends", "small")


def pack(values, width):
    """Integers as one word, the first in the lowest bits."""
    return sum((int(v) & ((1 << width) - 1)) << (width * i) for i, v in enumerate(values))


def unpack(word, width, count):
    """Signed integers of a word."""
    raw = np.array([(word >> (width * i)) & ((1 << width) - 1) for i in range(count)], np.int64)
    return raw - ((raw >> (width - 1)) << width)


class Bench:
    """Drives one engine and keeps the state that its memory should hold."""

    def __init__(self, dut):
        self.dut = dut
        self.p = from_preset(parameters()["preset"])
        self.rng = np.random.default_rng(random.getrandbits(32))
        self.heads = self.p.model.kda_num_heads
        self.used = HEAD * self.heads
        self.t = [0] * T_REGS
        self.memory = Sram(HEAD * self.p.kda_layers, STATE.width * self.used)
        self.state = np.zeros((self.p.kda_layers, self.heads, HEAD, HEAD), np.int64)

    async def begin(self):
        """Clock and reset, all inputs random but for the strobes."""

        def idle():
            for name in ("valid", "k_we", "q_we"):
                getattr(self.dut, name).value = 0

        await start(self.dut, before=idle)
        self.scramble()

    def scramble(self):
        """Garbage on inputs that no one may look at."""
        for number in range(len(self.t)):
            self.set_t(number, [], 0)
        self.dut.key.value = random.getrandbits(self.p.lanes * KEY.width)
        self.dut.first.value = random.getrandbits(1)
        self.dut.cmd.value = random.getrandbits(len(self.dut.cmd))

    def set_t(self, number, values, junk_from):
        """Values in the low bits of a T register's lanes; bits from ``junk_from`` on and lanes beyond are random."""
        lanes = [random.getrandbits(VEC.width) for _ in range(self.p.lanes)]
        mask = (1 << junk_from) - 1
        for i, value in enumerate(values):
            lanes[i] = (lanes[i] & ~mask) | (int(value) & mask)
        self.t[number] = pack(lanes, VEC.width)
        self.dut.t.value = pack(self.t, self.p.lanes * VEC.width)

    async def load_key(self, port, values):
        """One write of k or q."""
        junk = [random.getrandbits(KEY.width) for _ in range(self.p.lanes - self.used)]
        self.dut.key.value = pack([*values.ravel(), *junk], KEY.width)
        port.value = 1
        await RisingEdge(self.dut.clk)
        port.value = 0
        self.dut.key.value = random.getrandbits(self.p.lanes * KEY.width)

    async def command(self, op, layer, after_first=lambda: None, gap=None):
        """One command, in exactly its number of cycles; ``after_first`` runs after the first."""
        dut = self.dut
        for _ in range(random.randrange(3) if gap is None else gap):
            dut.valid.value = 0
            await RisingEdge(dut.clk)
            assert not int(dut.take.value) and not int(dut.done.value)
        dut.valid.value = 1
        dut.cmd.value = op.value | layer << 2
        for cycle in range(1, CYCLES[op] + 1):
            await RisingEdge(dut.clk)  # reads are of the cycle that ends here
            end = cycle == CYCLES[op]
            assert (int(dut.take.value), int(dut.done.value)) == (end, end), f"{op} cycle {cycle}"
            if cycle == 1:
                after_first()
        dut.valid.value = 0

    def read_o(self):
        """o of the heads; the other lanes must be 0."""
        o = unpack(int(self.dut.o.value), NRM.width, self.p.lanes)
        assert not o[self.used :].any()
        return o[: self.used]

    def memory_word(self, address):
        """One word of the state memory."""
        word = 0
        for i in range(self.memory.banks):
            cell = getattr(self.dut.memory, f"bank_{i}").mem[address].value
            word |= int(cell) << (self.memory.bank_width * i)
        return unpack(word, STATE.width, self.used)

    def keys(self, kind):
        """Keys [heads, HEAD] of norm 1 at most, or what rounding may add to that."""
        if kind == "one":
            sign = self.rng.choice([KEY.min, KEY.max], (self.heads, 1))
            return np.eye(HEAD, dtype=np.int64)[self.rng.integers(0, HEAD, self.heads)] * sign
        if kind == "flat":  # for q = k the product is just above 1: 19 bits
            return self.rng.choice([-23174, 23174], (self.heads, HEAD))
        x = self.rng.standard_normal((self.heads, HEAD))
        x *= self.rng.uniform(0.1, 1.0, (self.heads, 1)) / np.linalg.norm(x, axis=-1, keepdims=True)
        return np.floor(x * 2**KEY.frac + 0.5).astype(np.int64)

    def operands(self, key_kind, kind):
        """k, q, v, alpha, beta (SIG) of one token."""
        rng, heads = self.rng, self.heads
        k, other = self.keys(key_kind), self.keys(random.choice(KEY_KINDS))
        choice = rng.integers(0, 3, (heads, 1))  # q is k, -k or something else
        q = np.where(choice == 0, k, np.where(choice == 1, np.clip(-k, KEY.min, KEY.max), other))
        one, sig_one = 1 << UNIT.frac, 1 << SIG.frac
        if kind == "ends":
            v = rng.choice([VEC.min, VEC.max, 0], (heads, HEAD))
            alpha = rng.choice([0, 1, one - 1, one], (heads, HEAD), p=[0.1, 0.1, 0.2, 0.6])
            beta = rng.choice([0, 7, 8, sig_one - 8, sig_one - 9, sig_one], heads, p=[0.1, 0.1, 0.1, 0.1, 0.1, 0.5])
        else:
            shift = rng.integers(0, VEC.width, (heads, HEAD)) if kind == "random" else 18
            v = rng.integers(VEC.min, VEC.max + 1, (heads, HEAD)) >> shift
            alpha, beta = rng.integers(0, one + 1, (heads, HEAD)), rng.integers(0, sig_one + 1, heads)
        return k, q, v, alpha, beta

    async def token(self, layer, first, key_kind, kind):
        """One layer of one token with random operands."""
        await self.step(layer, first, *self.operands(key_kind, kind))

    async def step(self, layer, first, k, q, v, alpha, beta):
        """One layer of one token, everything compared; operands as ``operands`` gives them."""
        dut = self.dut
        for port, values in random.sample([(dut.k_we, k), (dut.q_we, q)], 2):
            await self.load_key(port, values)
        before = np.zeros_like(self.state[layer]) if first else self.state[layer]
        unit_beta = round_shift(beta, SIG.frac - UNIT.frac)
        expected = golden.state_update(before, k, q, v, alpha, unit_beta)
        self.set_t(3, alpha.ravel(), UNIT.width)

        def after_start():
            self.set_t(3, [], 0)
            dut.first.value = random.getrandbits(1)

        dut.first.value = first
        await self.command(KdaOp.SCAN, layer, after_start)
        await self.load_key(dut.q_we, self.keys("random"))
        self.set_t(0, beta, SIG.width)
        self.set_t(1, v.ravel(), VEC.width)
        await self.command(KdaOp.READ, layer)
        self.scramble()
        await self.command(KdaOp.WRITE, layer)
        await RisingEdge(dut.clk)  # the last row is in memory
        np.testing.assert_array_equal(self.read_o(), expected.o.ravel())
        self.state[layer] = expected.state
        for row in range(HEAD):
            got = self.memory_word(layer * HEAD + row)
            np.testing.assert_array_equal(got, expected.state[:, row].ravel(), f"layer {layer} row {row}")


@cocotb.test()
async def tokens(dut):
    """All layers of several tokens, the kinds of operands crossed; the memory starts random."""
    bench = Bench(dut)
    await bench.begin()
    for token in range(parameters()["tokens"]):
        for layer in range(bench.p.kda_layers):
            key_kind = KEY_KINDS[(token + layer) % len(KEY_KINDS)]
            kind = VALUE_KINDS[(token + token // 3 + layer) % len(VALUE_KINDS)]
            await bench.token(layer, int(token == 0), key_kind, kind)


@cocotb.test()
async def saturation(dut):
    """A state that grows to both ends of its range: every saturation is reached."""
    bench = Bench(dut)
    await bench.begin()
    SATURATIONS.clear()
    for token in range(6):
        await bench.token(token % bench.p.kda_layers, int(token < bench.p.kda_layers), "one", "ends")
        await bench.token(token % bench.p.kda_layers, 0, "flat", "ends")
    assert {"vec", "state", "nrm", "read"} <= set(SATURATIONS), dict(SATURATIONS)


@cocotb.test()
async def small_cases(dut):
    """The steps of tests/cases.py on every head: what the unit put out and stored."""
    bench = Bench(dut)
    await bench.begin()
    heads, bound = bench.heads, cases.KDA_STEP_ULPS * VEC.ulp
    for first, case in zip((1, 0), cases.KDA_STEPS, strict=True):
        operands = ((case.k, KEY), (case.q, KEY), (case.v, VEC), (case.alpha, UNIT))
        wide = [np.tile(cases.padded(values, HEAD, fmt), (heads, 1)) for values, fmt in operands]
        await bench.step(0, first, *wide, to_fixed(np.full(heads, case.beta), SIG))
        out = bench.read_o().reshape(heads, HEAD)
        state = np.stack([bench.memory_word(row).reshape(heads, HEAD) for row in range(HEAD)], axis=1)
        assert cases.ulps(out[:, :2], case.out, NRM) * NRM.ulp <= bound
        assert cases.ulps(state[:, :2, :2], case.state, STATE) * STATE.ulp <= bound
        assert not out[:, 2:].any() and not state[:, 2:].any() and not state[:, :, 2:].any()


@cocotb.test()
async def back_to_back(dut):
    """SCAN, READ, WRITE and the next layer's SCAN without a gap; o is there in the cycle after READ's done."""
    bench = Bench(dut)
    await bench.begin()
    k, q, v, alpha, beta = bench.operands("random", "random")
    await bench.load_key(dut.k_we, k)
    await bench.load_key(dut.q_we, q)
    bench.set_t(0, beta, SIG.width)
    bench.set_t(1, v.ravel(), VEC.width)
    bench.set_t(3, alpha.ravel(), UNIT.width)
    dut.first.value = 1
    expected = golden.state_update(
        np.zeros_like(bench.state[0]), k, q, v, alpha, round_shift(beta, SIG.frac - UNIT.frac)
    )
    seen = []
    for layer in (0, 1):
        await bench.command(KdaOp.SCAN, layer, gap=0)
        await bench.command(KdaOp.READ, layer, gap=0)
        await bench.command(KdaOp.WRITE, layer, lambda: seen.append(bench.read_o()), gap=0)
    await RisingEdge(dut.clk)
    assert len(seen) == 2
    for o in seen:
        np.testing.assert_array_equal(o, expected.o.ravel())
    for layer in (0, 1):
        for row in range(HEAD):
            np.testing.assert_array_equal(bench.memory_word(layer * HEAD + row), expected.state[:, row].ravel())


@cocotb.test()
async def reset_in_between(dut):
    """A reset in the middle of SCAN or WRITE leaves nothing behind."""
    bench = Bench(dut)
    await bench.begin()
    await bench.token(0, 1, "random", "random")
    for op, cycles in ((KdaOp.SCAN, 11), (KdaOp.WRITE, 7), (KdaOp.SCAN, HEAD)):
        dut.valid.value, dut.cmd.value = 1, op.value
        for _ in range(cycles):
            await RisingEdge(dut.clk)
        dut.rst.value, dut.valid.value = 1, 0
        await RisingEdge(dut.clk)
        dut.rst.value = 0
        await bench.token(0, 1, "random", "random")
        await bench.token(0, 0, "random", "random")
