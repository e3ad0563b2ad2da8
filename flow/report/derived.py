"""Metrics that no step of a run can know: a decode recorded on the same Verilog, sums through a design's blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flow.report.run import RTL, WHOLE, Metric, ReportError, Run, Table, load, read_json

CELLS, MACROS, DIE = "design__instance__area__stdcell", "design__instance__area__macros", "design__die__area"
POWER = "power__total"
POWER_COLUMNS = ("unit", "internal_w", "switching_w", "leakage_w")
RESULTS = Path(__file__).parents[2] / "results"
RECORD = {  # of a recorded decode
    "verilog_sha256": str,
    "decode?": {"cycles_per_token": ({"mean": float, "at_context": {str: float}}, None)},  # None: of one token
}
CONTEXT = "128"  # positions that the token at which cycles are counted attends to

Blocks = list[tuple[int, Run]]  # (copies, run) of each block directly in a design


def complete(run: Run, decode: Path | None = None) -> Run:
    """The run with those metrics. ``decode``: what 'nanok3 generate --record' wrote; None: the preset's in results/."""
    more = _decoded(run, decode or RESULTS / f"{run.preset}.json", decode is not None) if run.unit is None else {}
    if run.data.get("blocks"):
        sums = {CELLS: _through(run, _cells), MACROS: _through(run, _macros), POWER: _through(run, _power)}
        more |= {f"{WHOLE}__{name}": value for name, value in sums.items() if value is not None}
    return replace(run, data={**run.data, "metrics": {**more, **run.metrics}})


@dataclass(frozen=True)
class Recorded:
    """A recorded decode: cycles per token, at which context, and the Verilog that was simulated."""

    file: str
    digest: str
    cycles: float
    where: str


def recorded_decode(file: Path) -> Recorded | None:
    """The decode in a file of figures, None where it has none; raises ReportError for what is no such file."""
    try:
        found = read_json(file, RECORD)
    except ReportError as problem:
        raise ReportError(f"{problem}; figures are what 'nanok3 generate --record' writes") from None
    per_token = found.get("decode", {}).get("cycles_per_token")
    if per_token is None:
        return None
    at = per_token["at_context"]
    cycles, where = (at[CONTEXT], f"context {CONTEXT}") if CONTEXT in at else (per_token["mean"], "mean")
    if cycles <= 0:
        raise ReportError(f"{file}: cycles per token must be above 0")
    return Recorded(file.name, found["verilog_sha256"], cycles, where)


def _decoded(run: Run, file: Path, asked: bool) -> dict[str, Metric]:
    """Cycles per token of a decode recorded with the Verilog that the run synthesised; else why there are none.

    A file that was asked for must hold a decode.
    """
    found = recorded_decode(file) if file.is_file() else None
    if found is None:
        if asked:
            raise ReportError(f"{file} holds no cycles per token: record a decode of two tokens or more")
        return {f"{RTL}__decode__source": "none: no decode is recorded"}
    if found.digest not in _inputs(run):
        return {f"{RTL}__decode__source": f"none: {found.file} is of other Verilog ({found.digest[:12]})"}
    return {
        f"{RTL}__decode__cycles_per_token": found.cycles,
        f"{RTL}__decode__source": f"{found.where}, RTL simulation of this Verilog ({found.digest[:12]}), {found.file}",
    }


def _inputs(run: Run) -> set[str]:
    """Hashes of what synthesis read."""
    record = run.json("synth", "step.json", {"inputs?": {str: str}}) or {}
    return set(record.get("inputs", {}).values())


def blocks(run: Run) -> Blocks | None:
    """The blocks directly in a design; None when one's run is not beside it."""
    folders = [run.folder.parent / name for name in run.data.get("blocks", [])]
    if not folders:
        return []
    counts = run.json("synth", "cells.json", {"cells": {str: float}})
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
