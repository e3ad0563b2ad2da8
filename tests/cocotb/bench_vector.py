"""VectorUnit against the golden functions: results, and the exact cycle of every take and done."""

import random
from collections import deque

import cocotb
import numpy as np
from cocotb.triggers import FallingEdge, RisingEdge

from golden.fixed.functions import RSQRT
from golden.fixed.mx import e4m3_units
from golden.fixed.numbers import CACHE, CONST, KEY, NRM, ROWSCALE, UNIT, VEC, to_fixed, to_float
from hw.layouts import Combine, Eps, LoadBus, Norm, Out, Source, Space, VectorCommand, VectorOp
from hw.params import BLOCK, SLOTS
from hw.timing import vector_cycles, vector_take
from hw.units.vector import LOAD_BITS
from tests import cases
from tests.cocotb.runner import parameters, report, start
from tests.hw.vector_reference import Operands, Reference, Stimulus, legal, params

SLOT_BITS = 8 * BLOCK + 8


def pack(values, width):
    """Lane values as one integer, lane 0 in the low bits."""
    word = 0
    for i, v in enumerate(values):
        word |= (int(v) & ((1 << width) - 1)) << (width * i)
    return word


def unpack(word, width, count):
    """Signed lane values of an integer."""
    raw = np.array([word >> (width * i) & ((1 << width) - 1) for i in range(count)], np.int64)
    return raw - ((raw >> (width - 1)) << width)


def slot_word(codes, scale):
    """A slot as it lies in SLOT_FILE."""
    return pack(codes, 8) | scale << (8 * BLOCK)


class Driver:
    """Shows commands as an issuer does and checks everything that comes out, cycle by cycle."""

    def __init__(self, dut, reference):
        self.dut = dut
        self.reference = reference
        self.cycle = 0
        self.flight = deque()  # (command, result, cycle of done)
        self.slots = {}
        self.unseen = {}  # slots that become visible in this cycle
        self.score_write = -1  # cycle in which the score of a finished SCORE is written
        self.held = None  # constant word on the memory's output
        self.waits = 0
        self.latents = []  # what went to the cache

    async def prepare(self):
        """Reset, then load the constants in random order."""
        dut = self.dut
        await start(dut, before=self._idle)
        words = [(a, part) for a in range(len(self.reference.constants)) for part in range(self.reference.p.lanes // 2)]
        random.shuffle(words)
        for addr, part in words:
            data = pack(self.reference.constants[addr], CONST.width) >> (LOAD_BITS * part) & 0xFFFFFFFF
            self._load(valid=1, space=Space.VECTOR, addr=addr, part=part, data=data)
            await RisingEdge(dut.clk)
            if random.random() < 0.05:  # another memory's word must change nothing
                other = random.choice([Space.WEIGHTS, Space.LANE, Space.ROUTER])
                self._load(valid=1, space=other, addr=addr, part=part, data=random.getrandbits(32))
                await RisingEdge(dut.clk)
        self._load(valid=0, space=Space.VECTOR, addr=0, part=0, data=0)

    def _idle(self):
        self.dut.valid.value = 0
        self._load(valid=0, space=Space.VECTOR, addr=0, part=0, data=0)

    def _load(self, **fields):
        self.dut.load.value = LoadBus.const(fields).as_bits()

    def _drive(self, given):
        dut = self.dut
        for name in ("t", "prefix", "kda_o", "context"):
            getattr(dut, name).value = pack(getattr(given, name).ravel(), 24)
        dut.context_mantissa.value = pack(given.context_mantissa, 19)
        dut.expert_weight.value = pack(given.expert_weight, 19)

    async def run(self, commands):
        """Execute (command, operands) pairs, each after a random time of waiting."""
        for command, given in commands:
            gap = random.choice([0, 0, 0, 0, 1, 2, 3])
            self.dut.cmd.value = VectorCommand.const(command).as_bits()
            self.dut.valid.value = 0
            for _ in range(gap):
                await self._tick(take=False)
            self._drive(given)
            self.dut.valid.value = 1
            first = self.cycle + self._wait(command, gap)
            expected = self.reference.run(command, given)
            self.flight.append((command, expected, first + vector_cycles(command) - 1))
            last = first + vector_take(command) - 1
            if command["op"] == VectorOp.SCORE:
                self.score_write = last + 1
            if command["weight"] or command["op"] == VectorOp.SCORE:
                self.held = command["constant"]
            while self.cycle <= last:
                await self._tick(take=self.cycle == last)
        self.dut.valid.value = 0
        for _ in range(4):
            await self._tick(take=False)
        assert not self.flight

    def _wait(self, command, gap):
        """Cycles that a command loses: a score is being written, or the constant has not been read yet."""
        mixes = command["src"] == Source.MIX and command["combine"] == Combine.RESIDUAL
        softmax = command["op"] == VectorOp.FLOW and mixes
        score = self.score_write == self.cycle and (softmax or vector_cycles(command) == 1)
        first = command["weight"] and command["src"] != Source.MIX and command["norm"] == Norm.NONE
        constant = first and gap == 0 and self.held != command["constant"]
        self.waits += bool(score or constant)
        return int(score or constant)

    async def _tick(self, take):
        """Check one cycle; it ends at the rising edge."""
        dut = self.dut
        await FallingEdge(dut.clk)
        done = bool(self.flight) and self.flight[0][2] == self.cycle
        self.slots.update(self.unseen)
        self.unseen = {}
        got = (int(dut.take.value), int(dut.done.value))
        assert got == (take, done), (self.cycle, got, self.flight)
        command, expected, _ = self.flight.popleft() if done else (None, None, None)
        flows = command is not None and command["op"] == VectorOp.FLOW
        for enable, out in ((dut.k_we, Out.KDA_K), (dut.q_we, Out.KDA_Q), (dut.cache_we, Out.CACHE)):
            assert int(enable.value) == (flows and command["out"] == out), command
        if done:
            self._check(command, expected)
        self._check_slots()
        await RisingEdge(dut.clk)
        self.cycle += 1

    def _check(self, command, expected):
        """Results that are visible in the cycle of done."""
        dut = self.dut
        if expected.key is not None:
            assert int(dut.key.value) == pack(expected.key, KEY.width), command
        if expected.latent is not None:
            assert int(dut.cache_latent.value) == pack(expected.latent, CACHE.width), command
            assert int(dut.cache_layer.value) == command["layer"]
            self.latents.append(unpack(int(dut.cache_latent.value), CACHE.width, BLOCK))
        self.unseen = {slot: slot_word(*block) for slot, block in expected.slots.items()}

    def _check_slots(self):
        """Every slot that was ever written holds what was written last."""
        slots = int(self.dut.slots.value)
        for slot, word in self.slots.items():
            assert (slots >> (SLOT_BITS * slot)) & ((1 << SLOT_BITS) - 1) == word, (slot, self.cycle)


@cocotb.test()
async def random_commands(dut):
    """Everything the unit does, in random order."""
    p = params(parameters()["preset"])
    stimulus = Stimulus(p, seed=random.randrange(1 << 30))
    driver = Driver(dut, Reference(p, stimulus.constants()))
    await driver.prepare()
    await driver.run((command, stimulus.operands()) for command in stimulus.opening())
    await driver.run((stimulus.command(), stimulus.operands()) for _ in range(parameters()["commands"]))
    assert driver.waits > 5 and len(driver.slots) == SLOTS
    report(cycles=driver.cycle, waits=driver.waits)


def flat(p, **values):
    """Operands that are 0 but for the given ones."""
    zero = np.zeros(p.lanes, np.int64)
    heads = np.zeros(p.model.num_attention_heads, np.int64)
    plain = Operands(np.zeros((4, p.lanes), np.int64), zero, zero, zero, heads, np.zeros(2, np.int64))
    for name, value in values.items():
        setattr(plain, name, value)
    return plain


@cocotb.test()
async def norm_table_edges(dut):
    """Sums of squares beside every edge of the inverse root's table, over the range of magnitudes."""
    p = params(parameters()["preset"])
    driver = Driver(dut, Reference(p, np.zeros((1, p.lanes), np.int64)))
    await driver.prepare()
    command = legal(src=Source.T1, norm=Norm.L2, eps=Eps.L2, out=Out.KDA_K, segments=p.segments)
    roots = [(1 + i / 32) ** 0.5 * 2.0**k for i in range(len(RSQRT.table) + 1) for k in (random.randrange(4, 22),)]
    values = [int(root) + near for root in roots for near in (0, 1)]
    given = []
    for pair in zip(values[0::2], values[1::2], strict=True):
        t = np.zeros((4, p.lanes), np.int64)
        for s in range(p.segments):
            t[1, BLOCK * s + random.randrange(BLOCK)] = pair[s] * random.choice([-1, 1])
        given.append((command, flat(p, t=t)))
    await driver.run(given)


@cocotb.test()
async def softmax_table_edges(dut):
    """Two candidates whose scores differ by every edge of 2**-t, and by more than 32."""
    p = params(parameters()["preset"])
    steps = [i << 5 for i in range(17)] + [512 * i for i in range(2, 34, 3)] + [32767]
    words = sorted({min(32767, max(-32768, sign * s + near)) for s in steps for sign in (1, -1) for near in (-1, 0, 1)})
    assert len(words) < parameters()["constants"]
    constants = np.zeros((len(words) + 1, p.lanes), np.int64)
    constants[: len(words), 0] = words  # one lane of the hidden state is not 0: the score is a multiple of the constant
    driver = Driver(dut, Reference(p, constants))
    await driver.prepare()
    rng = np.random.default_rng(random.randrange(1 << 30))

    def prefix():
        x = np.zeros(p.lanes, np.int64)
        x[0] = rng.integers(1 << 14, 1 << 23)
        return flat(p, prefix=x)

    commands = [(legal(op=VectorOp.SNAP, src=Source.P), prefix())]
    commands += [(legal(op=VectorOp.SCORE, src=Source.MIX, constant=len(words)), prefix())]
    mix = legal(src=Source.MIX, n=2, out=Out.SLOTS, slot=0, segments=1)
    for i in range(len(words)):
        given = prefix()
        commands += [(legal(op=VectorOp.SCORE, src=Source.P, index=1, constant=i), given), (mix, given)]
    await driver.run(commands)


async def quantised(driver, source, name, block):
    """(codes, scale) in the chip's slot 2 after a block came there through the quantiser; lanes beyond it are 0."""
    x = np.zeros(driver.reference.p.lanes, np.int64)
    x[:BLOCK] = block
    given = {"t": np.tile(x, (4, 1))} if name == "t" else {name: x}
    command = legal(src=source, out=Out.SLOTS, slot=2, segments=1)
    await driver.run([(command, flat(driver.reference.p, **given))])
    word = int(driver.dut.slots.value) >> (SLOT_BITS * 2)
    return unpack(word, 8, BLOCK) & 0xFF, word >> (8 * BLOCK) & 0xFF


@cocotb.test()
async def small_format_cases(dut):
    """Elements and largest elements of a block as tests/cases.py has them, exactly, in both of the unit's formats."""
    p = params(parameters()["preset"])
    driver = Driver(dut, Reference(p, np.zeros((1, p.lanes), np.int64)))
    await driver.prepare()
    for case in cases.E4M3_ENCODE:
        codes, scale = await quantised(driver, Source.O, "kda_o", cases.e4m3_block(case.x))
        assert scale == 127 + cases.E4M3_BLOCK_FRAC - NRM.frac  # NRM's fraction is longer: the same block, made smaller
        assert e4m3_units(codes)[7] * 2.0**-9 == case.value, case
    for case in cases.MXFP8_BLOCK_AMAX:
        for sign in (1, -1):
            codes, scale = await quantised(driver, Source.T1, "t", cases.padded([sign * case.amax], BLOCK, VEC))
            assert case.exponent is None or scale == 127 + case.exponent
            assert scale != 255 and e4m3_units(codes)[0] * 2.0 ** (scale - 127 - 9) == sign * case.value, case


@cocotb.test()
async def small_residual_mix(dut):
    """The attention residual of tests/cases.py; half of it goes to the cache, the unit's finest output."""
    p, case = params(parameters()["preset"]), cases.RESIDUAL_MIX
    assert p.model.rms_norm_eps == case.eps
    candidates, projection = cases.mix_operands(case, p.model.hidden_size)
    candidates = [np.pad(v, (0, p.lanes - len(v))) for v in candidates]
    constants = np.zeros((2, p.lanes), np.int64)
    constants[0, : len(projection)], constants[1] = projection, to_fixed(0.5, ROWSCALE)
    driver = Driver(dut, Reference(p, constants))
    await driver.prepare()
    snapshot, prefix = (flat(p, prefix=v) for v in candidates)
    half = dict(weight=1, weight_frac=ROWSCALE.frac, constant=1, out=Out.CACHE, segments=1)
    await driver.run(
        [
            (legal(op=VectorOp.SNAP, src=Source.P), snapshot),
            (legal(op=VectorOp.SCORE, src=Source.P, index=0, constant=0), snapshot),
            (legal(op=VectorOp.SCORE, src=Source.P, index=1, constant=0), prefix),
            (legal(src=Source.MIX, n=2, **half), prefix),
        ]
    )
    out = 2 * to_float(driver.latents[-1], CACHE)
    bound = cases.RESIDUAL_WEIGHT_ULPS * UNIT.ulp * np.max(case.candidates) + VEC.ulp / 2 + CACHE.ulp
    np.testing.assert_allclose(out, np.tile(case.out, BLOCK // len(case.out)), atol=bound, rtol=0)
