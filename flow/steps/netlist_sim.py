"""Step ``netlist_sim``: the netlist does, edge by edge, what the chip's RTL does in a real decode.

It is the netlist that was signed off. A design that is too large to be routed in detail is simulated as synthesised;
its netlist after the global route, which has lost its hierarchy, must be the same in all but what layout may do
(flow.steps.equivalence).

The chip's RTL is loaded and decodes a few tokens once per preset, with the ports of the chip and of every unit and tile
recorded; the tokens are compared with the twin's. The netlist is driven with the records part by part: each unit and
tile alone, and what is around them (flow.steps.replay says why that is as good as the whole). What the nets do from
the first token on is the activity that the step ``power`` reads.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flow import netlist
from flow.design import Design
from flow.nangate45 import library as nangate45
from flow.steps import activity, equivalence, replay
from flow.steps.layout import detailed
from flow.steps.step import LOG, Job, Metrics, Outcome, Step, StepFailed, console, sha256
from golden.files import replaced_folder
from hw import hierarchy
from hw.emit import MODELS

TOKENS, PROMPT = 4, (5,)
RECORDS = Path("build/flow/records")
ACTIVITY, DECODE = "activity.csv", "decode.json"
APART = (*hierarchy.UNITS, *hierarchy.TILES)  # modules with records of their own

Modules = Mapping[str, netlist.NetlistModule]


class NetlistSim(Step):
    """Replays the records on the netlist; any difference fails the step."""

    name = "netlist_sim"
    after = ("synth", "signoff", "netlist")
    needs_openroad = False

    def wanted(self, job: Job) -> bool:
        return job.openroad is not None

    def settings(self, job: Job) -> Mapping[str, Any]:
        return {"tokens": TOKENS, "prompt": PROMPT}

    def files(self, job: Job) -> Sequence[Path]:
        sources = [Path(str(each.__file__)) for each in (replay, activity, equivalence)]
        return [*netlists(job)[1:], *models(job.design), *sources]

    def run(self, job: Job, work: Path) -> Outcome:
        records = recorded(job.design)
        decode = json.loads((records / DECODE).read_text())
        modules: Modules = {name: module for file in netlists(job) for name, module in netlist.read(file).items()}
        try:
            replays = list(replayed(job.design, modules, records, decode["edges"][0], work))
        except (replay.ReplayFailed, netlist.NetlistError) as problem:
            raise StepFailed(str(problem)) from None
        refuse_wrong(job.design.top, replays)
        nets = {net: toggles for each in replays for net, toggles in each.nets.items()}
        laid_out = netlists(job)[0] if detailed(job) else job.of("netlist") / "netlist.v"
        own = netlist.read(laid_out)  # what is in blocks has power of its own; their pins are this design's
        if not detailed(job):
            nets = same_as(netlist.read(netlists(job)[0]), own, modules, job.design, nets)
        known, pins = activity.write(own, job.design.top, nets, work / ACTIVITY)
        metrics: Metrics = {
            "netlistsim__activity__pins": pins,
            "netlistsim__activity__pins__known": known,
            "netlistsim__netlist": "signed off" if detailed(job) else "globally routed",
            "netlistsim__netlist__sha256": sha256(laid_out),
            "netlistsim__parts": len(replays),
            "netlistsim__edges": max(each.outcome.edges for each in replays),
            "netlistsim__edges__wrong": 0,
            "netlistsim__bits__compared": sum(each.outcome.compared_bits for each in replays),
            "netlistsim__tokens": len(decode["tokens"]),
        }
        return Outcome(metrics)


@dataclass(frozen=True)
class Replay:
    """One part of a design: names of the instances down to it, what its replay found, activity by net of the design."""

    path: tuple[str, ...]
    outcome: replay.Outcome
    nets: Mapping[str, activity.Toggles]


def replayed(design: Design, modules: Modules, records: Path, start: int, work: Path) -> Iterator[Replay]:
    """Replay the design's parts: the instances of units and tiles that are modules of its netlist, and the rest of it.

    A kind of part is compiled once; its instances are replayed side by side, each with its own record. What they print
    is in ``work``/log. Raises ReplayFailed.
    """
    from flow import rtl

    in_rtl = netlist.read(design.rtl / rtl.VERILOG)
    place = next(path for path, kind in netlist.instances(in_rtl, rtl.TOP) if kind == design.top)
    parts: dict[str, list[tuple[str, ...]]] = {}
    for path, kind in netlist.instances(modules, design.top):
        if not path or kind in APART:
            parts.setdefault(kind, []).append(path)
    ports = {
        kind: replay.same_ports(replay.ports(in_rtl[kind].text), replay.ports(modules[kind].text)) for kind in parts
    }
    for kind, paths in parts.items():
        folder = work / kind
        folder.mkdir()
        inside = netlist.reachable(modules, kind, ports.keys() - {kind})
        netlist.write(modules, inside, folder / "netlist.v")
        played = {other: ports[other] for name in inside for other in modules[name].instances if other in ports}
        part = replay.Part(kind, ports[kind], [folder / "netlist.v"], models(design), played)
        with console.status(f"{design.name}: netlist of {kind}, compiled once and replayed {len(paths)} times"):
            program = replay.compiled(part, folder, start=start)
            named = [records / ".".join((rtl.TOP, *place, *path)) for path in paths]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                yield from pool.map(partial(_one, part, program, start, work), paths, named)
        shutil.rmtree(folder)


def _one(part: replay.Part, program: Path, start: int, work: Path, path: tuple[str, ...], record: Path) -> Replay:
    """Replay one instance of a part."""
    folder = work / part.top / ".".join(("instance", *path))
    folder.mkdir()
    outcome = replay.run(part, program, record, folder)
    nets = activity.read_saif(folder / replay.ACTIVITY, replay.DUT, start * replay.CLOCK_PS)
    above = "".join(f"{name}/" for name in path)
    with (work / LOG).open("a") as log:
        log.write(f"{record.name} of {part.top}\n{(folder / replay.LOG).read_text()}\n")
    shutil.rmtree(folder)
    return Replay(path, outcome, {f"{above}{net}": toggles for net, toggles in nets.items()})


def refuse_wrong(top: str, replays: Sequence[Replay]) -> None:
    """Raise StepFailed that names the part that differs first, if one does."""
    wrong = [(each.outcome.first, each.path) for each in replays if each.outcome.first is not None]
    if wrong:
        first, path = min(wrong)
        where = "/".join((top, *path))
        differing = f"{len(wrong)} of its {len(replays)} parts, first in {where} at edge {first}"
        raise StepFailed(f"the netlist differs from the RTL in {differing}: see {LOG}")


def same_as(
    simulated: Modules, laid_out: Modules, modules: Modules, design: Design, nets: Mapping[str, activity.Toggles]
) -> dict[str, activity.Toggles]:
    """Activity of the laid-out netlist's nets, from the simulated one's; raises StepFailed when the two differ.

    ``modules``: those of blocks too, which are cells in both.
    """
    outputs = equivalence.outputs(models(design))
    for block in design.block_names:
        ports_of = replay.ports(modules[block].text)
        outputs[block] = frozenset(port.name.lstrip("\\") for port in ports_of if port.output)
    try:
        before, after = (equivalence.flat(each, design.top, outputs) for each in (simulated, laid_out))
    except netlist.NetlistError as problem:
        raise StepFailed(str(problem)) from None
    ports = replay.bits(replay.ports(simulated[design.top].text), output=True)
    different = list(equivalence.differences(before, after, ports))
    if different:
        number = f"{len(different)} places" if len(different) > 1 else "one place"
        raise StepFailed(
            f"the netlist after layout differs from the one that was simulated in {number}: {different[0]}"
        )
    return equivalence.carried_over(before, after, nets)


def netlists(job: Job) -> list[Path]:
    """The design's netlist that is simulated, then its blocks' as signed off."""
    own = job.of("signoff" if detailed(job) else "synth") / "netlist.v"
    blocks = [each for each in reversed(job.design.in_order()) if each is not job.design]
    return [own, *(job.folder.parent / block.name / "signoff" / "netlist.v" for block in blocks)]


def models(design: Design) -> list[Path]:
    """Verilog of the library's cells and of the SRAMs."""
    return [nangate45.locate().verilog, design.rtl / MODELS]


def recorded(design: Design) -> Path:
    """Folder with the records of every unit and tile of the design's chip, made when there is none."""
    from flow import rtl

    folder = RECORDS.resolve() / design.rtl.name
    if not (folder / f"{rtl.TOP}.rec").is_file():
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
    watched = [name for name in (rtl.TOP, *APART) if name in modules]
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
    for record in run.log.parent.glob("*.rec"):
        record.rename(work / record.name)
    (work / DECODE).write_text(json.dumps({"tokens": tokens, "edges": run.reports["edges"]}) + "\n")
