"""The one wrapper of all storage beyond registers."""

from typing import Any

from amaranth.hdl import Cat, ClockSignal, Const, Elaboratable, Instance, Module, Signal
from amaranth.lib.memory import Memory, MemoryData
from amaranth.lib.wiring import In, Out

from hw.block import Block, VerilogPlatform
from hw.memory.macro_model import PORTS, MacroSpec, split

__all__ = ["Sram"]


class Sram(Block):
    """Synchronous SRAM of ``depth`` words of ``width`` bits, in the ``sync`` domain.

    Parameters
    ----------
    depth: words, 2 to 2048. Addresses at or beyond ``depth`` must not be used.
    width: bits per word, any number; wide words are split into equal banks by ``macro_model.split``.
    ports: ``"1rw"``, one port that reads or writes each cycle, or ``"1r1w"``, one of each.
    write_granularity: bits per lane of the write mask; None: whole words are written and there is no ``wmask``.
    bank_width: bits per bank, to overrule ``split``.

    Ports, 1rw
    ----------
    en, we, [wmask], addr, wdata: inputs. ``en & ~we`` reads ``addr``; ``en & we`` writes the lanes of ``wdata`` whose
    bit of ``wmask`` is 1; with ``en`` low nothing happens.
    rdata: output, the word read, valid the cycle after the read and held until the cycle after the next read (writes
    do not change it).

    Ports, 1r1w
    -----------
    r_en, r_addr -> r_data: as above. w_en, [wmask], w_addr, w_data: a write. Reading the address that is written in
    the same cycle returns the OLD word, in Amaranth's simulator, in the Verilog models and so in the netlist, which
    uses the same.

    Contents and outputs are unknown (random under Verilator) until written and read. Latency one cycle, one access
    per port and cycle, no combinational path from input to output.

    Inside: with a ``VerilogPlatform`` instances of ``sram_<ports>_<depth>x<width>`` macros, named ``bank_<i>``;
    else (Amaranth's simulator) an ``amaranth.lib.memory.Memory`` on ``self.data``, which benches may read and
    write as ``ctx.get(dut.data[i])`` and ``ctx.set(dut.data[i], word)``.
    """

    def __init__(
        self,
        depth: int,
        width: int,
        *,
        ports: str = "1rw",
        write_granularity: int | None = None,
        bank_width: int | None = None,
    ) -> None:
        if ports not in PORTS:
            raise ValueError(f"ports is {ports!r}; it can be {' or '.join(PORTS)}")
        if width < 1:
            raise ValueError(f"width is {width}; it must be positive")
        if write_granularity is not None and (write_granularity < 1 or width % write_granularity):
            raise ValueError(f"write_granularity {write_granularity} does not divide the width, {width}")
        self.depth = depth
        self.width = width
        self.ports = ports
        self.granularity = write_granularity or 0
        self.lanes = width // self.granularity if self.granularity else 0
        if bank_width is None:
            self.banks, self.bank_width = split(width, depth, ports, self.granularity)
        else:
            self.banks, self.bank_width = -(-width // bank_width), bank_width
            if self.granularity and bank_width % self.granularity and self.granularity % bank_width:
                raise ValueError(f"bank_width {bank_width} and write_granularity {self.granularity} do not fit")
        masked = 0 < self.granularity < self.bank_width
        self.macro = MacroSpec(ports, depth, self.bank_width, self.granularity if masked else 0)
        self.module_name = (
            f"{self.macro.name}_by_{self.banks}"
            if width == self.banks * self.bank_width
            else (f"{self.macro.name}_by_{self.banks}_for_{width}")
        )
        self.data = MemoryData(shape=width, depth=depth, init=[])
        super().__init__(self._members())

    def _members(self) -> dict[str, Any]:
        """Signature members by port kind."""
        address = self.macro.address_width
        mask = {"wmask": In(self.lanes)} if self.lanes else {}
        if self.ports == "1rw":
            return {
                "en": In(1),
                "we": In(1),
                **mask,
                "addr": In(address),
                "wdata": In(self.width),
                "rdata": Out(self.width),
            }
        return {
            "r_en": In(1),
            "r_addr": In(address),
            "r_data": Out(self.width),
            "w_en": In(1),
            **mask,
            "w_addr": In(address),
            "w_data": In(self.width),
        }

    def body(self, platform: Any) -> Elaboratable:
        if isinstance(platform, VerilogPlatform):
            return self._macros(platform)
        return self._memory()

    def _memory(self) -> Module:
        """The wrapper on Amaranth's memory."""
        m = Module()
        m.submodules.memory = memory = Memory(self.data)
        read = memory.read_port()
        write = memory.write_port(granularity=self.granularity or None)
        if self.ports == "1rw":
            read_en, write_en = self.en & ~self.we, self.en & self.we
            m.d.comb += [read.addr.eq(self.addr), write.addr.eq(self.addr), write.data.eq(self.wdata)]
            m.d.comb += self.rdata.eq(read.data)
        else:
            read_en, write_en = self.r_en, self.w_en
            m.d.comb += [read.addr.eq(self.r_addr), write.addr.eq(self.w_addr), write.data.eq(self.w_data)]
            m.d.comb += self.r_data.eq(read.data)
        m.d.comb += read.en.eq(read_en)
        mask = self.wmask if self.lanes else Const(1, 1)
        m.d.comb += write.en.eq(write_en.replicate(len(mask)) & mask)
        return m

    def _macros(self, platform: VerilogPlatform) -> Module:
        """The wrapper on banks of macros."""
        m = Module()
        name = platform.macro(self.macro)
        padded = self.banks * self.bank_width
        wdata = Signal(padded)
        rdata = Signal(padded)
        m.d.comb += wdata.eq(self.wdata if self.ports == "1rw" else self.w_data)
        m.d.comb += (self.rdata if self.ports == "1rw" else self.r_data).eq(rdata[: self.width])
        for bank in range(self.banks):
            low = bank * self.bank_width
            part = slice(low, low + self.bank_width)
            m.submodules[f"bank_{bank}"] = Instance(
                name,
                i_clk=ClockSignal(),
                **self._bank_controls(bank),
                **(
                    {"i_wdata": wdata[part], "o_rdata": rdata[part]}
                    if self.ports == "1rw"
                    else {"i_w_data": wdata[part], "o_r_data": rdata[part]}
                ),
            )
        return m

    def _bank_controls(self, bank: int) -> dict[str, Any]:
        """Address, enables and mask of one bank; a bank inside one mask lane is enabled by that lane."""
        low = bank * self.bank_width
        mask: dict[str, Any] = {}
        selected: Any = None
        if self.macro.lanes:
            first = low // self.granularity
            lanes = [self.wmask[i] if i < self.lanes else Const(0, 1) for i in range(first, first + self.macro.lanes)]
            mask = {"i_wmask": Cat(*lanes)}
        elif self.lanes:
            selected = self.wmask[low // self.granularity]
        if self.ports == "1rw":
            en = self.en if selected is None else self.en & (~self.we | selected)
            return {"i_en": en, "i_we": self.we, "i_addr": self.addr, **mask}
        w_en = self.w_en if selected is None else self.w_en & selected
        return {"i_r_en": self.r_en, "i_r_addr": self.r_addr, "i_w_en": w_en, "i_w_addr": self.w_addr, **mask}
