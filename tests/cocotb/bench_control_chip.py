"""Bench of the whole chip: image, prompt and START through its AXI ports; tokens and logits as the twin says."""

import logging
import random

import cocotb
from cocotb.triggers import ClockCycles, RisingEdge
from cocotbext.axi import AxiLiteBus, AxiLiteMaster, AxiStreamBus, AxiStreamFrame, AxiStreamSink, AxiStreamSource

from hw.control.registers import Command, Flag, Register, Status
from hw.image import load
from hw.program import UNITS
from tests.cocotb.bench_control import pauses
from tests.cocotb.runner import parameters, report, start


class Chip:
    """The chip and its host."""

    def __init__(self, dut):
        logging.getLogger(f"cocotb.{dut._name}").setLevel("WARNING")
        self.dut = dut

        def stream(kind, prefix):
            return kind(AxiStreamBus.from_prefix(dut, prefix), dut.clk, dut.rst, byte_size=32)

        dut.s_axis_image_tvalid.value = 0
        self.axil = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.clk, dut.rst)
        self.prompt = stream(AxiStreamSource, "s_axis_prompt")
        self.tokens = stream(AxiStreamSink, "m_axis_tokens")
        self.logits = stream(AxiStreamSink, "m_axis_logits")

    async def read(self, address):
        answer = await self.axil.read(int(address), 4)
        assert answer.resp == 0
        return int.from_bytes(answer.data, "little")

    async def write(self, address, value):
        assert (await self.axil.write(int(address), int(value).to_bytes(4, "little"))).resp == 0

    async def load(self, words):
        """Send the image, a beat a cycle."""
        dut = self.dut
        dut.s_axis_image_tvalid.value = 1
        dut.s_axis_image_tlast.value = 0
        for word in words[:-1]:
            dut.s_axis_image_tdata.value = word
            await RisingEdge(dut.clk)
        dut.s_axis_image_tdata.value = words[-1]
        dut.s_axis_image_tlast.value = 1
        await RisingEdge(dut.clk)
        dut.s_axis_image_tvalid.value = 0
        await ClockCycles(dut.clk, 2)
        status = await self.read(Register.STATUS)
        assert status & Status.LOADED and not status >> 16 & 0xF, "the image was not taken"

    async def start_run(self, run):
        """Prompt, registers, START."""
        await self.prompt.send(AxiStreamFrame(run["prompt"]))
        await self.prompt.wait()
        await ClockCycles(self.dut.clk, 2)
        await self.write(Register.COUNT, run["count"])
        await self.write(Register.FLAGS, run["flags"])
        await self.write(Register.COMMAND, Command.START)
        assert await self.read(Register.STATUS) >> 8 & 0xF == 0

    async def finish_run(self, run):
        """Results and counters."""
        if run["flags"] & Flag.STREAM_LOGITS:
            for position, expected in enumerate(run["logits"]):
                frame = await self.logits.recv()
                got = [word - (1 << 32) if word >> 31 else word for word in frame.tdata]
                assert got == expected, f"logits of position {position}"
        frame = await self.tokens.recv()
        assert list(frame.tdata) == run["tokens"]
        await ClockCycles(self.dut.clk, 5)
        assert not await self.read(Register.STATUS) & Status.RUNNING
        assert await self.read(Register.POSITIONS) == len(run["logits"])
        assert self.logits.empty(), "logits that nobody asked for"
        cycles = await self.read(Register.CYCLES)
        for u in range(len(UNITS)):
            kinds = [await self.read(Register.UNITS + 16 * u + 4 * k) for k in range(3)]
            assert sum(kinds) == cycles
        return {"cycles": cycles, "positions": len(run["logits"]), "last": await self.read(Register.LAST_CYCLES)}


@cocotb.test()
async def decode(dut):
    """Runs one after the other, with pauses on the outputs in some; a soft reset in the middle of one."""
    chip = Chip(dut)
    given = parameters()
    await start(dut)
    await chip.load(load(given["image"]))
    results = []
    for i, run in enumerate(given["runs"]):
        for sink in (chip.tokens, chip.logits):
            sink.set_pause_generator(pauses(i, 0.5) if run["pause"] else iter([False]))
        await chip.start_run(run)
        if run.get("reset"):
            await ClockCycles(dut.clk, run["reset"] + random.randrange(200))
            await chip.write(Register.COMMAND, Command.SOFT_RESET)
            for sink in (chip.tokens, chip.logits):
                sink.assert_reset()
                sink.clear()
            await chip.start_run(run)
        results.append(await chip.finish_run(run))
    report(runs=results)
