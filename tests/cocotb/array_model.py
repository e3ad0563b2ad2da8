"""Model and bench of the array unit, shared by Amaranth's simulator and cocotb.

``ArrayModel`` executes array commands with the twin's functions; ``run_commands`` drives a unit through ``io`` (set,
get, settle, tick) and compares registers, logits, addresses and completion times with the model.
"""

from dataclasses import dataclass, field

import numpy as np

from golden.fixed import lanes as twin
from golden.fixed.mx import MxMatrix, MxVector, dequantise_row, matvec
from golden.fixed.numbers import VEC, saturate
from hw.layouts import ArrayCommand, Dest, Func, LoadBus, Space
from hw.params import LANE_CONSTS, SLOTS, T_REGS, Params
from hw.units.array import LATENCY, ArrayUnit


@dataclass
class Command:
    """An array command and the inputs that belong to it."""

    base: int = 0
    groups: int = 1
    blocks: int = 1
    slot: int = 0
    func: Func = Func.LINEAR
    dest: Dest = Dest.T0
    group0: int = 0
    constant: int = 0
    expert: int = 0
    picked: tuple[int, int] = (0, 0)
    token: int = 0
    first: int = 0
    serial: int = 0
    codes: np.ndarray = field(default_factory=lambda: np.zeros((SLOTS, 32), np.int64))
    scales: np.ndarray = field(default_factory=lambda: np.zeros(SLOTS, np.int64))

    def bits(self) -> int:
        """The command as on its wires."""
        names = ("base", "groups", "blocks", "slot", "func", "dest", "group0", "constant", "expert")
        return ArrayCommand.const({name: getattr(self, name) for name in names}).as_bits()


def pack(values, width: int) -> int:
    """Values to one integer, the first in the low bits."""
    word = 0
    for i, value in enumerate(np.asarray(values).ravel()):
        word |= (int(value) & ((1 << width) - 1)) << (i * width)
    return word


def unpack(word: int, width: int, n: int, signed: bool = True) -> np.ndarray:
    """The inverse of pack."""
    raw = np.array([(word >> (i * width)) & ((1 << width) - 1) for i in range(n)], np.int64)
    return np.where(raw >> (width - 1), raw - (1 << width), raw) if signed else raw


class ArrayModel:
    """Weights, lane constants, conv history, T and P; ``execute`` runs one command."""

    def __init__(self, p: Params, rng: np.random.Generator, words: int = 64) -> None:
        self.p, self.words = p, words
        rows = p.array_rows
        self.codes = rng.integers(0, 16, (words, rows, 32))
        wild = rng.random((words, rows)) < 0.05
        self.scales = np.where(wild, rng.integers(0, 255, (words, rows)), rng.integers(119, 128, (words, rows)))
        self.consts = rng.integers(0, 1 << 16, (ArrayUnit.lane_words(p), rows, LANE_CONSTS))
        self.history = np.zeros((ArrayUnit.history_words(p), rows, 3), np.int64)
        self.t = np.zeros((T_REGS, p.lanes), np.int64)
        self.prefix = np.zeros(p.lanes, np.int64)
        self.t_known = np.zeros((T_REGS, p.lanes), bool)  # written at least once
        self.prefix_known = np.zeros(p.lanes, bool)

    def word(self, addr: int) -> int:
        """Weight word ``addr`` as in the memory."""
        return pack(self.codes[addr], 4) | pack(self.scales[addr], 8) << (4 * self.codes[addr].size)

    def addresses(self, c: Command) -> list[int]:
        """Weight words that the command reads, in order."""
        if c.func == Func.EMBED:
            return [c.base + c.token // (self.p.array_rows // self.p.hidden_blocks)]
        offset = c.picked[c.expert - 1] * self.p.expert_words if c.expert else 0
        return [c.base + offset + i for i in range(c.groups * c.blocks)]

    def _sums(self, c: Command) -> np.ndarray:
        """[groups, rows] VEC."""
        where = np.array(self.addresses(c)).reshape(c.groups, c.blocks)
        codes = self.codes[where].transpose(0, 2, 1, 3).reshape(c.groups * self.p.array_rows, c.blocks, 32)
        scales = self.scales[where].transpose(0, 2, 1).reshape(c.groups * self.p.array_rows, c.blocks)
        slots = [(c.slot + b) % SLOTS for b in range(c.blocks)]
        return matvec(MxMatrix(codes, scales), MxVector(c.codes[slots], c.scales[slots])).reshape(c.groups, -1)

    def _conv(self, c: Command, group: int, y: np.ndarray) -> np.ndarray:
        at = c.constant + group
        old = np.zeros_like(self.history[at]) if c.first else self.history[at]
        window = np.concatenate([old, y[:, None]], axis=1)
        self.history[at] = window[:, 1:]
        return twin.silu(twin.conv(window, unpack(pack(self.consts[at], 16), 16, window.size).reshape(window.shape)))

    def _decay(self, c: Command, group: int, y: np.ndarray) -> np.ndarray:
        consts = self.consts[c.constant + group]
        dt_bias = np.where(consts[:, 0] >= 1 << 15, consts[:, 0] - (1 << 16), consts[:, 0])
        return twin.decay(y, dt_bias, consts[:, 1], self.p.model.gate_lower_bound)

    def _results(self, c: Command, sums: np.ndarray) -> list[np.ndarray]:
        """What is written, group by group."""
        model = self.p.model
        if c.func == Func.GATE:
            return [twin.gate(y) for y in sums]
        if c.func == Func.CONV:
            return [self._conv(c, g, y) for g, y in enumerate(sums)]
        if c.func == Func.DECAY:
            return [self._decay(c, g, y) for g, y in enumerate(sums)]
        if c.func == Func.SITU:
            beta, linear = model.activation_situ_beta, model.activation_situ_linear_beta
            return [twin.situ(g, u, beta, linear) for g, u in zip(sums[::2], sums[1::2], strict=True)]
        return list(sums)

    def _embed(self, c: Command) -> None:
        p = self.p
        per_word = p.array_rows // p.hidden_blocks
        start = c.token % per_word * p.hidden_blocks
        rows = slice(start, start + p.hidden_blocks)
        word = self.addresses(c)[0]
        matrix = MxMatrix(self.codes[word][None, rows], self.scales[word][None, rows])
        self.prefix[:], self.prefix_known[:] = 0, True
        self.prefix[: p.model.hidden_size] = dequantise_row(matrix, np.array(0))

    def logits(self, c: Command) -> np.ndarray:
        """Logits [groups, rows] of a HEAD command."""
        return self._sums(c)

    def execute(self, c: Command) -> None:
        """Run one command."""
        if c.func == Func.EMBED:
            self._embed(c)
        if c.func in (Func.EMBED, Func.HEAD):
            return
        for g, y in enumerate(self._results(c, self._sums(c))):
            at = slice((c.group0 + g) * self.p.array_rows, (c.group0 + g + 1) * self.p.array_rows)
            if c.dest == Dest.P:
                self.prefix[at], self.prefix_known[at] = y, True
            elif c.dest == Dest.P_ADD:
                self.prefix[at] = saturate(self.prefix[at] + y, VEC)
            else:
                self.t[c.dest.value][at], self.t_known[c.dest.value][at] = y, True


async def load_consts(io, model: ArrayModel) -> None:
    """Write the lane constants through the load bus."""
    for addr, word in enumerate(model.consts):
        bits = pack(word, 16)
        for part in range(model.p.lane_const_width // 32):
            piece = {
                "valid": 1,
                "space": Space.LANE,
                "addr": addr,
                "part": part,
                "data": bits >> 32 * part & 0xFFFFFFFF,
            }
            io.set("load", LoadBus.const(piece).as_bits())
            await io.tick()
        for space in (Space.WEIGHTS, Space.VECTOR, Space.ROUTER):  # not ours: must write nothing
            piece = {"valid": 1, "space": space, "addr": addr, "part": 0, "data": 0x5A5A5A5A}
            io.set("load", LoadBus.const(piece).as_bits())
            await io.tick()
    io.set("load", 0)


class Bench:
    """One run of a list of commands, cycle by cycle.

    ``gap``: probability that a command is not valid in a cycle while it waits to begin; ``ready``: of head_ready.
    All inputs that a command owns change in the cycle after its ``take``.
    """

    def __init__(self, io, model: ArrayModel, rng: np.random.Generator, gap: float, ready: float) -> None:
        self.io, self.model, self.rng, self.gap, self.ready = io, model, rng, gap, ready
        self.cycle = 0
        self.takes: list[tuple[int, Command]] = []
        self.logits: list[tuple[int, np.ndarray]] = []
        self.head_issued = self.head_seen = self.head_due = 0
        self.completed = 0
        self.finished = False
        self.issues: list[list[int]] = []  # cycles of the words of each command

    def show(self, c: Command) -> None:
        """Put a command and what belongs to it on the wires."""
        io = self.io
        io.set("cmd", c.bits())
        io.set("expert", pack(c.picked, 5))
        io.set("token", c.token)
        io.set("first", c.first)
        io.set("head_serial", c.serial)
        io.set("slots", pack([pack(c.codes[s], 8) | int(c.scales[s]) << 256 for s in range(SLOTS)], 264))

    def hide(self) -> None:
        """Garbage while no command is valid."""
        for name, width in (("cmd", 30), ("expert", 10), ("token", 5), ("first", 1), ("head_serial", 1)):
            self.io.set(name, int(self.rng.integers(1 << width)))

    async def cycle_end(self) -> None:
        """Outputs of this cycle: completion, logits; then the clock edge, then the registers."""
        io = self.io
        if io.get("head_valid"):
            width, rows = VEC.width, self.model.p.array_rows
            assert self.logits, f"cycle {self.cycle}: logits without a HEAD group"
            group, expected = self.logits.pop(0)
            assert io.get("head_group") == group
            np.testing.assert_array_equal(unpack(io.get("head_logits"), width, rows), expected)
            self.head_seen += 1
        done = io.get("done")
        enable, addr = io.get("weight_en"), io.get("weight_addr")
        await io.tick()
        if enable:
            io.set("weight_data", self.model.word(addr % self.model.words))
        self.finished = bool(done)
        self.cycle += 1

    async def settle(self) -> None:
        """Outputs of this cycle are valid; what completed at the last edge is visible in the registers."""
        await self.io.settle()
        if self.finished:
            self.finish()
            self.finished = False

    def finish(self) -> None:
        """A command has completed: its results are visible now."""
        assert self.takes, f"cycle {self.cycle}: done without a command"
        taken, c = self.takes.pop(0)
        spent = self.cycle - 1 - taken
        assert spent == LATENCY[c.func], f"{c.func}: done {spent} cycles after take"
        self.model.execute(c)
        if c.func == Func.HEAD:
            self.head_due += c.groups
            assert self.head_seen >= self.head_due, "done before the last logits"
        p, io = self.model.p, self.io
        t = unpack(io.get("t"), 24, T_REGS * p.lanes, signed=False).reshape(T_REGS, -1)
        known, expected = self.model.t_known, self.model.t & 0xFFFFFF
        np.testing.assert_array_equal(t[known], expected[known], err_msg=f"T after {c}")
        prefix, known = unpack(io.get("prefix"), 24, p.lanes), self.model.prefix_known
        np.testing.assert_array_equal(prefix[known], self.model.prefix[known], err_msg=f"P after {c}")
        self.completed += 1

    async def command(self, c: Command) -> None:
        """Show one command until it is taken."""
        io = self.io
        while self.rng.random() < self.gap:
            self.hide()
            io.set("valid", 0)
            io.set("head_ready", int(self.rng.random() < self.ready))
            await self.settle()
            assert not io.get("take") and not io.get("weight_en"), "works without a command"
            await self.cycle_end()
        self.show(c)
        io.set("valid", 1)
        expected = self.model.addresses(c)
        if c.func == Func.HEAD:
            self.logits += list(enumerate(self.model.logits(c)))
        issued: list[int] = []
        for _ in range(10_000):
            ready = int(self.rng.random() < self.ready)
            io.set("head_ready", ready)
            await self.settle()
            if io.get("weight_en"):
                assert len(issued) < len(expected), "too many words"
                assert io.get("weight_addr") == expected[len(issued)]
                if c.func == Func.HEAD and len(issued) % c.blocks == 0:
                    assert ready, "HEAD group without head_ready"
                    assert not c.serial or self.head_issued == self.head_seen, "HEAD group not alone"
                    self.head_issued += 1
                issued.append(self.cycle)
            take = io.get("take")
            if take:
                assert len(issued) == len(expected)
                self.takes.append((self.cycle, c))
                self.issues.append(issued)
            await self.cycle_end()
            if take:
                return
        raise AssertionError(f"{c} was never taken")

    async def drain(self) -> None:
        """Until everything has completed."""
        self.io.set("valid", 0)
        for _ in range(8):
            await self.settle()
            await self.cycle_end()
        assert not self.takes and not self.logits


def exact_operand(c: Command) -> Command:
    """Slots that, with words of ``exact_words``, make any VEC sums: powers of two, two blocks of twelve bits."""
    c.slot, c.blocks = 2, 2
    c.codes, c.scales = np.zeros((SLOTS, 32), np.int64), np.full(SLOTS, 127)
    c.codes[2:4, :12] = (np.arange(12) + 1) << 3  # 2**-6 .. 2**5
    c.scales[2:4] = 127 - 7, 127 + 5
    return c


def exact_words(model: ArrayModel, base: int, sums: np.ndarray) -> None:
    """Set weight words from ``base`` on such that the row sums are ``sums`` [groups, rows]."""
    columns = np.arange(12)
    low, high = sums & 4095, sums >> 12
    at = base + 2 * np.arange(len(sums))
    model.codes[base : base + 2 * len(sums)], model.scales[base : base + 2 * len(sums)] = 0, 127
    model.codes[at, :, :12] = 2 * (low[..., None] >> columns & 1)
    model.codes[at + 1, :, :12] = 2 * (np.abs(high)[..., None] >> columns & 1) | np.where(high < 0, 8, 0)[..., None]


def random_command(p: Params, rng: np.random.Generator, words: int, funcs=tuple(Func)) -> Command:
    """A command with random fields within what the layout allows."""
    func = funcs[rng.integers(len(funcs))]
    blocks = int(rng.choice([1, 1, 2, 2, 3, 4]))
    most = 4 if func == Func.HEAD else p.groups
    groups = int(rng.integers(1, most + 1))
    group0 = 0 if func == Func.HEAD else int(rng.integers(0, p.groups - groups + 1))
    groups *= 2 if func == Func.SITU else 1
    expert = int(rng.integers(0, 3)) if func not in (Func.HEAD, Func.EMBED) else 0
    picked = (int(rng.integers(0, 3)), int(rng.integers(0, 3)))
    reach = groups * blocks + (picked[expert - 1] * p.expert_words if expert else 0)
    token = int(rng.integers(p.model.vocab_size))
    if func == Func.EMBED:
        reach = token // (p.array_rows // p.hidden_blocks) + 1
        if reach > words:
            token, reach = token % (p.array_rows // p.hidden_blocks), 1
    constants = ArrayUnit.history_words(p) if func == Func.CONV else ArrayUnit.lane_words(p)
    dests = list(Dest) if func == Func.LINEAR else [Dest.T0, Dest.T1, Dest.T2, Dest.T3]
    codes = rng.integers(0, 256, (SLOTS, 32))
    codes[(codes & 127) == 127] = 0
    small = rng.random((SLOTS, 1)) < 0.3
    codes = np.where(small, codes & 0xBF, codes)
    centre = rng.integers(110, 127, SLOTS)
    return Command(
        base=int(rng.integers(0, words - reach + 1)), groups=groups, blocks=blocks, slot=int(rng.integers(SLOTS)),
        func=func, dest=dests[rng.integers(len(dests))], group0=group0,
        constant=int(rng.integers(0, constants - groups + 1)), expert=expert, picked=picked, token=token,
        first=int(rng.random() < 0.3), serial=int(rng.random() < 0.5), codes=codes,
        scales=np.where(rng.random(SLOTS) < 0.1, rng.integers(0, 255, SLOTS), centre),
    )  # fmt: skip


def keep_apart(p: Params, commands: list[Command]) -> None:
    """Change lane words that CONV commands use again at once: the programs use each once a token, and the history of a
    word can be read 4 cycles after its group, not 2."""
    recent: list[int | None] = [None, None]  # last lane words of the two commands before
    for c in commands:
        if c.func == Func.CONV:
            while c.constant in recent:
                c.constant = (c.constant + 1) % (ArrayUnit.history_words(p) - c.groups + 1)
        recent = [recent[1], c.constant + c.groups - 1 if c.func == Func.CONV else None]


async def prepare(io, model: ArrayModel, rng: np.random.Generator) -> None:
    """Constants; every register and history word written once, since their start values are random."""
    for name in ("valid", "load", "weight_data", "head_ready"):
        io.set(name, 0)
    await load_consts(io, model)
    p = model.p
    bench = Bench(io, model, rng, 0.0, 1.0)
    for dest in (Dest.T0, Dest.T1, Dest.T2, Dest.T3, Dest.P):
        c = random_command(p, rng, model.words, (Func.LINEAR,))
        c.dest, c.group0, c.groups, c.blocks, c.base, c.expert = dest, 0, p.groups, 1, 0, 0
        await bench.command(c)
    for start in range(0, ArrayUnit.history_words(p), p.groups):
        c = random_command(p, rng, model.words, (Func.CONV,))
        c.group0, c.groups, c.base, c.expert, c.constant, c.first, c.blocks = 0, p.groups, 0, 0, start, 1, 1
        await bench.command(c)
    await bench.drain()


async def run_commands(io, model: ArrayModel, rng: np.random.Generator, commands, gap=0.0, ready=1.0) -> Bench:
    """Run commands and compare everything; returns the bench with its cycle counts."""
    bench = Bench(io, model, rng, gap, ready)
    keep_apart(model.p, commands)
    for c in commands:
        await bench.command(c)
    await bench.drain()
    assert bench.completed == len(commands)
    return bench
