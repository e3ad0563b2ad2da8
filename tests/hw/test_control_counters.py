"""Counters at their greatest value: all stop together, sums stay equal (Amaranth's simulator)."""

import random

from amaranth.sim import Simulator

from hw.control.counters import Counters

UNITS = ("array", "vector")
WIDTH = 6


def test_counts_and_stop():
    dut = Counters(UNITS, WIDTH)
    rng = random.Random(1)
    greatest = (1 << WIDTH) - 1

    async def bench(ctx):
        for length in (30, 200, 5):
            ctx.set(dut.clear, 1)
            ctx.set(dut.running, 0)
            await ctx.tick()
            ctx.set(dut.clear, 0)
            counts = {(u, k): 0 for u in range(2) for k in ("busy", "stalled", "idle")}
            totals = dict.fromkeys(("cycles", "tokens", "positions", "token_stalls", "last_cycles"), 0)
            since = None
            for cycle in range(length):
                running = cycle < length - 2
                counting = running and totals["cycles"] < greatest
                kinds = [rng.choice(("busy", "stalled", "idle")) for _ in UNITS]
                strobes = {name: rng.getrandbits(1) for name in ("restart", "position_end", "token_out", "token_stall")}
                strobes["restart"] |= cycle == 0
                ctx.set(dut.running, running)
                for name, value in strobes.items():
                    ctx.set(getattr(dut, name), value)
                for kind in ("busy", "stalled", "idle"):
                    ctx.set(getattr(dut, kind), sum((kinds[u] == kind) << u for u in range(2)))
                await ctx.tick()
                if strobes["position_end"] and since is not None:
                    totals["last_cycles"] = min(since, greatest)
                elif strobes["position_end"]:
                    totals["last_cycles"] = ctx.get(dut.last_cycles)  # of a position begun before the run
                since = 1 if strobes["restart"] else since + 1
                if counting:
                    totals["cycles"] += 1
                    totals["tokens"] += strobes["token_out"]
                    totals["positions"] += strobes["position_end"]
                    totals["token_stalls"] += strobes["token_stall"]
                    for u, kind in enumerate(kinds):
                        counts[u, kind] += 1
                assert {name: ctx.get(getattr(dut, name)) for name in totals} == totals
                for (u, kind), value in counts.items():
                    assert ctx.get(getattr(dut.units[u], kind)) == value
            for u in range(2):
                assert sum(counts[u, kind] for kind in ("busy", "stalled", "idle")) == totals["cycles"]

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()
