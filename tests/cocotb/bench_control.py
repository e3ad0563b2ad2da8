"""Bench of ``Control``: AXI on every side, and a stand-in for the units that answers as docs/chip.md says.

The stand-in computes the next token as a hash of everything fed so far, so that a wrong token, order or position
changes every later one.
"""

import itertools
import random

import cocotb
from cocotb.triggers import ClockCycles, RisingEdge
from cocotbext.axi import AxiStreamFrame

from hw.control.registers import Command, Error, Flag, LoadError, Register, Status
from hw.image import SPACES, Section, pack
from sim.host import Host
from tests.cocotb.axi_rules import stays
from tests.cocotb.runner import parameters, start

UNITS = 5
OKAY, SLVERR, DECERR = 0, 2, 3


def hashed(fed, vocab):
    """The stand-in's next token after the tokens ``fed``."""
    value = 17
    for token in fed:
        value = (value * 31 + token + 1) % 1000003
    return value % vocab


class Bench(Host):
    """The design with its host, stand-in and monitors."""

    def __init__(self, dut):
        super().__init__(dut)
        given = parameters()
        self.vocab, self.positions, self.shape = given["vocab_size"], given["max_positions"], given["shape"]
        self.sizes = {space: Section(*given["sizes"][space.name]) for space in SPACES}
        self.memory = {}
        self.fed, self.trace = [], []
        self.lengths = 0, 8  # least and most cycles of a position
        self.history = []  # (cycle, unit, kind) of the strobes given
        self.running_from = self.running_to = None
        self.cycle = 0

    async def begin(self):
        """Clock, reset, monitors."""
        dut = self.dut
        for name in ("finished", "head_complete", "best", "busy", "stalled", "idle"):
            getattr(dut, name).value = random.getrandbits(1)
        await start(dut)
        cocotb.start_soon(self._units())
        excused = lambda: int(dut.rst.value) or int(dut.reset_units.value)  # noqa: E731
        cocotb.start_soon(stays(dut, "m_axis_tokens_t", "data", "last", excused=excused))
        cocotb.start_soon(stays(dut, "s_axil_b", "resp", excused=excused))
        cocotb.start_soon(stays(dut, "s_axil_r", "resp", "data", excused=excused))

    async def _units(self):
        """Stand-in for units and head; collects loads and checks what the control does each cycle."""
        dut = self.dut
        wait = head = None  # cycles until finished, head_complete
        while True:
            await RisingEdge(dut.clk)
            self.cycle += 1
            if dut.load.value.is_resolvable and int(dut.load.value) & 1:
                self._store(int(dut.load.value))
            if int(dut.rst.value) or int(dut.reset_units.value):
                wait = head = None
            elif int(dut.restart.value):
                ended = (
                    int(dut.finished.value) and (self.trace[-1][1] or int(dut.head_complete.value)) if self.trace else 1
                )
                assert ended, "restart before the end of the position"
                skip = int(dut.skip_head.value)
                assert int(dut.head_start.value) == (not skip)
                self.running_from = self.cycle - 1 if not self.trace else self.running_from
                self.trace.append([None, skip])
                wait = random.randint(*self.lengths)
                head = max(0, wait + random.randint(-2, 4)) if not skip else -1
            if int(dut.m_axis_tokens_tvalid.value) and int(dut.m_axis_tokens_tlast.value) and self.running_to is None:
                self.running_to = self.cycle - 1
            self._count()
            if wait is None or not self.trace:
                continue
            self._fed(wait, int(dut.restart.value))
            dut.finished.value = wait < 0
            dut.head_complete.value = head < 0 if not self.trace[-1][1] else random.getrandbits(1)
            dut.best.value = hashed(self.fed, self.vocab) if head < 0 else random.randrange(self.vocab)
            wait, head = wait - 1, head - 1

    def _fed(self, wait, restarted):
        """In the cycle after a restart: what the units are given (and from then on, unchanged)."""
        if restarted:
            return
        dut, record = self.dut, self.trace[-1]
        seen = (int(dut.token.value), int(dut.position.value), int(dut.first.value), int(dut.streaming.value))
        if record[0] is None:
            record[0] = seen
            self.fed = [*self.fed, seen[0]] if seen[1] else [seen[0]]
        assert record[0] == seen, "token or position changed during a position"

    def _store(self, word):
        """A load."""
        fields = {}
        for name, width in (("valid", 1), ("space", 2), ("addr", 11), ("part", 8), ("data", 32)):
            fields[name], word = word & ((1 << width) - 1), word >> width
        place = fields["space"], fields["addr"], fields["part"]
        self.memory[place] = fields["data"]

    def _count(self):
        """Count the strobes given for this cycle, and give new ones."""
        given = [0, 0, 0]
        for unit in range(UNITS):
            kind = random.randrange(3)
            given[kind] |= 1 << unit
            self.history.append((self.cycle + 1, unit, kind))
        self.dut.busy.value, self.dut.stalled.value, self.dut.idle.value = given

    # --- software's side ---
    def random_contents(self):
        """Random words for every memory, and their image."""
        contents = {
            space: [random.getrandbits(size.width) for _ in range(size.words)] for space, size in self.sizes.items()
        }
        return contents, pack(contents, self.shape, self.sizes)

    async def load_good(self):
        """Load a random image and check the memories."""
        contents, words = self.random_contents()
        self.memory.clear()
        assert await self.send_image(words) == LoadError.NONE
        assert await self.read(Register.STATUS) & Status.LOADED
        expected = {
            (space.value, addr, part): word >> 32 * part & 0xFFFFFFFF
            for space, size in self.sizes.items()
            for addr, word in enumerate(contents[space])
            for part in range(size.parts)
        }
        assert self.memory == expected

    async def start_run(self, prompt, count, flags=0):
        """Send the prompt and START; must be accepted."""
        await self.send_prompt(prompt)
        assert await self.read(Register.STATUS) & Status.PROMPT_READY
        assert await self.read(Register.PROMPT) == len(prompt)
        await self.write(Register.COUNT, count)
        await self.write(Register.FLAGS, flags)
        self.trace, self.fed, self.running_from, self.running_to = [], [], None, None
        self.history.clear()
        assert await self.command(Command.START) == Error.NONE

    def expected(self, prompt, count, flags):
        """(trace, tokens) of a run."""
        forced, streaming = bool(flags & Flag.TEACHER_FORCED), bool(flags & Flag.STREAM_LOGITS)
        fed, trace, out = [], [], []
        positions = len(prompt) if forced else len(prompt) + count - 1
        for position in range(positions):
            fed.append(prompt[position] if position < len(prompt) else out[-1])
            emits = forced or position >= len(prompt) - 1
            trace.append([(fed[-1], position, position == 0, streaming), not (emits or streaming)])
            if emits:
                out.append(hashed(fed, self.vocab))
        return trace, out

    async def finish_run(self, prompt, count, flags=0):
        """Take the tokens of a run, check them, the trace and the counters."""
        trace, out = self.expected(prompt, count, flags)
        frame = await self.tokens.recv()
        assert list(frame.tdata) == out
        await ClockCycles(self.dut.clk, 4)
        assert self.trace == trace
        assert not await self.read(Register.STATUS) & (Status.RUNNING | Status.PROMPT_READY)
        assert await self.read(Register.POSITION) == len(trace) - 1
        assert await self.read(Register.TOKENS) == len(out)
        assert await self.read(Register.POSITIONS) == len(trace)
        assert await self.read(Register.CYCLES) == self.running_to - self.running_from + 1
        for unit in range(UNITS):
            for kind in range(3):
                wanted = sum(
                    self.running_from <= cycle <= self.running_to and (u, k) == (unit, kind)
                    for cycle, u, k in self.history
                )
                assert await self.read(Register.UNITS + 16 * unit + 4 * kind) == wanted

    async def run(self, prompt, count, flags=0):
        """A whole run."""
        await self.start_run(prompt, count, flags)
        await self.finish_run(prompt, count, flags)

    def random_prompt(self, length):
        """Tokens, the greatest among them."""
        return [random.choice([random.randrange(self.vocab), self.vocab - 1]) for _ in range(length)]


async def ready(dut, share=0.0):
    """A bench after reset, with pauses."""
    bench = Bench(dut)
    await bench.begin()
    if share:
        for name in (*bench.streams, "lite"):
            bench.stall(name, random.getrandbits(16), share)
    return bench


@cocotb.test()
async def registers(dut):
    """Every address, read and written, with pauses: values, byte strobes, SLVERR, DECERR."""
    bench = await ready(dut, 0.4)
    known = {int(r) for r in Register if r != Register.UNITS} - {int(Register.COMMAND)}
    known |= {Register.UNITS + 16 * u + 4 * k for u in range(UNITS) for k in range(3)}
    writable = {int(Register.COUNT), int(Register.FLAGS)}
    for address in range(0, 1024, 4):
        answer = await bench.lite.read(address, 4)
        assert answer.resp == (OKAY if address in known else SLVERR if address == Register.COMMAND else DECERR)
        if address != Register.COMMAND:
            answer = await bench.lite.write(address, b"\0\0\0\0")
            assert answer.resp == (OKAY if address in writable else SLVERR if address in known else DECERR)
    assert await bench.read(Register.IDENTITY) == 0x334B4E01
    assert await bench.read(Register.SHAPE) == bench.shape
    assert await bench.read(Register.LIMITS) == bench.positions | bench.vocab << 16
    await bench.write(Register.COUNT, 0xABCD1234)
    assert await bench.read(Register.COUNT) == 0x1234
    for offset, byte in ((1, 0x55), (0, 0xAA), (2, 0xFF), (3, 0xFF)):
        await bench.lite.write(Register.COUNT + offset, bytes([byte]))
    assert await bench.read(Register.COUNT) == 0x55AA
    await bench.lite.write(Register.COMMAND + 1, b"\x77")  # the command byte is not written
    assert await bench.command(Command.SOFT_RESET) == Error.NONE
    await bench.lite.write(Register.COMMAND + 2, b"\x77\x77")
    assert Error(await bench.read(Register.STATUS) >> 8 & 0xF) == Error.NONE
    reads = [bench.lite.init_read(Register.COUNT, 4) for _ in range(6)]
    writes = [bench.lite.init_write(Register.FLAGS, bytes([i & 3, 0, 0, 0])) for i in range(6)]
    for event in (*reads, *writes):
        await event.wait()
    assert all(event.data.data == b"\xaa\x55\0\0" for event in reads)
    assert await bench.read(Register.FLAGS) == 1


@cocotb.test()
@cocotb.parametrize(share=[0.0, 0.5])
async def images(dut, share):
    """Good images, then every way to be bad; each leaves the chip without an image until a good one comes."""
    bench = await ready(dut, share)
    await bench.load_good()
    _, good = bench.random_contents()
    await bench.send_prompt(bench.random_prompt(2))
    await bench.write(Register.COUNT, 1)

    def changed(index, value):
        return [*good[:index], value, *good[index + 1 :]]

    cut = random.randrange(11, len(good) - 1)
    payload = random.randrange(11, len(good) - 1)
    cases = [
        (changed(0, good[0] ^ 1), LoadError.BAD_MAGIC),
        (changed(1, 2), LoadError.BAD_VERSION),
        (changed(2, good[2] ^ 1 << 31), LoadError.BAD_SHAPE),
        *((changed(i, good[i] + 1), LoadError.BAD_SECTION) for i in range(3, 11)),
        (changed(payload, good[payload] ^ 1 << random.randrange(32)), LoadError.BAD_CHECKSUM),
        (changed(len(good) - 1, good[-1] ^ 1), LoadError.BAD_CHECKSUM),
        (good[:1], LoadError.EARLY_LAST),
        (good[:11], LoadError.EARLY_LAST),
        (good[:cut], LoadError.EARLY_LAST),
        (good[:-1], LoadError.EARLY_LAST),
        ([*good, 0], LoadError.LATE_LAST),
        ([*good, *good], LoadError.LATE_LAST),
        ([0], LoadError.BAD_MAGIC),
    ]
    for words, error in cases:
        assert await bench.send_image(words) == error, error
        assert not await bench.read(Register.STATUS) & (Status.LOADED | Status.LOADING)
        assert await bench.command(Command.START) == Error.NO_IMAGE
    await bench.load_good()


@cocotb.test()
@cocotb.parametrize((("share", "lengths"), [(0.0, (0, 0)), (0.3, (0, 8))]))
async def runs(dut, share, lengths):
    """Random runs with all flags, with and without pauses; the extremes of length."""
    bench = await ready(dut, share)
    bench.lengths = lengths
    await bench.load_good()
    limit = bench.positions
    cases = [(1, 1, 0), (1, limit, 0), (limit, 1, 0), (limit, 0, Flag.TEACHER_FORCED), (2, 1, 0)]
    for flags in range(4):
        for _ in range(3):
            length = random.randint(1, min(limit - 1, 12))
            cases.append((length, random.randint(1, min(limit - length, 12)), flags))
    for length, count, flags in cases:
        await bench.run(bench.random_prompt(length), count, flags)


@cocotb.test()
async def refusals(dut):
    """Every reason to refuse a START; what is kept and what is thrown away."""
    bench = await ready(dut, 0.2)
    limit = bench.positions
    await bench.write(Register.COUNT, 1)
    assert await bench.command(Command.START) == Error.NO_IMAGE
    await bench.load_good()
    assert await bench.command(Command.START) == Error.NO_PROMPT
    for unknown in (0, 3, 4, 0x80, 0x81, 0xFF):
        assert await bench.command(unknown) == Error.UNKNOWN_COMMAND
    # a prompt is too long by one, by many; kept out of the memory, then forgotten
    for extra in (1, 5):
        await bench.send_prompt(bench.random_prompt(limit + extra))
        assert await bench.command(Command.START) == Error.PROMPT_TOO_LONG
        assert await bench.command(Command.START) == Error.NO_PROMPT
    # a bad token at any place
    for place in (0, 1, 3):
        prompt = bench.random_prompt(4)
        prompt[place] = random.choice([bench.vocab, bench.vocab + 1, 1 << 31, 0xFFFFFFFF, prompt[place] + (1 << 16)])
        await bench.send_prompt(prompt)
        assert await bench.command(Command.START) == Error.BAD_TOKEN
        assert await bench.command(Command.START) == Error.NO_PROMPT
    # counts: the prompt stays
    prompt = bench.random_prompt(3)
    await bench.send_prompt(prompt)
    for count, error in ((0, Error.BAD_COUNT), (limit - 1, Error.PAST_END), (0xFFFF, Error.PAST_END)):
        await bench.write(Register.COUNT, count)
        assert await bench.command(Command.START) == error
    assert not bench.trace, "a refused START ran"
    await bench.write(Register.COUNT, limit - 2)
    bench.history.clear()
    assert await bench.command(Command.START) == Error.NONE
    await bench.finish_run(prompt, limit - 2)
    # teacher-forced runs do not use COUNT
    await bench.run(bench.random_prompt(limit), 0xFFFF, Flag.TEACHER_FORCED)


@cocotb.test()
async def incomplete_prompt(dut):
    """A prompt without its last beat is not run; with it, it is."""
    bench = await ready(dut)
    await bench.load_good()
    prompt = bench.random_prompt(4)
    bench.prompt.set_pause_generator(itertools.chain([False] * 3, itertools.repeat(True)))
    await bench.prompt.send(AxiStreamFrame(prompt))
    await ClockCycles(dut.clk, 10)
    received = await bench.read(Register.PROMPT)
    assert 0 < received < 4
    await bench.write(Register.COUNT, 2)
    assert await bench.command(Command.START) == Error.PROMPT_INCOMPLETE
    bench.stall("prompt", 0, share=0)
    await bench.prompt.wait()
    await ClockCycles(dut.clk, 2)
    bench.history.clear()
    assert await bench.command(Command.START) == Error.NONE
    await bench.finish_run(prompt, 2)


@cocotb.test()
async def while_running(dut):
    """START, unknown commands, an image and the next prompt during a run; the run is not disturbed."""
    bench = await ready(dut, 0.1)
    bench.lengths = 40, 60
    await bench.load_good()
    prompt, after = bench.random_prompt(2), bench.random_prompt(3)
    await bench.start_run(prompt, 5)
    assert await bench.command(Command.START) == Error.BUSY
    assert await bench.command(0x40) == Error.UNKNOWN_COMMAND
    contents, words = bench.random_contents()
    bench.memory.clear()
    await bench.image.send(AxiStreamFrame(words))
    await bench.prompt.send(AxiStreamFrame(after))
    await ClockCycles(dut.clk, 20)
    status = await bench.read(Register.STATUS)
    assert status & Status.RUNNING and status & Status.LOADED and not status & Status.LOADING and not bench.memory
    frame = await bench.tokens.recv()
    assert list(frame.tdata) == bench.expected(prompt, 5, 0)[1]
    await bench.image.wait()
    await bench.prompt.wait()
    await ClockCycles(dut.clk, 4)
    assert await bench.read(Register.STATUS) & 0xF == Status.LOADED | Status.PROMPT_READY
    assert len(bench.memory) == sum(size.words * size.parts for size in bench.sizes.values())
    bench.trace, bench.running_to = [], None
    bench.history.clear()
    await bench.write(Register.COUNT, 1)
    assert await bench.command(Command.START) == Error.NONE
    await bench.finish_run(after, 1)


@cocotb.test()
@cocotb.parametrize(count=[2, 4])
async def token_stall(dut, count):
    """A token stream that is not read: nothing is lost, one token is stored, the waiting is counted."""
    bench = await ready(dut)
    bench.lengths = 0, 0
    await bench.load_good()
    bench.tokens.pause = True
    prompt = bench.random_prompt(2)
    await bench.start_run(prompt, count)
    await ClockCycles(dut.clk, 50)
    assert await bench.read(Register.TOKENS) == 1
    before = await bench.read(Register.TOKEN_STALLS)
    first = bench.cycle
    await ClockCycles(dut.clk, 100)
    after = await bench.read(Register.TOKEN_STALLS)
    assert after - before == bench.cycle - first
    assert await bench.read(Register.POSITION) == 2
    assert await bench.read(Register.STATUS) & Status.RUNNING
    bench.tokens.pause = False
    await bench.finish_run(prompt, count)


@cocotb.test()
async def cycles_between_positions(dut):
    """The next restart is in the very cycle in which the programs are at their end; LAST_CYCLES is exact."""
    bench = await ready(dut)
    await bench.load_good()
    ends, restarts = [], []

    async def watch():
        while True:
            await RisingEdge(dut.clk)
            if int(dut.restart.value):
                restarts.append(bench.cycle)
            if int(dut.finished.value):
                ends.append(bench.cycle)

    cocotb.start_soon(watch())
    prompt = bench.random_prompt(6)
    await bench.start_run(prompt, 1)
    await bench.finish_run(prompt, 1)
    assert len(restarts) == 6
    assert all(cycle in ends for cycle in restarts[1:])
    assert await bench.read(Register.LAST_CYCLES) == bench.running_to - restarts[-1]


@cocotb.test()
async def soft_reset(dut):
    """Soft reset during a run, a load and a prompt; then all works as after reset, the image stays."""
    bench = await ready(dut, 0.1)
    bench.lengths = 0, 20
    await bench.load_good()
    for delay in (0, 1, 2, 3, 17, 40, 90):
        await bench.start_run(bench.random_prompt(3), 4)
        await ClockCycles(dut.clk, delay)
        assert await bench.command(Command.SOFT_RESET) == Error.NONE
        assert await bench.read(Register.STATUS) & 0xF == Status.LOADED
        assert await bench.read(Register.PROMPT) == 0
        bench.forget()
        await bench.run(bench.random_prompt(3), 2)
    bench.tokens.set_pause_generator(itertools.repeat(True))
    await bench.start_run(bench.random_prompt(1), 3)
    await ClockCycles(dut.clk, 60)
    assert int(dut.m_axis_tokens_tvalid.value)
    assert await bench.command(Command.SOFT_RESET) == Error.NONE
    assert not int(dut.m_axis_tokens_tvalid.value), "a token of the run that was ended"
    bench.stall("tokens", 0, share=0)
    _, words = bench.random_contents()
    bench.image.set_pause_generator(itertools.chain([False] * 15, itertools.repeat(True)))
    await bench.image.send(AxiStreamFrame(words))
    await ClockCycles(dut.clk, 40)
    assert await bench.read(Register.STATUS) & 0xF == Status.LOADING
    assert await bench.command(Command.SOFT_RESET) == Error.NONE
    status = await bench.read(Register.STATUS)
    assert status & 0xF == 0 and LoadError(status >> 16 & 0xF) == LoadError.ABORTED
    bench.stall("image", 0, share=0)
    await bench.image.wait()  # the rest has no header
    await ClockCycles(dut.clk, 2)
    assert LoadError(await bench.read(Register.STATUS) >> 16 & 0xF) == LoadError.BAD_MAGIC
    await bench.load_good()
    await bench.run(bench.random_prompt(3), 2)


@cocotb.test()
async def hard_reset(dut):
    """Reset in the middle of a run and of a load: as after power-up."""
    bench = await ready(dut)
    bench.lengths = 0, 20
    await bench.load_good()
    for delay in (3, 30):
        await bench.start_run(bench.random_prompt(3), 4)
        await ClockCycles(dut.clk, delay)
        dut.rst.value = 1
        await ClockCycles(dut.clk, 2)
        dut.rst.value = 0
        await ClockCycles(dut.clk, 2)
        assert await bench.read(Register.STATUS) == 0
        bench.forget()
        await bench.load_good()
        await bench.run(bench.random_prompt(2), 2)
