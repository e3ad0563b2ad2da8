"""cocotb bench behind ``nanok3 generate --on rtl``: the host side of one free-running decode through the AXI ports.

Parameters (see sim.decode): ``image`` (file), ``prompt`` (token ids), ``count``, ``logits`` (stream them too),
``progress`` (file that gets a line per token), ``resets`` (optional: afterwards, reset the chip while it works).
Reports: ``before_reset`` (sim.host.output_values), ``tokens``, ``edges`` (number of the clock edge of each token's
first valid beat), ``counters``, ``ended`` (number of the edge after which that is done), ``logits`` when asked for.
"""

from pathlib import Path

import cocotb
from cocotb.triggers import ClockCycles, RisingEdge, Timer
from cocotb.utils import get_sim_time

from hw.control.registers import Command, Flag, Status
from hw.image import load
from sim.host import Host, output_values
from sim.verilator import parameters, report, start

PERIOD_NS = 10
WITHIN, AFTER = 400, 100  # cycles of a position before a reset, and after it


def now():
    """Number of the clock edge."""
    return round(get_sim_time("ns") / PERIOD_NS)


async def reset_at_work(dut, host, prompt, token):
    """Resets with something to clear: a soft one within a position, the position anew, and within it again a hard one.

    What is recorded of this shows whether a netlist has its resets: at the beginning its registers are 0 without them.
    """
    for command in (Command.SOFT_RESET, None):
        await host.run(prompt, 1, 0)
        await ClockCycles(dut.clk, WITHIN)
        assert Status.RUNNING in await host.status(), "there is nothing to reset"
        if command is not None:
            await host.command(command)
            host.forget()
            await host.run(prompt, 1, 0)
            assert list((await host.tokens.recv()).tdata) == [token], "another token after a reset"
    dut.rst.value = 1
    await ClockCycles(dut.clk, 3)
    dut.rst.value = 0
    await ClockCycles(dut.clk, AFTER)
    assert not await host.status(), "the reset left something"


async def watch_tokens(dut, count, progress):
    """(token, edge number) of each token's first valid beat; the sink is always ready, so each has one beat."""
    seen = []
    with progress.open("w") as lines:
        while len(seen) < count:
            await RisingEdge(dut.m_axis_tokens_tvalid)
            await RisingEdge(dut.clk)  # the edge that takes the beat
            seen.append((int(dut.m_axis_tokens_tdata.value), now()))
            lines.write(f"{seen[-1][0]}\n")
            lines.flush()
    return seen


@cocotb.test()
async def decode(dut):
    """Load, run, collect."""
    given = parameters()
    await Timer(1, "ns")
    before = output_values(dut)
    host = Host(dut)
    await start(dut, period_ns=PERIOD_NS)
    await host.load(load(given["image"]))
    watch = cocotb.start_soon(watch_tokens(dut, given["count"], Path(given["progress"])))
    await host.run(given["prompt"], given["count"], Flag.STREAM_LOGITS if given["logits"] else 0)
    seen = await watch
    frame = await host.tokens.recv()
    assert list(frame.tdata) == [token for token, _ in seen], "the token stream and its first beats differ"
    while Status.RUNNING in await host.status():
        pass
    results = {
        "before_reset": before,
        "tokens": [t for t, _ in seen],
        "edges": [e for _, e in seen],
        "counters": await host.counters(),
        "ended": now(),
    }
    if given["logits"]:
        positions = len(given["prompt"]) + given["count"] - 1
        results["logits"] = [await host.receive_logits() for _ in range(positions)]
    if given.get("resets"):
        await reset_at_work(dut, host, given["prompt"], seen[0][0])
    report(**results)
