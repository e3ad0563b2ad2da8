"""Step ``netlist_sim``: the netlist does, edge by edge, what the chip's RTL does in a real decode.

It is the netlist that was signed off; that of synthesis where the design is too large to be routed in detail.

The chip's RTL is loaded and decodes a few tokens once per preset, with the ports of the chip and of every unit and tile
recorded; the tokens are compared with the twin's. Each netlist is then driven with its module's record. What the nets
do from the first token on is the activity that the step ``power`` reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flow import netlist
from flow.design import Design
from flow.nangate45 import library as nangate45
from flow.steps import activity, replay
from flow.steps.layout import detailed
from flow.steps.step import LOG, Job, Metrics, Outcome, Step, StepFailed, console, sha256
from golden.files import replaced_folder
from hw import hierarchy
from hw.emit import MODELS

TOKENS, PROMPT = 4, (5,)
RECORDS = Path("build/flow/records")
ACTIVITY, DECODE = "activity.csv", "decode.json"
CLOCK_PS = 10_000  # of the replay


class NetlistSim(Step):
    """Replays the record on the netlist; any difference fails the step."""

    name = "netlist_sim"
    after = ("synth", "signoff")
    needs_openroad = False

    def wanted(self, job: Job) -> bool:
        return job.openroad is not None

    def settings(self, job: Job) -> Mapping[str, Any]:
        return {"tokens": TOKENS, "prompt": PROMPT}

    def files(self, job: Job) -> Sequence[Path]:
        return [*netlists(job)[1:], *models(job.design), Path(replay.__file__), Path(activity.__file__)]

    def run(self, job: Job, work: Path) -> Outcome:
        records = recorded(job.design)
        decode = json.loads((records / DECODE).read_text())
        start = decode["edges"][0]
        modules = netlist.read(netlists(job)[0])
        try:
            ports = same_ports(recorded_ports(job.design), replay.ports(modules[job.design.top].text))
            found = replay.replay(
                netlists(job),
                models(job.design),
                job.design.top,
                ports,
                records / f"{job.design.top}.hex",
                work,
                activity=work / "activity.saif",
                start=start,
            )
        except replay.ReplayFailed as problem:
            raise StepFailed(str(problem)) from None
        (work / LOG).write_text((work / "replay.log").read_text())
        if found.wrong_edges:
            raise StepFailed(f"the netlist differs from the RTL at {found.wrong_edges} edges, first {found.first}")
        nets = activity.read_saif(work / "activity.saif", ("replay", "dut"), start * CLOCK_PS)
        known, pins = activity.write(modules, job.design.top, nets, work / ACTIVITY)
        for leftover in (work / "activity.saif", *(work / "simulation").iterdir()):
            leftover.unlink()
        (work / "simulation").rmdir()
        metrics: Metrics = {
            "netlistsim__activity__pins": pins,
            "netlistsim__activity__pins__known": known,
            "netlistsim__netlist": "signed off" if detailed(job) else "synthesis",
            "netlistsim__netlist__sha256": sha256(netlists(job)[0]),
            "netlistsim__edges": found.edges,
            "netlistsim__edges__wrong": found.wrong_edges,
            "netlistsim__bits__compared": found.compared_bits,
            "netlistsim__tokens": len(decode["tokens"]),
        }
        return Outcome(metrics)


def recorded_ports(design: Design) -> list[replay.Port]:
    """Ports of the design in its RTL, in the order in which the record has them; tools reorder a netlist's."""
    from flow import rtl

    return replay.ports(netlist.read(design.rtl / rtl.VERILOG)[design.top].text)


def same_ports(recorded: list[replay.Port], found: list[replay.Port]) -> list[replay.Port]:
    """The recorded ports, if the netlist has just these; raises ReplayFailed."""
    if set(recorded) != set(found):
        differing = sorted(port.name for port in set(recorded) ^ set(found))
        raise replay.ReplayFailed(f"the netlist has other ports than the RTL: {', '.join(differing[:5])}")
    return recorded


def netlists(job: Job) -> list[Path]:
    """The design's netlist, then its blocks' as signed off."""
    own = job.of("signoff" if detailed(job) else "synth") / "netlist.v"
    blocks = [each for each in reversed(job.design.in_order()) if each is not job.design]
    return [own, *(job.folder.parent / block.name / "signoff" / "netlist.v" for block in blocks)]


def models(design: Design) -> list[Path]:
    """Verilog of the library's cells and of the SRAMs."""
    return [nangate45.locate().verilog, design.rtl / MODELS]


def recorded(design: Design) -> Path:
    """Folder with the records of every unit and tile of the design's chip, made when there is none."""
    folder = RECORDS.resolve() / design.rtl.name
    if not (folder / DECODE).is_file():
        with console.status(f"{design.preset}: the RTL decodes {TOKENS} tokens, units recorded"):
            with replaced_folder(folder, lambda file: True) as work:
                _record(design, work)
    return folder


def _record(design: Design, work: Path) -> None:
    """Decode on the RTL from zeros, the modules' ports recorded; the tokens must be the twin's."""
    from flow import rtl
    from flow.commands import common
    from golden.compare import greedy, stepper
    from hw import image
    from hw.params import from_preset
    from sim.verilator import BenchFailed, BuildFailed, build

    chip = rtl.make(from_preset(design.preset))
    loaded = common.load(design.preset, None)
    words = rtl.image_words(chip, loaded)
    image.save(work / rtl.IMAGE, words)
    modules = netlist.read(design.rtl / rtl.VERILOG)
    watched = [name for name in (rtl.TOP, *hierarchy.UNITS, *hierarchy.TILES) if name in modules]
    recorder = work / "recorder.v"
    recorder.write_text("".join(replay.recorder(name, replay.ports(modules[name].text), rtl.TOP) for name in watched))
    given = {
        "image": str(work / rtl.IMAGE),
        "prompt": list(PROMPT),
        "count": TOKENS,
        "logits": False,
        "progress": str(work / "progress"),
    }
    try:
        made = build([*rtl.sources(design.rtl), recorder], rtl.TOP, folder=rtl.SIMULATIONS)
        run = made.simulate("sim.decode_bench", parameters=given, zeros=True, timeout=7200.0)[0]
    except (BenchFailed, BuildFailed) as problem:
        raise StepFailed(f"the RTL could not be recorded: {str(problem).splitlines()[0]}") from None
    tokens = run.reports["tokens"]
    expected = list(greedy(stepper("twin", chip.p.model, loaded.state), list(PROMPT), TOKENS))
    if tokens != expected:
        raise StepFailed(f"the RTL decoded {tokens}, the twin {expected}")
    for name in watched:
        (run.log.parent / f"{name}.hex").rename(work / f"{name}.hex")
    (work / DECODE).write_text(json.dumps({"tokens": tokens, "edges": run.reports["edges"]}) + "\n")
