"""cocotb bench behind ``nanok3 generate --on rtl``: the host side of one free-running decode through the AXI ports.

Parameters (see sim.decode): ``image`` (file), ``prompt`` (token ids), ``count``, ``logits`` (stream them too),
``progress`` (file that gets a line per token).  Reports: ``before_reset`` (sim.host.output_values), ``tokens``,
``edges`` (number of the clock edge of each token's first valid beat), ``counters``, and ``logits`` when asked for.
"""

from pathlib import Path

import cocotb
from cocotb.triggers import RisingEdge, Timer
from cocotb.utils import get_sim_time

from hw.control.registers import Flag, Status
from hw.image import load
from sim.host import Host, output_values
from sim.verilator import parameters, report, start

PERIOD_NS = 10


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
    }
    if given["logits"]:
        positions = len(given["prompt"]) + given["count"] - 1
        results["logits"] = [await host.receive_logits() for _ in range(positions)]
    report(**results)
