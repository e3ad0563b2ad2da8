"""Loads an image (hw/image.py) from an AXI4-Stream into the chip's memories."""

from collections.abc import Mapping
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, enum
from amaranth.lib.wiring import In, Out

from hw.block import Block
from hw.control.axi import stream_ports
from hw.control.registers import LoadError
from hw.image import HEADER_WORDS, Section, header
from hw.layouts import WEIGHT_ADDR_BITS, LoadBus, Space

PLACE = data.StructLayout({"space": Space, "addr": WEIGHT_ADDR_BITS, "part": 8})
HEADER_ERRORS = (LoadError.BAD_MAGIC, LoadError.BAD_VERSION, LoadError.BAD_SHAPE)
POLYNOMIAL = 0xEDB88320


class State(enum.Enum, shape=2):
    """What the next beat is."""

    HEADER = 0
    PAYLOAD = 1
    CHECKSUM = 2
    DRAIN = 3  # of no use


def crc32_step(crc: Value, word: Value) -> Value:
    """CRC-32 register after 32 more bits, low bit first: every bit the parity of some bits of ``crc ^ word``."""
    columns = []
    for bit in range(32):
        state = 1 << bit
        for _ in range(32):
            state = state >> 1 ^ (POLYNOMIAL if state & 1 else 0)
        columns.append(state)
    mixed = crc ^ word
    masks = [sum((column >> bit & 1) << i for i, column in enumerate(columns)) for bit in range(32)]
    return Cat(*((mixed & mask).xor() for mask in masks))


class Loader(Block):
    """Checks an image while it streams in and writes its words on the load bus.

    Parameters: ``shape``, the chip's shape hash; ``sizes``, its memories (hw.image.sections).

    Ports
    -----
    s_axis_image: 32-bit beats, one word of the image each, TLAST on the last. One beat per cycle is taken; none is
    while ``hold``, except those of an image already begun.
    hold: the chip is running. abort: pulse, gives a load up.
    load: writes, registered, one cycle after their beat; an image that turns out bad has written by then.
    loading: an image has begun and its TLAST not come. loaded: the last image was good (0 from a first beat on).
    error: why the last image was not.

    After a wrong beat the rest is dropped up to TLAST, then the next image may come.
    """

    def __init__(self, shape: int, sizes: Mapping[Space, Section]) -> None:
        self._header = header(shape, sizes)
        self._sizes = {space: size for space, size in sizes.items() if size.words}
        self._at = Signal(PLACE, reset_less=True)  # where the next payload beat goes
        super().__init__(
            {
                **stream_ports("s_axis_image", In),
                "hold": In(1),
                "abort": In(1),
                "load": Out(LoadBus),
                "loading": Out(1),
                "loaded": Out(1),
                "error": Out(LoadError),
            }
        )

    def body(self, platform: Any) -> Module:
        m = Module()
        state = Signal(State)
        beat = Signal()
        index = Signal(range(HEADER_WORDS))
        bad = Signal(LoadError)  # of this beat
        crc = Signal(32, init=0xFFFFFFFF)
        last = self.s_axis_image_tlast
        m.d.comb += [
            self.s_axis_image_tready.eq(self.loading | ~self.hold),
            beat.eq(self.s_axis_image_tvalid & self.s_axis_image_tready),
        ]
        m.d.sync += self.load.valid.eq(0)
        with m.If(beat):
            m.d.sync += [self.loading.eq(1), crc.eq(crc32_step(crc, self.s_axis_image_tdata))]
        with m.Switch(state):
            with m.Case(State.HEADER):
                self._header_beat(m, beat, state, index, bad)
            with m.Case(State.PAYLOAD):
                m.d.comb += bad.eq(Mux(last, LoadError.EARLY_LAST, LoadError.NONE))
                with m.If(beat):
                    self._payload_beat(m, state)
            with m.Case(State.CHECKSUM):
                with m.If(~last):
                    m.d.comb += bad.eq(LoadError.LATE_LAST)
                with m.Elif(self.s_axis_image_tdata != ~crc):
                    m.d.comb += bad.eq(LoadError.BAD_CHECKSUM)
                with m.Elif(beat):
                    m.d.sync += self.loaded.eq(1)
        idle = [state.eq(State.HEADER), index.eq(0), crc.eq(crc.init), self.loading.eq(0)]
        with m.If(beat & (bad.as_value() != 0)):
            m.d.sync += [self.error.eq(bad), state.eq(State.DRAIN)]
        with m.If(beat & last):
            m.d.sync += idle
        with m.If(self.abort):
            m.d.sync += [*idle, self.loaded.eq(self.loaded & ~self.loading), self.load.valid.eq(0)]
            with m.If(self.loading):
                m.d.sync += self.error.eq(LoadError.ABORTED)
        return m

    def _header_beat(self, m: Module, beat: Value, state: Any, index: Signal, bad: Any) -> None:
        """Compare a header word with this chip's."""
        expected = Signal(32)
        code = Signal(LoadError)
        with m.Switch(index):
            for i, value in enumerate(self._header):
                with m.Case(i):
                    error = HEADER_ERRORS[i] if i < len(HEADER_ERRORS) else LoadError.BAD_SECTION
                    m.d.comb += [expected.eq(value), code.eq(error)]
        with m.If(self.s_axis_image_tdata != expected):
            m.d.comb += bad.eq(code)
        with m.Elif(self.s_axis_image_tlast):
            m.d.comb += bad.eq(LoadError.EARLY_LAST)
        with m.If(beat):
            with m.If(index == 0):
                m.d.sync += [self.loaded.eq(0), self.error.eq(LoadError.NONE)]
            m.d.sync += index.eq(index + 1)
            with m.If(index == HEADER_WORDS - 1):
                m.d.sync += [state.eq(State.PAYLOAD), self._at.space.eq(next(iter(self._sizes)))]
                m.d.sync += [self._at.addr.eq(0), self._at.part.eq(0)]

    def _payload_beat(self, m: Module, state: Any) -> None:
        """Write this beat; move to the next part, word, memory or the checksum."""
        at, load = self._at, self.load
        m.d.sync += [load.valid.eq(1), load.data.eq(self.s_axis_image_tdata)]
        m.d.sync += [load.space.eq(at.space), load.addr.eq(at.addr), load.part.eq(at.part)]
        spaces = list(self._sizes)
        last_part, last_word = Signal(), Signal()
        with m.Switch(at.space):
            for space, after in zip(spaces, [*spaces[1:], None], strict=True):
                size = self._sizes[space]
                with m.Case(space):
                    m.d.comb += [last_part.eq(at.part == size.parts - 1), last_word.eq(at.addr == size.words - 1)]
                    with m.If(last_part & last_word):
                        m.d.sync += state.eq(State.CHECKSUM) if after is None else at.space.eq(after)
        m.d.sync += at.part.eq(Mux(last_part, 0, at.part + 1))
        with m.If(last_part):
            m.d.sync += at.addr.eq(Mux(last_word, 0, at.addr + 1))
