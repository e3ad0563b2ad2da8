"""The host of a simulated chip: its registers and streams through cocotbext-axi. For use inside cocotb benches."""

import logging
import random
from collections.abc import Iterator, Sequence
from typing import Any

from cocotb.triggers import ClockCycles
from cocotbext.axi import AxiLiteBus, AxiLiteMaster, AxiStreamBus, AxiStreamFrame, AxiStreamSink, AxiStreamSource

from hw.control.registers import UNIT_STRIDE, Command, Error, LoadError, Register, Status
from hw.program import UNITS

COUNTERS = ("CYCLES", "TOKENS", "POSITIONS", "LAST_CYCLES", "TOKEN_STALLS")
KINDS = ("busy", "stalled", "idle")
STREAMS = {"image": "s_axis_image", "prompt": "s_axis_prompt", "tokens": "m_axis_tokens", "logits": "m_axis_logits"}
SETTLE = 4  # cycles after which a stream's last beat shows in the registers


def pauses(seed: int, share: float, length: int = 1) -> Iterator[bool]:
    """Pauses of a channel, cycle by cycle: a ``share`` of them; pauses and their gaps are ``length`` cycles or more.

    The mean is 1.5 lengths (1 for length 1).
    """
    rng = random.Random(seed)
    while True:
        pause = rng.random() < share
        for _ in range(rng.randint(length, 2 * length - 1)):
            yield pause


def output_values(dut: Any) -> list[str]:
    """The chip's data outputs.  Before the first clock edge: what the registers behind them start from."""
    return [str(signal.value) for signal in (dut.m_axis_tokens_tdata, dut.m_axis_logits_tdata, dut.s_axil_rdata)]


class Host:
    """AXI masters and sinks on the ports of a chip, or of a part of it that has some of the streams."""

    def __init__(self, dut: Any) -> None:
        logging.getLogger(f"cocotb.{dut._name}").setLevel("WARNING")  # of every transfer
        self.dut = dut
        self.lite = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.clk, dut.rst)
        self.streams = {
            name: self._stream(prefix) for name, prefix in STREAMS.items() if hasattr(dut, f"{prefix}_tdata")
        }

    def _stream(self, prefix: str) -> AxiStreamSource | AxiStreamSink:
        kind = AxiStreamSource if prefix.startswith("s_") else AxiStreamSink
        return kind(AxiStreamBus.from_prefix(self.dut, prefix), self.dut.clk, self.dut.rst, byte_size=32)

    @property
    def image(self) -> AxiStreamSource:
        """Weight images."""
        return self.streams["image"]

    @property
    def prompt(self) -> AxiStreamSource:
        """Prompt tokens."""
        return self.streams["prompt"]

    @property
    def tokens(self) -> AxiStreamSink:
        """Tokens, a frame per run."""
        return self.streams["tokens"]

    @property
    def logits(self) -> AxiStreamSink:
        """Logits, a frame per position."""
        return self.streams["logits"]

    def channels(self, name: str) -> list[Any]:
        """What can be paused: a stream, or the five channels of ``lite``."""
        if name != "lite":
            return [self.streams[name]]
        write, read = self.lite.write_if, self.lite.read_if
        return [write.aw_channel, write.w_channel, write.b_channel, read.ar_channel, read.r_channel]

    def stall(self, name: str, seed: int, share: float, length: int = 1) -> None:
        """Random pauses (see ``pauses``) on a stream or on ``lite`` from now on; a share of 0 ends them."""
        for i, channel in enumerate(self.channels(name)):
            if share:
                channel.set_pause_generator(pauses(100 * seed + i, share, length))
            else:
                channel.clear_pause_generator()
                channel.pause = False

    # --- registers ---
    async def read(self, address: int) -> int:
        """A 32-bit register."""
        answer = await self.lite.read(int(address), 4)
        assert answer.resp == 0, f"read of {int(address):#x} was refused"
        return int.from_bytes(answer.data, "little")

    async def write(self, address: int, value: int) -> None:
        """A 32-bit register."""
        answer = await self.lite.write(int(address), int(value).to_bytes(4, "little"))
        assert answer.resp == 0, f"write of {int(address):#x} was refused"

    async def status(self) -> Status:
        """The bits of STATUS below its error codes."""
        return Status(await self.read(Register.STATUS) & 0xF)

    async def command(self, command: int) -> Error:
        """Write COMMAND; returns the error it left."""
        await self.write(Register.COMMAND, command)
        return Error(await self.read(Register.STATUS) >> 8 & 0xF)

    async def load_error(self) -> LoadError:
        """How the last image ended."""
        return LoadError(await self.read(Register.STATUS) >> 16 & 0xF)

    async def counters(self) -> dict[str, Any]:
        """All counters, by name; those of the units in one table each."""
        values: dict[str, Any] = {name.lower(): await self.read(Register[name]) for name in COUNTERS}
        for i, unit in enumerate(UNITS):
            base = Register.UNITS + UNIT_STRIDE * i
            values[unit] = {kind: await self.read(base + 4 * k) for k, kind in enumerate(KINDS)}
        return values

    # --- streams ---
    async def send_image(self, words: Sequence[int]) -> LoadError:
        """Send an image; returns how it ended."""
        await self.image.send(AxiStreamFrame(list(words)))
        await self.image.wait()
        await ClockCycles(self.dut.clk, SETTLE)
        return await self.load_error()

    async def load(self, words: Sequence[int]) -> None:
        """Load the weight image; fails the bench when the chip refuses it."""
        error = await self.send_image(words)
        assert Status.LOADED in await self.status(), f"the chip refused the image: {error.name}"

    async def send_prompt(self, tokens: Sequence[int]) -> None:
        """Send a prompt."""
        await self.prompt.send(AxiStreamFrame(list(tokens)))
        await self.prompt.wait()
        await ClockCycles(self.dut.clk, SETTLE)

    async def start(self, prompt: Sequence[int], count: int, flags: int) -> Error:
        """Prompt, registers and START; returns why START was refused, if it was."""
        await self.send_prompt(prompt)
        await self.write(Register.COUNT, count)
        await self.write(Register.FLAGS, flags)
        return await self.command(Command.START)

    async def run(self, prompt: Sequence[int], count: int, flags: int) -> None:
        """Start a run; fails the bench when the chip refuses it."""
        error = await self.start(prompt, count, flags)
        assert error == Error.NONE, f"the chip refused START: {error.name}"

    async def receive_logits(self) -> list[int]:
        """The next position's logits (VEC)."""
        frame = await self.logits.recv()
        return [word - (1 << 32) if word >> 31 else word for word in frame.tdata]

    def forget(self) -> None:
        """Output streams as after a reset: no beats of a frame that has not ended, nothing received."""
        for name in ("tokens", "logits"):
            if name in self.streams:
                self.streams[name].assert_reset()
                self.streams[name].clear()
