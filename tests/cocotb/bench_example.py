"""Example bench: an ``Sram`` against a dictionary."""

import random

import cocotb
from cocotb.triggers import ClockCycles, RisingEdge

from tests.cocotb.runner import parameters, report, start


async def idle(dut):
    """Start with the port idle."""
    await start(dut, before=lambda: setattr(dut.en, "value", 0))


async def read(dut, addr):
    """One read."""
    dut.en.value, dut.we.value, dut.addr.value = 1, 0, addr
    await RisingEdge(dut.clk)
    dut.en.value = 0
    await ClockCycles(dut.clk, 1)
    return int(dut.rdata.value)


@cocotb.test()
async def random_accesses(dut):
    """Reads return what was written last."""
    await idle(dut)
    depth, width = parameters()["depth"], parameters()["width"]
    model = {}
    for _ in range(200):
        addr = random.randrange(depth)
        if random.random() < 0.5 or addr not in model:
            model[addr] = random.getrandbits(width)
            dut.en.value, dut.we.value, dut.addr.value, dut.wdata.value = 1, 1, addr, model[addr]
            await RisingEdge(dut.clk)
            dut.en.value = 0
        else:
            assert await read(dut, addr) == model[addr]


@cocotb.test()
async def unwritten_word(dut):
    """Hands a never written word back, so that the caller can see it is random."""
    await idle(dut)
    report(word=await read(dut, parameters()["depth"] - 1))
