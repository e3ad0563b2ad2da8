"""The steps that OpenROAD does, each with a Tcl template of its name in ``flow/steps/tcl``."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import jinja2
from rich.markup import escape

from flow.nangate45 import library as nangate45
from flow.nangate45 import platform
from flow.steps import columns, placed, sta
from flow.steps.mapped import CELLS, NETLIST
from flow.steps.openroad import read_metrics
from flow.steps.step import DATABASE, LOG, SCRIPT, Job, Metrics, Outcome, Step, StepFailed, console, sha256
from hw.emit import LEF, LIBERTY, MACROS

TEMPLATES = Path(__file__).parent / "tcl"
TAPS = Path(platform.__file__).parent / "taps.lib"
SIGNAL_TOPS = (6, 8, 10)  # topmost metal of signals by the design's level
GROWTH = 1.02  # of a core's sides, while its macros do not fit
SRAM_GRID_UM = (platform.SITE_UM, platform.ROW_UM)
SRAM_GAP_UM = 2 * platform.ROW_UM  # their pins are at one side
# Multiples of sites, rows and the tracks of metal4 to metal8: a block's pins stay on tracks.
BLOCK_GRID_UM = (5.32, 5.6)
STRAPS = (("metal4", "metal7"), ("metal4", "metal7", "metal8"), ("metal4", "metal7", "metal8", "metal9"))


def _quoted(value: object) -> str:
    """A Tcl word, whatever is in it."""
    return "{" + str(value) + "}"


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["tcl"] = _quoted
    return environment


@dataclass(frozen=True)
class View:
    """A corner with all Liberty files of a design at it."""

    name: str
    liberties: tuple[Path, ...]


def views(job: Job, *, every_corner: bool = False) -> list[View]:
    """Liberty files by corner, typical alone or every one; the cell library's first: units follow the first file read.

    Macros have typical values only; they are used at every corner.
    """
    found = []
    given = job.settings.corners(nangate45.locate().liberty)
    for corner in given if every_corner else given[:1]:
        blocks = [
            job.folder.parent / block.name / "abstract" / f"{block.top}_{corner.name}.lib"
            for block in job.design.blocks
        ]
        taps = (TAPS,) if corner is not given[0] else ()  # which the library's other corners can be without
        found.append(View(corner.name, (corner.liberty, job.design.rtl / LIBERTY, *blocks, *taps)))
    return found


def lefs(job: Job) -> list[Path]:
    """Technology, cells, macros, blocks."""
    library = nangate45.locate()
    blocks = [job.folder.parent / block.name / "abstract" / f"{block.top}.lef" for block in job.design.blocks]
    return [library.tech_lef, library.lef, job.design.rtl / LEF, *blocks]


def counted(job: Job) -> tuple[dict[str, int], bool]:
    """(cells, macros and blocks of the netlist, counted; whether it has a clock)."""
    kept = json.loads((job.of("synth") / CELLS).read_text())
    return kept["cells"], kept["clocked"]


def detailed(job: Job) -> bool:
    """Whether the design is small enough to be routed in detail; a larger one ends with its global route."""
    cells, _ = counted(job)
    return sum(cells.values()) <= job.settings.detailed_cells


def constraints(job: Job) -> str:
    """SDC of the design; one without registers is timed against a clock that exists on paper only."""
    _, clocked = counted(job)
    text = sta.sdc(job.settings.constraints)
    if not clocked:
        text = re.sub(r" \[get_ports \S+\]", "", text, count=1)
    return text


@dataclass(frozen=True)
class Plan:
    """Die and core in um (core: left, bottom, right, top), what fills the core, and where its macros lie."""

    die_width_um: float
    die_height_um: float
    core: tuple[float, float, float, float]
    cell_area_um2: float
    macro_area_um2: float
    places: list[columns.Place]

    @property
    def utilisation(self) -> float:
        left, bottom, right, top = self.core
        return (self.cell_area_um2 + self.macro_area_um2) / ((right - left) * (top - bottom))


def sizes(file: Path) -> dict[str, tuple[float, float]]:
    """Width and height in um of every macro of a LEF file."""
    found = re.findall(
        r"^MACRO (\S+)\n(?:(?!^END \1$).*\n)*?\s*SIZE ([\d.]+) BY ([\d.]+)", file.read_text(), flags=re.M
    )
    return {name: (float(width), float(height)) for name, width, height in found}


def pins(file: Path) -> dict[str, int]:
    """Signal pins of every macro of a LEF file."""
    macros = re.findall(r"^MACRO (\S+)\n(.*?)^END \1$", file.read_text(), flags=re.M | re.S)
    return {name: len(re.findall(r"^\s*PIN (?!VDD$|VSS$)", body, flags=re.M)) for name, body in macros}


def _up(value: float, step: float) -> float:
    return math.ceil(round(value / step, 6)) * step


def _down(value: float, step: float) -> float:
    return math.floor(round(value / step, 6)) * step


def plan(job: Job) -> Plan:
    """The die from the netlist's area and the settings, and the places of macros in it.

    A die that is not given grows until its macros fit. Raises StepFailed when a given one is too small.
    """
    settings = job.settings
    cells, _ = counted(job)
    areas = nangate45.cell_areas(nangate45.locate().liberty)
    parts = macros(job)
    boxes = {part.kind: part.box for part in parts}
    unknown = [kind for kind in cells if kind not in areas and kind not in boxes]
    if unknown:
        raise StepFailed(f"no area is known of {', '.join(sorted(unknown)[:5])}")
    cell_area = sum(areas[kind] * number for kind, number in cells.items() if kind not in boxes)
    macro_area = sum(part.box[0] * part.box[1] * part.number for part in parts)
    left, bottom = _up(settings.margin_um, platform.SITE_UM), _up(settings.margin_um, platform.ROW_UM)
    if settings.die_um is not None:
        width, height = settings.die_um[0] - 2 * left, settings.die_um[1] - 2 * bottom
    else:
        area = (cell_area + macro_area) / settings.utilisation
        width = math.sqrt(area / settings.aspect)
        height = area / width
    if width <= 0 or height <= 0 or cell_area + macro_area > width * height * (1 + 1e-9):
        raise StepFailed(
            f"the die of {width + 2 * left:g} x {height + 2 * bottom:g} um is too small: cells and macros need"
            f" {cell_area + macro_area:.0f} um2, the core has {max(0.0, width) * max(0.0, height):.0f}"
        )
    whole = _up if settings.die_um is None else _down
    while True:
        right, top = left + whole(width, platform.SITE_UM), bottom + whole(height, platform.ROW_UM)
        core = (left, bottom, round(right, 3), round(top, 3))
        try:
            places = columns.place(core, parts, channel(job), settings.block_channel_um[0])
            return Plan(round(core[2] + left, 3), round(core[3] + bottom, 3), core, cell_area, macro_area, places)
        except columns.MacrosDoNotFit as problem:
            if settings.die_um is not None:
                raise StepFailed(str(problem)) from None
        width, height = GROWTH * width, GROWTH * height


def channel(job: Job) -> float:
    """Distance between columns of macros; where there are blocks, their wires need more of it."""
    return job.settings.wall_channel_um if job.design.blocks else job.settings.macro_channel_um


def macros(job: Job) -> list[columns.Part]:
    """Macros and blocks of the design, by kind."""
    cells, _ = counted(job)
    _, _, srams, *_ = files = lefs(job)
    found = []
    for file in files[2:]:
        # What lies behind a block's pins, or a memory in front of them, is left by the side: room for their wires.
        beside = channel(job) if job.design.blocks else SRAM_GAP_UM
        gap, grid = (beside, SRAM_GRID_UM) if file == srams else (job.settings.block_channel_um[1], BLOCK_GRID_UM)
        signals = pins(file)
        for kind, box in sizes(file).items():
            if kind in cells:
                corner = columns.Corner.of(*job.design.corners[kind]) if kind in job.design.corners else None
                found.append(columns.Part(kind, box, cells[kind], gap, grid, file == srams, corner, signals[kind]))
    return found


class OpenRoadStep(Step):
    """Renders the template, runs it, reads the metrics."""

    stage: ClassVar[str]
    database_of: ClassVar[str] = ""  # the step whose database it starts from
    propagated: ClassVar[bool] = True  # the clock is real when the script begins
    uses: ClassVar[tuple[str, ...]] = ()  # settings that its template reads
    every_corner: ClassVar[bool] = False  # or the typical one alone, for which the design is made

    def settings(self, job: Job) -> Mapping[str, Any]:
        """The script, which holds all values that the step depends on; folders of this machine are left out."""
        text = self.script(job)
        folders = (job.folder.parent, job.design.rtl, *(file.parent for file in self.files(job)))
        for folder in sorted({str(folder) for folder in folders}, key=len, reverse=True):
            text = text.replace(folder, "")
        return {"script": hashlib.sha256(text.encode()).hexdigest()[:16]}

    def files(self, job: Job) -> Sequence[Path]:
        return [file for view in self.views(job) for file in view.liberties] + lefs(job)

    def views(self, job: Job) -> list[View]:
        """The corners that the step looks at."""
        return views(job, every_corner=self.every_corner)

    def variables(self, job: Job) -> dict[str, Any]:
        """Values that only this step's template reads."""
        return {}

    def script(self, job: Job) -> str:
        """The Tcl of this design."""
        level = job.design.level
        cells, clocked = counted(job)
        macros = {macro["name"] for macro in json.loads((job.design.rtl / MACROS).read_text())}
        common = {
            "stage": self.stage,
            "top": job.design.top,
            "corners": self.views(job),
            "lefs": lefs(job),
            "netlist": job.of("synth") / NETLIST,
            "database": job.of(self.database_of) / DATABASE if self.database_of else None,
            "constraints": constraints(job),
            "propagated": self.propagated and clocked,
            "clocked": clocked,
            "detailed": detailed(job),
            "platform": platform,
            "tie_high": nangate45.TIE_HIGH,
            "tie_low": nangate45.TIE_LOW,
            "sram_cells": sorted(macros & set(cells)),
            "blocks": [{"name": block.top, "strap": STRAPS[block.level][-1]} for block in job.design.blocks],
            "macros": bool(macros & set(cells)) or bool(job.design.blocks),
            "level": level,
            "straps": [platform.STRAPS[layer] for layer in STRAPS[level]],
            "top_signal_level": SIGNAL_TOPS[level],
            "top_signal_layer": f"metal{SIGNAL_TOPS[level]}",
            "fillers": list(platform.FILLERS),
            **{name: getattr(job.settings, name) for name in self.uses},
        }
        return _environment().get_template(f"{self.name}.tcl.j2").render(common | self.variables(job))

    def run(self, job: Job, work: Path) -> Outcome:
        assert job.openroad is not None
        (work / SCRIPT).write_text(self.script(job))
        label = f"{job.design.name} {self.name}"
        with console.status(label) as status:
            warnings = job.openroad.run(
                work / SCRIPT,
                work / LOG,
                work / "openroad.json",
                watch=lambda line: status.update(f"{label}: {escape(line[:90])}"),
            )
        metrics = read_metrics(work / "openroad.json")
        (work / "openroad.json").unlink(missing_ok=True)
        return self.finish(job, work, Outcome(metrics, warnings))

    def finish(self, job: Job, work: Path, outcome: Outcome) -> Outcome:
        """Add what is measured outside OpenROAD."""
        return outcome


class Floorplan(OpenRoadStep):
    """Die and core from utilisation, macro placement, well taps."""

    name, stage = "floorplan", "floorplan"
    after = ("synth",)
    propagated = False
    uses = ("utilisation", "aspect", "margin_um", "macro_channel_um", "wall_channel_um", "block_channel_um", "die_um")

    def check(self, job: Job) -> None:
        plan(job)

    def variables(self, job: Job) -> dict[str, Any]:
        made = plan(job)
        top = SIGNAL_TOPS[job.design.level]
        above = [(f"metal7-metal{top}", platform.ADJUSTMENT_ABOVE)] if top > 6 else []
        return {
            "plan": made,
            "places": columns.by_kind(made.places),
            "adjustments": [*platform.ROUTING_ADJUSTMENT, *above] if detailed(job) else platform.ROUGH_ADJUSTMENT,
            "row_min_width": platform.STRAPS["metal4"].pitch_um,
            "row_min_height": platform.STRAPS["metal7"].pitch_um,
        }

    def finish(self, job: Job, work: Path, outcome: Outcome) -> Outcome:
        made = plan(job)
        left, bottom, right, top = made.core
        outcome.metrics |= {
            "floorplan__design__die__area": made.die_width_um * made.die_height_um,
            "floorplan__design__die__width": made.die_width_um,
            "floorplan__design__die__height": made.die_height_um,
            "floorplan__design__core__area": round((right - left) * (top - bottom), 3),
            "floorplan__design__core__utilization": round(made.utilisation, 4),
        }
        return outcome


class PowerGrid(OpenRoadStep):
    """Rails, straps, connections to macros and blocks."""

    name, stage, database_of = "power_grid", "powergrid", "floorplan"
    after = ("floorplan",)
    propagated = False

    def variables(self, job: Job) -> dict[str, Any]:
        above = dict(pairwise(list(platform.STRAPS)))
        return {"strap_above": above}


class Placement(OpenRoadStep):
    """Pins, cells, repair of slew, load and fanout."""

    name, stage, database_of = "placement", "placement", "power_grid"
    after = ("power_grid",)
    propagated = False
    uses = ("density", "padding", "routability", "max_wire_um", "pin_layers")

    def variables(self, job: Job) -> dict[str, Any]:
        return {"few_pins": job.design.unit is None}  # a chip's pins are too few to pull at its cells


class ClockTree(OpenRoadStep):
    """Clock buffers."""

    name, stage, database_of = "clock_tree", "cts", "placement"
    after = ("placement",)
    propagated = False
    uses = ("padding",)


class Repair(OpenRoadStep):
    """Setup and hold."""

    name, stage, database_of = "repair", "repair", "clock_tree"
    after = ("clock_tree",)
    uses = ("padding", "setup_margin_ns", "hold_margin_ns")


class GlobalRoute(OpenRoadStep):
    """Routing guides and repair with routed wires."""

    name, stage, database_of = "global_route", "globalroute", "repair"
    after = ("repair",)
    uses = ("padding", "setup_margin_ns", "hold_margin_ns", "max_wire_um", "rough_iterations")

    def finish(self, job: Job, work: Path, outcome: Outcome) -> Outcome:
        write_paths(self.views(job), work)
        outlines = {kind: box for file in lefs(job)[1:] for kind, box in sizes(file).items()}
        placed.draw(work / "design.def", outlines, {part.kind for part in macros(job)}, work / placed.PICTURE)
        (work / "design.def").unlink()
        return outcome


class Detailed(OpenRoadStep):
    """Steps of a design that is routed in detail."""

    def wanted(self, job: Job) -> bool:
        return detailed(job)


class DetailedRoute(Detailed):
    """Wires and vias."""

    name, stage, database_of = "detailed_route", "detailedroute", "global_route"
    after = ("global_route",)
    uses = ("route_iterations",)


class Fill(Detailed):
    """Filler cells."""

    name, stage, database_of = "fill", "fill", "detailed_route"
    after = ("detailed_route",)


class Parasitics(Detailed):
    """Resistance and capacitance of the wires."""

    name, stage, database_of = "parasitics", "parasitics", "fill"
    after = ("fill",)
    uses = ("rcx_rules",)

    def files(self, job: Job) -> Sequence[Path]:
        rules = job.settings.rcx_rules
        return [*super().files(job), *([rules] if rules else [])]

    def finish(self, job: Job, work: Path, outcome: Outcome) -> Outcome:
        source = "OpenRCX with rules" if job.settings.rcx_rules else "layer resistance and capacitance, no rules"
        outcome.metrics |= {"parasitics__source": source} | spef_totals(work / "design.spef")
        return outcome


def spef_totals(file: Path) -> Metrics:
    """Nets and their capacitance in fF, from a SPEF file's own totals."""
    text = file.read_text()
    unit = re.search(r"^\*C_UNIT\s+([\d.]+)\s+([FPN])F", text, flags=re.M)
    scale = float(unit.group(1)) * {"F": 1.0, "P": 1e3, "N": 1e6}[unit.group(2)] if unit else 1e3
    totals = [float(value) for value in re.findall(r"^\*D_NET\s+\S+\s+(\S+)", text, flags=re.M)]
    return {"parasitics__nets": len(totals), "parasitics__capacitance": round(sum(totals) * scale, 3)}


class SignOff(Detailed):
    """Timing with extracted wires; the netlist and the layout (DEF) that were timed."""

    name, stage, database_of = "signoff", "finish", "parasitics"
    after = ("parasitics",)

    def variables(self, job: Job) -> dict[str, Any]:
        return {"spef": job.of("parasitics") / "design.spef"}

    def finish(self, job: Job, work: Path, outcome: Outcome) -> Outcome:
        write_paths(self.views(job), work)
        outcome.metrics["finish__netlist__sha256"] = sha256(work / "netlist.v")
        return outcome


def write_paths(corners: Sequence[View], work: Path) -> None:
    """Gather OpenSTA's path reports by corner in paths.json."""
    paths = {
        corner.name: {check: read_paths(work / f"paths_{check}_{corner.name}.json") for check in ("setup", "hold")}
        for corner in corners
    }
    (work / "paths.json").write_text(json.dumps(paths, indent=1) + "\n")


def read_paths(file: Path) -> list[dict[str, Any]]:
    """Paths of OpenSTA's JSON report: ends, slack, and each point with what it took from the point before (ns)."""
    text = file.read_text().replace("\\", "")  # escapes in names that JSON does not know
    checks = json.loads(text)["checks"] if text.strip() else []
    found = []
    for check in checks:
        points, last = [], None
        for point in check.get("source_path", []):
            arrival = point["arrival"] * 1e9
            points.append(
                {
                    "cell": point.get("cell", ""),
                    "instance": point.get("instance", ""),
                    "pin": point.get("pin", ""),
                    "net": point.get("net", ""),
                    "delay_ns": round(arrival - (last if last is not None else arrival), 4),
                    "arrival_ns": round(arrival, 4),
                }
            )
            last = arrival
        found.append(
            {
                "startpoint": check.get("startpoint", ""),
                "endpoint": check.get("endpoint", ""),
                "slack_ns": round(check["slack"] * 1e9, 4),
                "stages": points,
            }
        )
    return found


class Netlist(OpenRoadStep):
    """The netlist as it was last laid out, of a design that ends with its global route."""

    name, stage, database_of = "netlist", "netlist", "global_route"
    after = ("global_route",)

    def wanted(self, job: Job) -> bool:
        return not detailed(job)

    def finish(self, job: Job, work: Path, outcome: Outcome) -> Outcome:
        outcome.metrics["netlist__netlist__sha256"] = sha256(work / NETLIST)
        return outcome


class Power(OpenRoadStep):
    """Power at the typical corner, from what the netlist's nets did in a simulated decode.

    Wires are those extracted, or those of the global route where there is nothing after it.
    """

    name, stage = "power", "finish"
    after = ("global_route", "parasitics", "netlist_sim")

    def variables(self, job: Job) -> dict[str, Any]:
        return {
            **wires(job),
            "activity": job.of("netlist_sim") / "activity.csv",
        }

    def finish(self, job: Job, work: Path, outcome: Outcome) -> Outcome:
        pins, known = (outcome.metrics.pop(f"finish__power__activity__{kind}") for kind in ("pins", "known"))
        outcome.metrics["finish__power__activity__annotated__share"] = round(float(known) / float(pins), 4)
        kind = "signed-off netlist" if detailed(job) else "netlist that is laid out, but for buffers"
        outcome.metrics["finish__power__activity__source"] = f"simulated decode, {kind}"
        return outcome


class Corners(OpenRoadStep):
    """Timing at the corners that were given beside the typical one, with the wires that the design has."""

    name, stage = "corners", "corners"
    after = ("global_route", "parasitics")
    every_corner = True

    def wanted(self, job: Job) -> bool:
        return job.settings.slow is not None or job.settings.fast is not None

    def variables(self, job: Job) -> dict[str, Any]:
        return wires(job)

    def finish(self, job: Job, work: Path, outcome: Outcome) -> Outcome:
        write_paths(self.views(job), work)
        return outcome


def wires(job: Job) -> dict[str, Any]:
    """The last database and, of a design routed in detail, the wires extracted from it."""
    routed = detailed(job)
    return {
        "database": job.of("parasitics" if routed else "global_route") / DATABASE,
        "spef": job.of("parasitics") / "design.spef" if routed else None,
    }


class Abstract(Detailed):
    """LEF and timing model, at every corner, for the design above."""

    every_corner = True

    name, stage, database_of = "abstract", "abstract", "parasitics"
    after = ("parasitics",)

    def wanted(self, job: Job) -> bool:
        return detailed(job) and job.design.unit is not None and job.design.level < 2

    def variables(self, job: Job) -> dict[str, Any]:
        return {"spef": job.of("parasitics") / "design.spef"}

    def finish(self, job: Job, work: Path, outcome: Outcome) -> Outcome:
        """A tile's shapes on its topmost layer are power pins only: without the obstruction wires may pass between."""
        text = (work / "abstract.lef").read_text()
        layer = STRAPS[0][-1]
        if job.design.level == 0:
            text = re.sub(rf"^    LAYER {layer} ;\n(?:\s+RECT .*\n)+(?=    LAYER|  END)", "", text, flags=re.M)
        (work / f"{job.design.top}.lef").write_text(text)
        (work / "abstract.lef").unlink()
        return outcome
