"""Everything around the units: registers, loader, token loop and counters behind the chip's AXI ports."""

from collections.abc import Mapping, Sequence
from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, Value
from amaranth.lib.wiring import In, Out

from hw.block import Block
from hw.control.axi import AxiLite, Response, connect_ports, lite_ports, stream_ports
from hw.control.counters import Counters
from hw.control.loader import Loader
from hw.control.registers import IDENTITY, UNIT_STRIDE, Register
from hw.control.token_loop import TokenLoop
from hw.image import Section
from hw.layouts import LoadBus, Space
from hw.params import Params


class Control(Block):
    """Registers (hw/control/registers.py), loader, token loop and counters.

    Parameters: ``shape`` and ``sizes`` of the image (hw/image.py); ``units``, in the order of the strobes.

    Ports
    -----
    s_axil, s_axis_image, s_axis_prompt, m_axis_tokens: the chip's AXI ports.
    load: writes to the memories, only while the chip is idle.
    restart, skip_head, head_start, streaming, token, position, first, finished, head_complete, best: see TokenLoop.
    busy, stalled, idle: one bit per unit, for the counters.
    reset_units: one cycle, after a soft reset: everything that computes must be as after reset.
    """

    def __init__(self, p: Params, shape: int, sizes: Mapping[Space, Section], units: Sequence[str]) -> None:
        self._p = p
        self._shape = shape
        self._units = list(units)
        self._axil = AxiLite()
        self._loader = Loader(shape, sizes)
        self._loop = TokenLoop(p)
        self._counters = Counters(units)
        several = len(self._units)
        super().__init__(
            {
                **lite_ports(),
                **stream_ports("s_axis_image", In),
                **stream_ports("s_axis_prompt", In),
                **stream_ports("m_axis_tokens", Out),
                "load": Out(LoadBus),
                "restart": Out(1),
                "skip_head": Out(1),
                "head_start": Out(1),
                "streaming": Out(1),
                "token": Out(p.token_bits),
                "position": Out(p.position_bits),
                "first": Out(1),
                "finished": In(1),
                "head_complete": In(1),
                "best": In(p.token_bits),
                "busy": In(several),
                "stalled": In(several),
                "idle": In(several),
                "reset_units": Out(1),
            }
        )

    def body(self, platform: Any) -> Module:
        m = Module()
        m.submodules.axil = axil = self._axil
        m.submodules.loader = loader = self._loader
        m.submodules.token_loop = loop = self._loop
        m.submodules.counters = counters = self._counters
        for inner, prefix in (
            (axil, "s_axil"),
            (loader, "s_axis_image"),
            (loop, "s_axis_prompt"),
            (loop, "m_axis_tokens"),
        ):
            connect_ports(m, self, inner, prefix)
        for name in ("restart", "skip_head", "head_start", "streaming", "token", "position", "first"):
            m.d.comb += getattr(self, name).eq(getattr(loop, name))
        for name in ("finished", "head_complete", "best"):
            m.d.comb += getattr(loop, name).eq(getattr(self, name))
        for name in ("restart", "running", "position_end", "token_out", "token_stall"):
            m.d.comb += getattr(counters, name).eq(getattr(loop, name))
        for name in ("busy", "stalled", "idle"):
            m.d.comb += getattr(counters, name).eq(getattr(self, name))
        m.d.comb += [
            counters.clear.eq(loop.starting),
            loader.hold.eq(loop.running | loop.starting),
            loader.abort.eq(loop.reset_all),
            loop.loaded.eq(loader.loaded),
            self.load.eq(loader.load),
        ]
        m.d.sync += self.reset_units.eq(loop.reset_all)
        count, flags = Signal(16), Signal(2)
        m.d.comb += [loop.count.eq(count), loop.stream_logits.eq(flags[0]), loop.teacher_forced.eq(flags[1])]
        readable = self._readable(count, flags)
        self._write(m, count, flags, readable)
        self._read(m, readable)
        return m

    def _readable(self, count: Signal, flags: Signal) -> dict[int, Value]:
        """What every readable register shows, by byte address."""
        loop, loader, counters = self._loop, self._loader, self._counters
        limits = Const(self._p.model.max_positions | self._p.model.vocab_size << 16, 32)
        status = Cat(loop.running, loader.loaded, loader.loading, loop.prompt_ready)
        values: dict[int, Value] = {
            Register.IDENTITY: Const(IDENTITY, 32),
            Register.SHAPE: Const(self._shape, 32),
            Register.LIMITS: limits,
            Register.COUNT: count,
            Register.FLAGS: flags,
            Register.STATUS: Cat(status, Const(0, 4), loop.error, Const(0, 4), loader.error),
            Register.POSITION: loop.position,
            Register.PROMPT: loop.prompt_length,
            Register.CYCLES: counters.cycles,
            Register.TOKENS: counters.tokens,
            Register.POSITIONS: counters.positions,
            Register.LAST_CYCLES: counters.last_cycles,
            Register.TOKEN_STALLS: counters.token_stalls,
        }
        for index in range(len(self._units)):
            base = Register.UNITS + UNIT_STRIDE * index
            for i, kind in enumerate(("busy", "stalled", "idle")):
                values[base + 4 * i] = getattr(counters.units[index], kind)
        return values

    def _write(self, m: Module, count: Signal, flags: Signal, readable: Mapping[int, Value]) -> None:
        """Registers that can be written."""
        axil, loop = self._axil, self._loop
        m.d.comb += loop.command.eq(axil.write_data[:8])
        with m.Switch(axil.write_word):
            with m.Case(Register.COMMAND >> 2):
                m.d.comb += loop.command_valid.eq(axil.write & axil.write_strobe[0])
            with m.Case(Register.COUNT >> 2):
                for byte in range(2):
                    with m.If(axil.write & axil.write_strobe[byte]):
                        m.d.sync += count.word_select(byte, 8).eq(axil.write_data.word_select(byte, 8))
            with m.Case(Register.FLAGS >> 2):
                with m.If(axil.write & axil.write_strobe[0]):
                    m.d.sync += flags.eq(axil.write_data)
            with m.Case(*(address >> 2 for address in readable if address not in (Register.COUNT, Register.FLAGS))):
                m.d.comb += axil.write_response.eq(Response.SLVERR)
            with m.Default():
                m.d.comb += axil.write_response.eq(Response.DECERR)

    def _read(self, m: Module, readable: Mapping[int, Value]) -> None:
        """Registers that can be read."""
        axil = self._axil
        with m.Switch(axil.read_word):
            for address, value in readable.items():
                with m.Case(address >> 2):
                    m.d.comb += axil.read_data.eq(value)
            with m.Case(Register.COMMAND >> 2):
                m.d.comb += axil.read_response.eq(Response.SLVERR)
            with m.Default():
                m.d.comb += axil.read_response.eq(Response.DECERR)
