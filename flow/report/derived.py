"""Metrics that no step of a run can know: a decode recorded on the same Verilog, areas summed through blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flow.report.run import RTL, WHOLE, Metric, ReportError, Run, load, read_json

CELLS, MACROS, DIE = "design__instance__area__stdcell", "design__instance__area__macros", "design__die__area"
RESULTS = Path(__file__).parents[2] / "results"
CONTEXT = "128"  # positions that the token at which cycles are counted attends to


def complete(run: Run, decode: Path | None = None) -> Run:
    """The run with those metrics. ``decode``: what 'nanok3 generate --record' wrote; None: the preset's in results/."""
    more = _decoded(run, decode or RESULTS / f"{run.preset}.json") if run.unit is None else {}
    whole = _whole(run)
    if whole is not None:
        more |= {f"{WHOLE}__{CELLS}": whole[0], f"{WHOLE}__{MACROS}": whole[1]}
    return replace(run, data={**run.data, "metrics": {**more, **run.metrics}})


def _decoded(run: Run, file: Path) -> dict[str, Metric]:
    """Cycles per token of a decode recorded with the Verilog that the run synthesised; else why there are none."""
    if not file.is_file():
        return {f"{RTL}__decode__source": "none: no decode is recorded"}
    recorded = read_json(file)
    try:
        digest, per_token = recorded["verilog_sha256"], recorded["decode"]["cycles_per_token"]
        cycles, where = per_token["at_context"].get(CONTEXT), f"context {CONTEXT}"
        if cycles is None:
            cycles, where = per_token["mean"], "mean"
    except (KeyError, TypeError, AttributeError):
        raise ReportError(f"{file} is not what 'nanok3 generate --record' writes") from None
    if digest not in _inputs(run):
        return {f"{RTL}__decode__source": f"none: {file.name} is of other Verilog ({digest[:12]})"}
    return {
        f"{RTL}__decode__cycles_per_token": cycles,
        f"{RTL}__decode__source": f"{where}, RTL simulation of this Verilog ({digest[:12]}), {file.name}",
    }


def _inputs(run: Run) -> set[str]:
    """Hashes of what synthesis read."""
    record = run.json("synth", "step.json")
    return set(record.get("inputs", {}).values()) if isinstance(record, dict) else set()


def _whole(run: Run) -> tuple[float, float] | None:
    """(cells, macros) in um2 after layout, blocks opened; None without a layout or without the blocks' runs.

    A block counts in OpenROAD's macro area with its outline: that is taken out, and what is in the block put in.
    """
    cells, macros = run.last(CELLS), run.last(MACROS)
    if cells is None or cells.stage == "synth":
        return None
    total = [cells.value, macros.value if macros else 0.0]
    counts = run.json("synth", "cells.json")
    for name in run.data.get("blocks", ()):
        if counts is None or not (run.folder.parent / name).is_dir():
            return None
        block = load(run.folder.parent / name)
        inside, die = _whole(block), block.last(DIE)
        if inside is None or die is None:
            return None
        number = counts["cells"].get(block.data.get("top"), 0)
        total[0] += number * inside[0]
        total[1] += number * (inside[1] - die.value)
    return total[0], total[1]
