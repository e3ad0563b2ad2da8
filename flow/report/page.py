"""The page of one run: everything the run has, and for what it does not have, why."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from flow import check
from flow.report import area, derived, paths, pictures
from flow.report.derived import DIE
from flow.report.headline import ANNOUNCED, BASIS, headline
from flow.report.pictures import Picture
from flow.report.run import STAGE_OF, ReportError, Run, Table

CODE = re.compile(r"\[(?:WARNING|ERROR) ([A-Z]+-\d+)\]\s*")
DENSITY = ("x_um", "y_um", "width_um", "height_um", "share")
CLOCK = ("name", "master", "x_um", "y_um", "kind")
CONGESTION = ("x_um", "y_um", "horizontal_usage", "horizontal_capacity", "vertical_usage", "vertical_capacity")
SLACKS = ("corner", "check", "endpoint", "slack_ns")
MOST_WARNINGS = 200  # different ones of a step and code: tools may say one for each of a million cells
PICTURE = "layout.jpg"  # of a kept run
CARDS = ("die", "cells + macros, our model", "worst setup slack", "tokens per second", "power", "energy per token")


@dataclass(frozen=True)
class Part:
    """A picture of the page, or the reason why there is none."""

    title: str
    picture: Picture | None
    missing: str = ""


@dataclass(frozen=True)
class Simulated:
    """What a netlist's simulation came to, and whether the netlist is the run's last one, which is ``laid_out``."""

    words: str
    same: bool
    laid_out: str


@dataclass(frozen=True)
class Warnings:
    """Warnings of one step that have the same code (or text)."""

    step: str
    code: str
    texts: tuple[str, ...]

    @property
    def listed(self) -> list[tuple[str, int]]:
        """Texts that are shown, and how often each was said."""
        return list(Counter(self.texts).items())[:MOST_WARNINGS]

    @property
    def more(self) -> int:
        """Warnings that are not shown."""
        return len(self.texts) - sum(times for _, times in self.listed)


def environment() -> jinja2.Environment:
    """Templates of the pages; text is escaped, an unknown name is an error."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["figure"] = figure
    return made


def figure(value: float | int | str, digits: int = 6) -> str:
    """A metric as it is shown: whole numbers with commas, others with significant digits."""
    if isinstance(value, str):
        return value
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.{digits}g}"


def html(run: Run) -> str:
    """The whole page, pictures inside."""
    tree = area.tree(run)
    lines = headline(run)
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            run=run,
            lines=lines,
            simulated=simulated(run),
            cards=[line for line in lines if line.name.startswith(CARDS) and line.value is not None],
            announced=ANNOUNCED,
            checked=check.check(run, check.read()),
            maps=[layout(run), density(run), congestion(run), clock_tree(run)],
            slacks=slacks(run),
            corners=corners(run),
            paths=paths.worst(run),
            paths_of=paths.basis(run),
            treemap=treemap(run, tree),
            units=list(area.units(tree)) if tree else [],
            power=power(run),
            power_units=power_units(run),
            longest=max((step.seconds for step in run.steps), default=0.0),
            warnings=warnings(run),
            settings=dict(flattened(run.settings)),
        )
    )


def _part(run: Run, title: str, step: str, name: str, draw: Callable[[], Picture | None]) -> Part:
    """A picture of a step's file, or why there is none."""
    made = draw()
    if made is not None:
        return Part(title, made)
    if run.kept:
        return Part(title, None, "this is a kept run, of which there are the figures and its own page")
    why = f"step {step} left no {name}" if run.has(step) else f"step {step} has not run; this run is {run.state}"
    return Part(title, None, why)


def layout(run: Run) -> Part:
    """The layout's picture."""
    file = run.file("layout", "layout.png") or run.file("global_route", "placed.png") or run.file(".", PICTURE)
    die = run.last(DIE)
    words = f"Die of {die.value * 1e-6:.4g} mm2." if die else ""
    if file is not None and file.name == "placed.png":
        words += " Cells and macros in the colour of their unit; wires are routed globally."
    return _part(run, "Layout", "layout", "layout.png", lambda: pictures.layout(file, words) if file else None)


def density(run: Run) -> Part:
    """Share of each placement bin that is covered."""

    def draw() -> Picture | None:
        table = run.table("placement", "density.csv", DENSITY)
        if table is None or not len(table["share"]):
            return None
        sizes = table["width_um"] * table["height_um"]
        if sizes.min() <= 0:
            raise ReportError(f"{run.folder / 'placement' / 'density.csv'}: a bin has no area")
        mean = np.average(table["share"], weights=sizes)
        words = f"Mean {mean:.2f}, fullest bin {table['share'].max():.2f}."
        return pictures.heat_map(table, table["share"], "share of the bin that is covered", words)

    return _part(run, "Placement density", "placement", "density.csv", draw)


def congestion(run: Run) -> Part:
    """Tracks used over tracks there, the worse direction of each bin."""

    def draw() -> Picture | None:
        table = run.table("global_route", "congestion.csv", CONGESTION)
        if table is None or not len(table["x_um"]):
            return None
        worse = np.maximum(*(_used(table, direction) for direction in ("horizontal", "vertical")))
        known = worse[~np.isnan(worse)]
        full = int((known > 1).sum())
        words = (
            f"Fullest bin {known.max(initial=0):.2f}; {full:,} of {len(known):,} bins want more tracks than there are."
        )
        return pictures.heat_map(table, worse, "tracks used over tracks there", words)

    return _part(run, "Routing congestion", "global_route", "congestion.csv", draw)


def _used(table: Table, direction: str) -> Any:
    """Share of a direction's tracks; where there are none and none is used, not a number."""
    usage, capacity = table[f"{direction}_usage"], table[f"{direction}_capacity"]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(capacity > 0, usage / capacity, np.where(usage > 0, 2.0, np.nan))


def clock_tree(run: Run) -> Part:
    """Buffers and sinks of the clock."""

    def draw() -> Picture | None:
        table = run.table("clock_tree", "clock_tree.csv", CLOCK, ("name", "master", "kind"))
        if table is None or not len(table["kind"]):
            return None
        skew = run.last("clock__skew__setup")
        words = "" if skew is None else f"Skew {abs(skew.value):.3f} ns."
        return pictures.clock_tree(table, words)

    return _part(run, "Clock tree", "clock_tree", "clock_tree.csv", draw)


def slacks(run: Run) -> Part:
    """Endpoints by slack, of sign-off or before it of the global route."""
    step = run.timed("slacks.csv")

    def draw() -> Picture | None:
        table = run.table(step, "slacks.csv", SLACKS, ("corner", "check", "endpoint"))
        if table is None or not len(table["slack_ns"]):
            return None
        late, all_of_them = int((table["slack_ns"] < 0).sum()), len(table["slack_ns"])
        words = f"{all_of_them:,} endpoints, {late:,} with negative slack; {BASIS[STAGE_OF[step]]}."
        return pictures.slack_histogram(table, words)

    return _part(run, "Slack of all endpoints", step, "slacks.csv", draw)


def simulated(run: Run) -> Simulated | None:
    """The netlist's simulation, None where there was none."""
    if not run.has("netlist_sim"):
        return None
    tokens, edges, bits, wrong = (
        figure(run.metrics.get(f"netlistsim__{name}", "an unknown number of"))
        for name in ("tokens", "edges", "bits__compared", "edges__wrong")
    )
    parts = run.number("netlistsim__parts")
    apart = f", in {parts:.0f} parts" if parts is not None and parts > 1 else ""
    words = f"{tokens} tokens, {edges} clock edges{apart}, {bits} bits compared with the RTL's, {wrong} edges differ"
    same = run.text("netlistsim__netlist__sha256") == run.netlist_sha256
    laid_out = run.text("netlistsim__netlist") or "signed off"
    if laid_out != "signed off":
        laid_out += ", compared cell by cell with the one of synthesis that was simulated"
    return Simulated(words, same, laid_out)


def corners(run: Run) -> dict[str, dict[str, float]]:
    """Worst slack in ns by corner and check: of all corners, or of the typical one where there is no other."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    stage = "corners" if run.has("corners") else "finish"
    for name, value in run.metrics.items():
        match = re.fullmatch(rf"{stage}__timing__(setup|hold)__ws__corner:(.+)", name)
        if match and not isinstance(value, str):
            found[match.group(2)][match.group(1)] = float(value)
    return dict(found)


def treemap(run: Run, tree: Mapping[str, Any] | None) -> Part:
    """Area by unit, cells and macros, as synthesised."""

    def draw() -> Picture | None:
        if tree is None:
            return None
        words = "Cells and SRAM macros in mm2, as synthesised; two levels of hierarchy."
        return pictures.treemap(area.boxes(dict(tree)), words)

    return _part(run, "Area by unit", "synth", "synthesis.json", draw)


def power(run: Run) -> Part:
    """Power by unit."""

    def draw() -> Picture | None:
        table = derived.power_table(run)
        return None if table is None or not len(table["unit"]) else pictures.power_bars(table, "")

    return _part(run, "Power by unit", "power", "power.csv", draw)


def power_units(run: Run) -> list[dict[str, Any]]:
    """Power by unit in mW and as a share, the largest first."""
    table = derived.power_table(run)
    if table is None:
        return []
    total = table["internal_w"] + table["switching_w"] + table["leakage_w"]
    return [
        {
            "unit": str(table["unit"][i]),
            **{kind: 1e3 * float(table[f"{kind}_w"][i]) for kind in ("internal", "switching", "leakage")},
            "total": 1e3 * float(total[i]),
            "share": float(total[i] / total.sum()) if total.sum() else 0.0,
        }
        for i in np.argsort(-total)
    ]


def warnings(run: Run) -> list[Warnings]:
    """All warnings, those of a step with the same code together, in the steps' order."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for step in run.steps:
        for text in step.warnings:
            match = CODE.match(text)
            found[step.name, match.group(1) if match else ""].append(text[match.end() :] if match else text)
    return [Warnings(step, code, tuple(texts)) for (step, code), texts in found.items()]


def flattened(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Settings by their dotted names."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", "not given" if value is None else str(value)
