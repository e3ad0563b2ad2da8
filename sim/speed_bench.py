"""cocotb bench of the simulation's own speed: one free-running decode, the clock alone while the chip runs.

Parameters: ``image`` (file), ``prompt``, ``count`` (at least 2).  Reports ``cycles`` of the run and ``seconds`` of
processor time they took, loading excluded.
"""

import time

import cocotb
from cocotb.triggers import RisingEdge
from cocotb.utils import get_sim_time

from hw.control.registers import Command, Register
from hw.image import load
from sim.cycle_bench import ClockedHost
from sim.verilator import parameters, report, start

PERIOD_NS = 10


@cocotb.test()
async def speed(dut):
    """Load, then run on nothing but clock edges until the last token."""
    given = parameters()
    host = ClockedHost(dut)
    await start(dut, before=host.quiet, period_ns=PERIOD_NS)
    image = host.image.send(load(given["image"]), 0, lambda cycle: True)
    prompt = host.prompt.send(given["prompt"], 0, lambda cycle: True)
    while host.image.jobs or host.prompt.jobs:
        await host.tick()
    assert image and prompt
    await host.write(Register.COUNT, given["count"])
    await host.write(Register.FLAGS, 0)
    await host.write(Register.COMMAND, Command.START)
    assert not await host.read(Register.STATUS) >> 8 & 0xF, "the chip refused START"
    before = time.process_time(), get_sim_time("ns")
    await RisingEdge(dut.m_axis_tokens_tvalid)  # the first token, which is not the last
    while not int(dut.m_axis_tokens_tlast.value):
        await RisingEdge(dut.m_axis_tokens_tvalid)
        await RisingEdge(dut.clk)
    seconds, nanoseconds = time.process_time() - before[0], get_sim_time("ns") - before[1]
    report(cycles=round(nanoseconds / PERIOD_NS), seconds=seconds)
