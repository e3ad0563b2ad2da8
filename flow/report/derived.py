"""Metrics that no step of a run can know: a decode recorded on the same Verilog, sums through a design's blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from flow.report.run import RTL, WHOLE, Metric, ReportError, Run, Table, load, read_json

CELLS, MACROS, DIE = "design__instance__area__stdcell", "design__instance__area__macros", "design__die__area"
POWER = "power__total"
POWER_COLUMNS = ("unit", "internal_w", "switching_w", "leakage_w")
RESULTS = Path(__file__).parents[2] / "results"
CONTEXT = "128"  # positions that the token at which cycles are counted attends to

Blocks = list[tuple[int, Run]]  # (copies, run) of each block directly in a design


def complete(run: Run, decode: Path | None = None) -> Run:
    """The run with those metrics. ``decode``: what 'nanok3 generate --record' wrote; None: the preset's in results/."""
    more = _decoded(run, decode or RESULTS / f"{run.preset}.json") if run.unit is None else {}
    if run.data.get("blocks"):
        sums = {CELLS: _through(run, _cells), MACROS: _through(run, _macros), POWER: _through(run, _power)}
        more |= {f"{WHOLE}__{name}": value for name, value in sums.items() if value is not None}
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


def blocks(run: Run) -> Blocks | None:
    """The blocks directly in a design; None when one's run is not beside it."""
    folders = [run.folder.parent / name for name in run.data.get("blocks", [])]
    if not folders:
        return []
    counts = run.json("synth", "cells.json")
    if counts is None or not all(folder.is_dir() for folder in folders):
        return None
    return [(counts["cells"].get(block.data.get("top"), 0), block) for block in map(load, folders)]


def _through(run: Run, own: Callable[[Run, Blocks], float | None]) -> float | None:
    """What ``own`` gives for a design, and for each block in it as often as it is there; None where one has none."""
    inside = blocks(run)
    value = None if inside is None else own(run, inside)
    if inside is None or value is None:
        return None
    for copies, block in inside:
        part = _through(block, own)
        if part is None:
            return None
        value += copies * part
    return value


def _cells(run: Run, _: Blocks) -> float | None:
    """um2 after layout."""
    found = run.last(CELLS)
    return None if found is None or found.stage == "synth" else found.value


def _macros(run: Run, inside: Blocks) -> float | None:
    """um2 of SRAMs after layout: OpenROAD counts a block among the macros, with its outline."""
    found = run.last(MACROS)
    dies = [(copies, block.last(DIE)) for copies, block in inside]
    if found is None or found.stage == "synth" or any(die is None for _, die in dies):
        return None
    return found.value - sum(copies * die.value for copies, die in dies if die is not None)


def _power(run: Run, _: Blocks) -> float | None:
    """W: what is in a block is not in the power of the design above, whose model of it has timing only."""
    return run.number(f"finish__{POWER}")


def power_table(run: Run) -> Table | None:
    """power.csv of a design, and a line for each block in it, all copies together; None where one has none."""
    own, inside = run.table("power", "power.csv", POWER_COLUMNS, ("unit",)), blocks(run)
    if own is None or inside is None:
        return None
    lines = [tuple(own[column][i] for column in POWER_COLUMNS) for i in range(len(own["unit"]))]
    for copies, block in inside:
        part = power_table(block)
        if part is None:
            return None
        lines.append((f"{block.unit} x{copies}", *(copies * part[column].sum() for column in POWER_COLUMNS[1:])))
    kept = [line for line in lines if any(line[1:])]
    table: Table = {column: np.array([line[i] for line in kept]) for i, column in enumerate(POWER_COLUMNS)}
    return table
