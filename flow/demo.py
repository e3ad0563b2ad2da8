"""``make demo``: nano-k3 decodes on its RTL beside the twin, micro-k3 is synthesised live, recorded figures shown."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from flow.cli import INTERRUPTED
from flow.commands import common, generate
from flow.commands.common import CommandError, console

PROMPT, TOKENS = "The ", 16
RESULTS = Path(__file__).parents[1] / "results" / "nano-k3.json"


def decode() -> None:
    """The same prompt on the chip and in the twin; they must agree token by token."""
    from golden.compare import greedy, stepper

    loaded = common.load("nano-k3", None)
    if loaded.tokenizer is None:
        raise CommandError("nano-k3 has no tokenizer.json", 1)
    ids = loaded.tokenizer.encode(PROMPT).ids
    print(f"1. nano-k3 continues {PROMPT!r} by {TOKENS} tokens, on its RTL in Verilator:")
    show = generate.Shown(loaded.tokenizer)
    made, result = generate.chip_tokens("nano-k3", None, loaded, ids, TOKENS, show, None)
    show.end()
    twin = list(greedy(stepper("twin", loaded.cfg, loaded.state), ids, TOKENS))
    if made != twin:
        at = next(i for i, (a, b) in enumerate(zip(made, twin, strict=True)) if a != b)
        raise CommandError(f"the chip and the twin part at token {at}: {made[at]} and {twin[at]}", 1)
    print(f"   the integer twin gives the same {TOKENS} tokens")
    per_token = result["cycles_per_token"]["mean"]
    print(f"   {per_token:,.0f} cycles per token on average: {1e8 / per_token:,.0f} tokens/s at 100 MHz\n")


def start_synthesis() -> subprocess.Popen[str]:
    """micro-k3, live (from the cache when nothing has changed), while the simulation is compiled on the other core."""
    command = [sys.executable, "-c", "from flow.cli import main; main()", "synth", "--config", "micro-k3"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def synthesised(running: subprocess.Popen[str]) -> None:
    """Wait for the synthesis and show its report."""
    print("2. micro-k3 synthesised to Nangate 45:")
    with console.status("synthesis of micro-k3"):
        report, errors = running.communicate()
    if running.returncode:
        raise CommandError(errors.strip().splitlines()[-1], running.returncode)
    print(report)


def recorded() -> None:
    """nano-k3's figures as they were measured, marked stale when the Verilog is another one now."""
    from flow import rtl
    from hw.params import from_preset

    print("\n3. nano-k3 as recorded (measure again with 'make bench'):")
    if not RESULTS.is_file():
        print("   nothing is recorded yet")
        return
    data = json.loads(RESULTS.read_text())
    now = rtl.sha256(rtl.emitted(rtl.make(from_preset("nano-k3"))) / rtl.VERILOG)
    stale = data["verilog_sha256"] != now
    print(
        f"   Verilog sha256 {data['verilog_sha256'][:16]}: " + (f"STALE, it is {now[:16]} now" if stale else "current")
    )
    if decoded := data.get("decode"):
        at = decoded["cycles_per_token"]["at_context"].get("128")
        if at:
            print(f"   cycles per token at context 128: {at:,} ({1e8 / at:,.0f} tokens/s at 100 MHz)")
        print(f"   cycles per token, mean of {decoded['tokens']}: {decoded['cycles_per_token']['mean']:,.1f}")
    for name, value in data.get("synth", {}).get("metrics", {}).items():
        print(f"   {name}: {value}")


def main() -> None:
    """All three, in order; one line on stderr when one fails."""
    begin = time.monotonic()
    running = start_synthesis()
    try:
        decode()
        synthesised(running)
        recorded()
    except CommandError as e:
        print(f"demo: {e}", file=sys.stderr)
        sys.exit(e.code)
    except KeyboardInterrupt:
        print("demo: stopped", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        running.kill()
    console.print(f"demo done in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
