"""Benches that fail, to prove that the runner notices."""

import os

import cocotb
from cocotb.triggers import Timer

from tests.cocotb.bench_example import idle, read


@cocotb.test()
async def wrong_value(dut):
    """Expects a word that is not there."""
    await idle(dut)
    assert await read(dut, 0) == -1


@cocotb.test()
async def crash(dut):
    """Ends the simulator."""
    await Timer(1, "ns")
    os._exit(0)


@cocotb.test()
async def hang(dut):
    """Never ends."""
    while True:
        await Timer(1, "us")
