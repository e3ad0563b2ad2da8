"""AXI ports with their usual flat names, and the AXI4-Lite slave."""

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import enum
from amaranth.lib.wiring import In, Out

from hw.block import Block

LITE_ADDRESS_BITS = 10


class Response(enum.Enum, shape=2):
    """AXI response codes."""

    OKAY = 0
    SLVERR = 2
    DECERR = 3


def lite_ports(prefix: str = "s_axil") -> dict[str, Any]:
    """Members of an AXI4-Lite slave: 32-bit data, no protection bits (they would have no meaning here)."""
    inputs = {"awaddr": LITE_ADDRESS_BITS, "awvalid": 1, "wdata": 32, "wstrb": 4, "wvalid": 1, "bready": 1}
    inputs |= {"araddr": LITE_ADDRESS_BITS, "arvalid": 1, "rready": 1}
    outputs = {"awready": 1, "wready": 1, "bresp": 2, "bvalid": 1, "arready": 1, "rdata": 32, "rresp": 2, "rvalid": 1}
    members: dict[str, Any] = {f"{prefix}_{name}": In(width) for name, width in inputs.items()}
    return members | {f"{prefix}_{name}": Out(width) for name, width in outputs.items()}


def stream_ports(prefix: str, flow: Any, width: int = 32) -> dict[str, Any]:
    """Members of an AXI4-Stream: ``In`` for a slave, ``Out`` for a master."""
    ready = Out if flow is In else In
    return {
        f"{prefix}_tdata": flow(width),
        f"{prefix}_tvalid": flow(1),
        f"{prefix}_tready": ready(1),
        f"{prefix}_tlast": flow(1),
    }


def connect_ports(m: Module, outer: Any, inner: Any, prefix: str) -> None:
    """Pass the ports of ``prefix`` of a component inside on to the one around it (same names on both)."""
    for name, member in inner.signature.members.items():
        if name.startswith(f"{prefix}_"):
            inside, outside = getattr(inner, name), getattr(outer, name)
            m.d.comb += inside.eq(outside) if member.flow == In else outside.eq(inside)


class AxiLite(Block):
    """AXI4-Lite slave: turns transactions into one-cycle register accesses.

    Ports
    -----
    s_axil_*: the AXI4-Lite slave. Address and data of a write may come in either order and any time apart; one write
    and one read may be in flight, independently. Every output is a register or the inverse of one; a response waits
    for its ready. The low two address bits are ignored.
    write: high for one cycle per write, with write_word (word number), write_data and write_strobe (bytes);
    write_response, a combinational answer in the same cycle, becomes BRESP.
    read, read_word: the same for reads; read_data and read_response answer in the same cycle.

    Timing: response valid 2 cycles after the last of address and data was accepted; one access per 3 cycles.
    """

    def __init__(self) -> None:
        word = LITE_ADDRESS_BITS - 2
        super().__init__(
            {
                **lite_ports(),
                "write": Out(1),
                "write_word": Out(word),
                "write_data": Out(32),
                "write_strobe": Out(4),
                "write_response": In(Response),
                "read": Out(1),
                "read_word": Out(word),
                "read_data": In(32),
                "read_response": In(Response),
            }
        )

    def body(self, platform: Any) -> Module:
        m = Module()
        self._write_channels(m)
        self._read_channels(m)
        return m

    def _write_channels(self, m: Module) -> None:
        have_address = Signal()
        have_data = Signal()
        m.d.comb += [
            self.s_axil_awready.eq(~have_address),
            self.s_axil_wready.eq(~have_data),
            self.write.eq(have_address & have_data & ~self.s_axil_bvalid),
        ]
        with m.If(self.s_axil_awvalid & ~have_address):
            m.d.sync += [have_address.eq(1), self.write_word.eq(self.s_axil_awaddr[2:])]
        with m.If(self.s_axil_wvalid & ~have_data):
            m.d.sync += [
                have_data.eq(1),
                self.write_data.eq(self.s_axil_wdata),
                self.write_strobe.eq(self.s_axil_wstrb),
            ]
        with m.If(self.s_axil_bready):
            m.d.sync += self.s_axil_bvalid.eq(0)
        with m.If(self.write):
            m.d.sync += [
                have_address.eq(0),
                have_data.eq(0),
                self.s_axil_bvalid.eq(1),
                self.s_axil_bresp.eq(self.write_response),
            ]

    def _read_channels(self, m: Module) -> None:
        have_address = Signal()
        m.d.comb += [self.s_axil_arready.eq(~have_address), self.read.eq(have_address & ~self.s_axil_rvalid)]
        with m.If(self.s_axil_arvalid & ~have_address):
            m.d.sync += [have_address.eq(1), self.read_word.eq(self.s_axil_araddr[2:])]
        with m.If(self.s_axil_rready):
            m.d.sync += self.s_axil_rvalid.eq(0)
        with m.If(self.read):
            m.d.sync += [
                have_address.eq(0),
                self.s_axil_rvalid.eq(1),
                self.s_axil_rdata.eq(self.read_data),
                self.s_axil_rresp.eq(self.read_response),
            ]
