"""The steps in their order, run over a design and the blocks in it, and the one report that they fill."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flow.design import Design
from flow.settings import FlowSettings
from flow.steps import layout
from flow.steps.gds import Layout
from flow.steps.mapped import Synth
from flow.steps.netlist_sim import NetlistSim
from flow.steps.openroad import OpenRoad
from flow.steps.step import Job, Result, Step, console, run
from golden.files import replaced_file

FOLDER = Path("build/flow")
REPORT = "report.json"

STEPS: tuple[Step, ...] = (
    Synth(),
    layout.Floorplan(),
    layout.PowerGrid(),
    layout.Placement(),
    layout.ClockTree(),
    layout.Repair(),
    layout.GlobalRoute(),
    layout.DetailedRoute(),
    layout.Fill(),
    layout.Parasitics(),
    layout.SignOff(),
    layout.Corners(),
    layout.Abstract(),
    layout.Netlist(),
    NetlistSim(),
    layout.Power(),
    Layout(),
)
# How far timing and wires can be trusted once a step is done.
STATES = {
    "synth": "pre-layout",
    "placement": "placed",
    "global_route": "globally routed",
    "detailed_route": "detail routed",
    "signoff": "signed off",
}


def names() -> list[str]:
    """Names of the steps, in order."""
    return [step.name for step in STEPS]


def lay_out(
    design: Design,
    settings: Callable[[Design], FlowSettings],
    openroad: OpenRoad | None,
    to: str | None = None,
    root: Path = FOLDER,
    command: Callable[[Design], str] | None = None,
) -> list[Path]:
    """Take a design, its blocks first and those to their end, to step ``to`` (None: the last); returns their folders.

    Without OpenROAD only steps that do not need it are run, on the design alone. ``command``: the command line that
    makes a design again, for its report.
    """
    order = design.in_order() if openroad is not None and to != Synth.name else [design]
    folders = []
    for each in order:
        job = Job(each, settings(each), openroad, (root / each.name).resolve(), command(each) if command else "")
        run_steps(job, STEPS, to if each is design else None)
        folders.append(job.folder)
    return folders


def run_steps(job: Job, steps: Sequence[Step], to: str | None) -> list[Result]:
    """Run a design's steps up to ``to`` and keep the report up to date."""
    results: list[Result] = []
    for step in steps:
        if step.wanted(job) and (job.openroad is not None or not step.needs_openroad):
            result = run(step, job, {done.name: done.key for done in results})
            results.append(result)
            console.print(f"{job.design.name} {step.name}: {result.status}, {result.seconds:.0f} s")
            write_report(job, results)
        if step.name == to:
            break
    return results


def write_report(job: Job, results: Sequence[Result]) -> None:
    """Merge the steps' metrics into the design's report.json."""
    states = [STATES[result.name] for result in results if result.name in STATES]
    versions: dict[str, str] = {}
    metrics: dict[str, Any] = {}
    for result in results:
        versions |= result.record["versions"]
        metrics |= result.metrics
    merged = {
        "design": job.design.name,
        "preset": job.design.preset,
        "unit": job.design.unit,
        "top": job.design.top,
        "blocks": [block.name for block in job.design.blocks],
        "command": job.command,
        "state": states[-1] if states else "nothing",
        "metrics": metrics,
        "steps": [
            {
                "name": result.name,
                "status": result.status,
                "seconds": result.seconds,
                "warnings": result.record["warnings"],
                "folder": result.name,
            }
            for result in results
        ],
        "versions": versions,
        "settings": job.settings.plain(),
        "netlist_sha256": metrics.get("finish__netlist__sha256", metrics.get("netlist__netlist__sha256")),
    }
    with replaced_file(job.folder / REPORT) as temporary:
        temporary.write_text(json.dumps(merged, indent=1, default=str) + "\n")
