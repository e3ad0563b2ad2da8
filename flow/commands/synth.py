"""``nanok3 synth``: area and worst slack of a preset's chip on Nangate 45."""

from __future__ import annotations

import json
from pathlib import Path

from flow.commands.common import CommandError, console

KEEP = ("*",)  # every component stays a module: equal ones are synthesised once


def run(config: str, as_json: bool, record: Path | None, workers: int) -> None:
    """Print metrics (ORFS names), area by module, slacks per macro class and the macro model's errors on stdout."""
    from flow import rtl
    from flow.nangate45.library import LibraryMissing
    from flow.steps import sta, synth
    from hw.memory.macro_model import error_table
    from hw.params import from_preset
    from hw.yosys import YosysError

    folder = rtl.emitted(rtl.make(from_preset(config)))
    try:
        result = synth.run(folder, rtl.TOP, "build/synth", synth.SynthConfig(keep=KEEP), workers=workers)
    except (synth.SynthError, LibraryMissing, sta.StaError, YosysError) as e:
        raise CommandError(str(e), 1) from None
    digest = rtl.sha256(folder / rtl.VERILOG)
    if record is not None:
        kept = {key: result[key] for key in ("metrics", "versions", "settings")}
        rtl.record(record, digest, synth={**kept, "timing_source": result["timing"]["source"]})
        console.print(f"recorded in {record}")
    if as_json:
        timing = {key: value for key, value in result["timing"].items() if key != "worst_path"}
        print(json.dumps({**result["metrics"], "verilog_sha256": digest, "timing": timing}))
    else:
        print(synth.report(result))
        print(f"\nmacro model against the shipped macros:\n{error_table()}")
