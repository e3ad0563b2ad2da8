"""cocotb bench: every input random at every edge, after a reset and with another in the middle.

Parameter ``edges``: how many.
"""

import random

import cocotb
from cocotb.triggers import RisingEdge

from sim.verilator import parameters, start


@cocotb.test()
async def random_inputs(dut):
    """Drive, do not check: what happens is recorded."""
    inputs = [dut.x, dut.sel, dut.clear, dut.we, dut.wdata]
    for signal in inputs:
        signal.value = 0
    await start(dut)
    edges = parameters()["edges"]
    for edge in range(edges):
        dut.rst.value = edge in (edges // 2, edges // 2 + 1)
        for signal in inputs:
            signal.value = random.getrandbits(len(signal))
        await RisingEdge(dut.clk)
