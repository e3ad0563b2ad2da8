"""Step ``synth``: the design's netlist, as ``flow.steps.synth`` makes it, with what is laid out elsewhere left out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flow import netlist
from flow.nangate45 import library as nangate45
from flow.steps import sta, synth
from flow.steps.step import LOG, Job, Metrics, Outcome, Step, StepFailed
from hw import yosys
from hw.emit import BLACKBOXES, LEF, LIBERTY, MACROS, MODELS

NETLIST, CELLS, SYNTHESIS = "netlist.v", "cells.json", "synthesis.json"


class Synth(Step):
    """Maps the Verilog; ``netlist.v`` is without the modules of the design's blocks, ``cells.json`` counts the rest."""

    name = "synth"
    needs_openroad = False

    def config(self, job: Job) -> synth.SynthConfig:
        """Every module below the design stays one: equal ones are synthesised once."""
        verilog = [file for file in sorted(job.design.rtl.glob("*.v")) if file.name not in (MODELS, BLACKBOXES)]
        modules = {name: module for file in verilog for name, module in netlist.read(file).items()}
        keep = tuple(netlist.reachable(modules, job.design.top)[1:])
        return synth.SynthConfig(keep=keep, constraints=job.settings.constraints)

    def settings(self, job: Job) -> Mapping[str, Any]:
        return {"top": job.design.top, "blocks": job.design.block_names, "synth": asdict(self.config(job))}

    def files(self, job: Job) -> Sequence[Path]:
        lib = nangate45.locate().liberty
        rtl = job.design.rtl
        return [lib, *sorted(rtl.glob("*.v")), rtl / LIBERTY, rtl / LEF, rtl / MACROS]

    def versions(self, job: Job) -> dict[str, str]:
        return synth.tool_versions(self.config(job))

    def run(self, job: Job, work: Path) -> Outcome:
        try:
            result = synth.run(job.design.rtl, job.design.top, "build/synth", self.config(job))
        except (synth.SynthError, nangate45.LibraryMissing, sta.StaError, yosys.YosysError) as problem:
            raise StepFailed(str(problem)) from None
        modules = netlist.read(Path(result["directory"]) / synth.NETLIST)
        blocks = job.design.block_names
        netlist.write(modules, netlist.reachable(modules, job.design.top, blocks), work / NETLIST)
        counted = netlist.cells(modules, job.design.top, blocks)
        clocked = job.settings.constraints.clock_port in netlist.ports(modules, job.design.top)
        (work / CELLS).write_text(json.dumps({"cells": counted, "clocked": clocked}, indent=1) + "\n")
        (work / SYNTHESIS).write_text(json.dumps(result, indent=1) + "\n")
        (work / LOG).write_text(synth.report(result) + "\n")
        metrics: Metrics = {name: value for name, value in result["metrics"].items() if value is not None}
        metrics["synth__design__instance__count__block"] = sum(counted[name] for name in blocks)
        return Outcome(metrics, [], {name: version for name, version in result["versions"].items()})
