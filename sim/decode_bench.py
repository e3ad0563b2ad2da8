"""cocotb bench behind ``nanok3 generate --on rtl``: the host side of one free-running decode through the AXI ports.

Parameters (see sim.decode): ``image`` (file), ``prompt`` (token ids), ``count``, ``logits`` (stream them too),
``progress`` (file that gets a line per token).  Reports: ``before_reset``
(the start values of some outputs), ``tokens``, ``edges`` (number of the clock edge of each
token's first valid beat), ``counters``, and ``logits`` when asked for.
"""

from pathlib import Path

import cocotb
from cocotb.triggers import ClockCycles, RisingEdge, Timer
from cocotb.utils import get_sim_time
from cocotbext.axi import AxiLiteBus, AxiLiteMaster, AxiStreamBus, AxiStreamFrame, AxiStreamSink, AxiStreamSource

from hw.control.registers import UNIT_STRIDE, Command, Flag, Register, Status
from sim.verilator import parameters, report, start

PERIOD_NS = 10
UNITS = ("array", "vector", "kda", "mla", "router")
COUNTERS = ("CYCLES", "TOKENS", "POSITIONS", "LAST_CYCLES", "TOKEN_STALLS")
KINDS = ("busy", "stalled", "idle")


class Host:
    """AXI masters and sinks on the chip's ports."""

    def __init__(self, dut):
        def stream(kind, prefix):
            port = kind(AxiStreamBus.from_prefix(dut, prefix), dut.clk, dut.rst, byte_size=32)
            port.log.setLevel("WARNING")
            return port

        self.dut = dut
        self.lite = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.clk, dut.rst)
        self.image = stream(AxiStreamSource, "s_axis_image")
        self.prompt = stream(AxiStreamSource, "s_axis_prompt")
        self.tokens = stream(AxiStreamSink, "m_axis_tokens")
        self.logits = stream(AxiStreamSink, "m_axis_logits")

    async def read(self, address):
        """A 32-bit register."""
        answer = await self.lite.read(int(address), 4)
        assert answer.resp == 0, f"read of {int(address):#x} was refused"
        return int.from_bytes(answer.data, "little")

    async def write(self, address, value):
        """A 32-bit register."""
        answer = await self.lite.write(int(address), int(value).to_bytes(4, "little"))
        assert answer.resp == 0, f"write of {int(address):#x} was refused"

    async def load(self, words):
        """The weight image; refused images fail the bench with the chip's code."""
        await self.image.send(AxiStreamFrame(words))
        await self.image.wait()
        await ClockCycles(self.dut.clk, 4)
        status = await self.read(Register.STATUS)
        assert status & Status.LOADED, f"the chip refused the image: error {status >> 16 & 0xF}"

    async def run(self, prompt, count, flags):
        """Prompt and START."""
        await self.prompt.send(AxiStreamFrame(prompt))
        await self.prompt.wait()
        await ClockCycles(self.dut.clk, 4)
        await self.write(Register.COUNT, count)
        await self.write(Register.FLAGS, flags)
        await self.write(Register.COMMAND, Command.START)
        status = await self.read(Register.STATUS)
        assert not status >> 8 & 0xF, f"the chip refused START: error {status >> 8 & 0xF}"

    async def counters(self):
        """All counters, by name; those of the units in one table each."""
        values = {name.lower(): await self.read(Register[name]) for name in COUNTERS}
        for i, unit in enumerate(UNITS):
            base = Register.UNITS + UNIT_STRIDE * i
            values[unit] = {kind: await self.read(base + 4 * k) for k, kind in enumerate(KINDS)}
        return values


async def watch_tokens(dut, count, progress):
    """(token, edge number) of each token's first valid beat; the sink is always ready, so each has one beat."""
    seen = []
    with progress.open("w") as lines:
        while len(seen) < count:
            await RisingEdge(dut.m_axis_tokens_tvalid)
            await RisingEdge(dut.clk)  # the edge that takes the beat
            seen.append((int(dut.m_axis_tokens_tdata.value), round(get_sim_time("ns") / PERIOD_NS)))
            lines.write(f"{seen[-1][0]}\n")
            lines.flush()
    return seen


def start_values(dut):
    """What the registers behind the data outputs hold before the first clock edge: random, by seed."""
    outputs = (dut.m_axis_tokens_tdata, dut.m_axis_logits_tdata, dut.s_axil_rdata)
    return [str(signal.value) for signal in outputs]


@cocotb.test()
async def decode(dut):
    """Load, run, collect."""
    given = parameters()
    await Timer(1, "ns")
    before = start_values(dut)
    host = Host(dut)
    await start(dut, period_ns=PERIOD_NS)
    raw = Path(given["image"]).read_bytes()
    await host.load([int.from_bytes(raw[i : i + 4], "little") for i in range(0, len(raw), 4)])
    watch = cocotb.start_soon(watch_tokens(dut, given["count"], Path(given["progress"])))
    await host.run(given["prompt"], given["count"], Flag.STREAM_LOGITS if given["logits"] else 0)
    seen = await watch
    frame = await host.tokens.recv()
    assert list(frame.tdata) == [token for token, _ in seen], "the token stream and its first beats differ"
    while await host.read(Register.STATUS) & Status.RUNNING:
        pass
    results = {
        "before_reset": before,
        "tokens": [t for t, _ in seen],
        "edges": [e for _, e in seen],
        "counters": await host.counters(),
    }
    if given["logits"]:
        frames = [await host.logits.recv() for _ in range(len(given["prompt"]) + given["count"] - 1)]
        results["logits"] = [[w - (1 << 32) if w >> 31 else w for w in f.tdata] for f in frames]
    report(**results)
