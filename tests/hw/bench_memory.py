"""Benches of ``Sram`` on Verilator: random accesses against the model, random contents, the back door."""

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from tests.cocotb.runner import parameters, report, start
from tests.hw.sram_model import SramModel, stimulus


async def idle(dut):
    """Clock running, all ports idle."""

    def quiet():
        for name in ("en", "r_en", "w_en"):
            if hasattr(dut, name):
                getattr(dut, name).value = 0

    await start(dut, before=quiet)


@cocotb.test()
async def random_accesses(dut):
    """The output equals the model's after every edge at which it is known."""
    shape = parameters()
    await idle(dut)
    model = SramModel(shape["width"], shape["ports"], shape["granularity"])
    output = dut.rdata if shape["ports"] == "1rw" else dut.r_data
    compared = 0
    for inputs in stimulus(shape["depth"], shape["width"], shape["ports"], shape["granularity"], 400, shape["seed"]):
        for name, value in inputs.items():
            getattr(dut, name).value = value
        await RisingEdge(dut.clk)
        await ReadOnly()
        expected = model.step(inputs)
        if expected is not None:
            assert int(output.value) == expected
            compared += 1
        await cocotb.triggers.NextTimeStep()
    assert compared > 300


@cocotb.test()
async def power_up(dut):
    """Hands back words never written."""
    await idle(dut)
    words = []
    for addr in range(4):
        dut.en.value, dut.we.value, dut.addr.value = 1, 0, addr
        await RisingEdge(dut.clk)
        await ReadOnly()
        words.append(int(dut.rdata.value))
        await cocotb.triggers.NextTimeStep()
    report(words=words)


@cocotb.test()
async def back_door(dut):
    """A word put into ``mem`` is read, a word written is found in ``mem``."""
    await idle(dut)
    dut.bank_0.mem[5].value = 0x1234
    dut.en.value, dut.we.value, dut.addr.value = 1, 0, 5
    await RisingEdge(dut.clk)
    await ReadOnly()
    assert int(dut.rdata.value) == 0x1234
    await cocotb.triggers.NextTimeStep()
    dut.we.value, dut.addr.value, dut.wdata.value = 1, 6, 0xBEEF
    await RisingEdge(dut.clk)
    await ReadOnly()
    assert int(dut.bank_0.mem[6].value) == 0xBEEF
