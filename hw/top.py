"""The chip: units, weight memory and control behind AXI ports."""

from typing import Any

from amaranth.hdl import ClockDomain, DomainRenamer, Elaboratable, Module, Mux, Signal
from amaranth.lib.wiring import In, Out

from hw.block import Block
from hw.control.axi import connect_ports, lite_ports, stream_ports
from hw.control.control import Control
from hw.control.issuer import Sequencer
from hw.image import sections, shape_hash
from hw.layouts import ArrayCommand, KdaCommand, MlaCommand, RouterCommand, Space, VectorCommand
from hw.memory.sram import Sram
from hw.params import Params
from hw.program import UNITS, Program, compile_program
from hw.units.array import ArrayUnit
from hw.units.head import Head
from hw.units.kda import KdaEngine
from hw.units.mla import MlaEngine
from hw.units.router import Router
from hw.units.vector import VectorUnit

COMMANDS = {
    "array": ArrayCommand,
    "vector": VectorCommand,
    "kda": KdaCommand,
    "mla": MlaCommand,
    "router": RouterCommand,
}
PIECE = 32  # bits of one load

# (from, output) -> (to, input): every connection between units, by name
WIRES = (
    ("control", "restart", "sequencer", "restart"),
    ("control", "skip_head", "sequencer", "skip_head"),
    ("sequencer", "finished", "control", "finished"),
    ("sequencer", "busy", "control", "busy"),
    ("sequencer", "stalled", "control", "stalled"),
    ("sequencer", "idle", "control", "idle"),
    ("control", "head_start", "head", "start"),
    ("control", "streaming", "head", "stream_logits"),
    ("control", "streaming", "array", "head_serial"),
    ("head", "complete", "control", "head_complete"),
    ("head", "best", "control", "best"),
    ("control", "token", "array", "token"),
    ("control", "first", "array", "first"),
    ("control", "first", "kda", "first"),
    ("control", "position", "mla", "position"),
    ("control", "load", "array", "load"),
    ("control", "load", "vector", "load"),
    ("control", "load", "router", "load"),
    ("array", "t", "vector", "t"),
    ("array", "t", "kda", "t"),
    ("array", "t", "mla", "t"),
    ("array", "t", "router", "t"),
    ("array", "prefix", "vector", "prefix"),
    ("array", "head_valid", "head", "head_valid"),
    ("array", "head_group", "head", "head_group"),
    ("array", "head_logits", "head", "head_logits"),
    ("head", "head_ready", "array", "head_ready"),
    ("vector", "slots", "array", "slots"),
    ("vector", "key", "kda", "key"),
    ("vector", "k_we", "kda", "k_we"),
    ("vector", "q_we", "kda", "q_we"),
    ("vector", "cache_we", "mla", "cache_we"),
    ("vector", "cache_latent", "mla", "cache_latent"),
    ("vector", "cache_layer", "mla", "cache_layer"),
    ("kda", "o", "vector", "kda_o"),
    ("mla", "context", "vector", "context"),
    ("mla", "context_mantissa", "vector", "context_mantissa"),
    ("router", "expert", "array", "expert"),
    ("router", "expert_weight", "vector", "expert_weight"),
)


class Nanok3(Block):
    """A chip of parameters ``p`` that runs ``program``.

    Ports, besides clk and rst (synchronous, active high)
    -----
    s_axil: AXI4-Lite, hw/control/registers.py. s_axis_image: hw/image.py. s_axis_prompt, m_axis_tokens: tokens, see
    hw/control/token_loop.py. m_axis_logits: with the flag STREAM_LOGITS all logits of every position, VEC in
    sign-extended 32 bits, TLAST on a position's last. Streams are 32 bits wide.

    A soft reset resets the units and the sequencer as ``rst`` does, and the output streams with them.
    """

    def __init__(self, p: Params, program: Program | None = None) -> None:
        self.p = p
        self.program = program or compile_program(p)
        self.shape = shape_hash(p, self.program)
        self.sizes = sections(p, self.program)
        words = {space: max(2, size.words) for space, size in self.sizes.items()}
        self.weights = Sram(words[Space.WEIGHTS], p.weight_width, write_granularity=PIECE)
        self.control = Control(p, self.shape, self.sizes, UNITS)
        self.units: dict[str, Any] = {
            "sequencer": Sequencer(self.program.units, COMMANDS),
            "array": ArrayUnit(p),
            "vector": VectorUnit(p, words[Space.VECTOR]),
            "kda": KdaEngine(p),
            "mla": MlaEngine(p),
            "router": Router(p),
            "head": Head(p),
        }
        super().__init__(
            {
                **lite_ports(),
                **stream_ports("s_axis_image", In),
                **stream_ports("s_axis_prompt", In),
                **stream_ports("m_axis_tokens", Out),
                **stream_ports("m_axis_logits", Out),
            }
        )

    def body(self, platform: Any) -> Elaboratable:
        m = Module()
        m.submodules.control = control = self.control
        m.submodules.weights = self.weights
        self._domains(m)
        for name, unit in self.units.items():
            m.submodules[name] = DomainRenamer("units")(unit)
        for prefix in ("s_axil", "s_axis_image", "s_axis_prompt", "m_axis_tokens"):
            connect_ports(m, self, control, prefix)
        parts = {"control": control, **self.units}
        for source, output, sink, port in WIRES:
            m.d.comb += getattr(parts[sink], port).eq(getattr(parts[source], output))
        for unit in UNITS:
            self._issue(m, unit)
        self._weights(m)
        self._logits(m)
        return m

    def _domains(self, m: Module) -> None:
        """Domain ``units``: the chip's clock, the very same signal, and a reset that a soft reset gives too."""
        m.domains.sync = sync = ClockDomain()
        m.domains.units = units = ClockDomain()
        units.clk = sync.clk
        m.d.comb += units.rst.eq(sync.rst | self.control.reset_units)

    def _issue(self, m: Module, name: str) -> None:
        """Commands of one unit."""
        sequencer, unit = self.units["sequencer"], self.units[name]
        m.d.comb += [
            unit.cmd.eq(getattr(sequencer, f"cmd_{name}")),
            unit.valid.eq(getattr(sequencer, f"valid_{name}")),
            getattr(sequencer, f"take_{name}").eq(unit.take),
            getattr(sequencer, f"done_{name}").eq(unit.done),
        ]

    def _weights(self, m: Module) -> None:
        """Weight memory: read by the array, written by the loader (never at once)."""
        array, load, memory = self.units["array"], self.control.load, self.weights
        write = Signal()
        m.d.comb += [
            write.eq(load.valid & (load.space == Space.WEIGHTS)),
            memory.en.eq(array.weight_en | write),
            memory.we.eq(write),
            memory.addr.eq(Mux(write, load.addr, array.weight_addr)),
            memory.wdata.eq(load.data.replicate(memory.lanes)),
            memory.wmask.bit_select(load.part, 1).eq(1),
            array.weight_data.eq(memory.rdata),
        ]

    def _logits(self, m: Module) -> None:
        """The logits stream."""
        head = self.units["head"]
        m.d.comb += [
            self.m_axis_logits_tdata.eq(head.logits_data),
            self.m_axis_logits_tvalid.eq(head.logits_valid),
            self.m_axis_logits_tlast.eq(head.logits_last),
            head.logits_ready.eq(self.m_axis_logits_tready),
        ]
