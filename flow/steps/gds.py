"""Step ``layout``: the routed design with the cells' own shapes as GDS, and its picture."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path

import klayout.db as db
import klayout.lay as lay

from flow.nangate45 import library as nangate45
from flow.nangate45 import platform
from flow.steps.layout import detailed, lefs
from flow.steps.step import LOG, Job, Metrics, Outcome, Step, StepFailed

GDS, PICTURE, MACRO_SHAPES = "layout.gds", "layout.png", "macros.gds"
PIXELS, OVERSAMPLING = 1600, 3
OUTLINE_COLOUR = 0xE3E6EA  # of macros and of the die


class Layout(Step):
    """Merges the placed and routed design with the library's GDS; macros, which have none, are drawn from their LEF."""

    name = "layout"
    after = ("signoff",)
    needs_openroad = False

    def wanted(self, job: Job) -> bool:
        return job.openroad is not None and detailed(job)

    def files(self, job: Job) -> Sequence[Path]:
        return [nangate45.locate().gds, *lefs(job), *block_layouts(job)]

    def versions(self, job: Job) -> dict[str, str]:
        return {"klayout": importlib.metadata.version("klayout")}

    def run(self, job: Job, work: Path) -> Outcome:
        library = nangate45.locate()
        macro_shapes(lefs(job)[0], lefs(job)[2], work / MACRO_SHAPES)
        layouts = [library.gds, work / MACRO_SHAPES, *block_layouts(job)]
        metrics = merge(job.of("signoff") / "design.def", lefs(job), layouts, job.design.top, work / GDS)
        picture(work / GDS, work / PICTURE)
        (work / LOG).write_text("\n".join(f"{name} {value}" for name, value in metrics.items()) + "\n")
        return Outcome(metrics)


def block_layouts(job: Job) -> list[Path]:
    """GDS of the design's blocks."""
    return [job.folder.parent / block.name / Layout.name / GDS for block in job.design.blocks]


def _layers() -> db.LayerMap:
    """GDS layer numbers by the technology's layer names."""
    found = db.LayerMap()
    for name, number in platform.GDS_LAYERS.items():
        found.map(f"{name} : {number}/0")
    found.map(f"OUTLINE : {platform.GDS_OUTLINE}/0")
    return found


def _reader(lef_files: Sequence[Path]) -> db.LoadLayoutOptions:
    options = db.LoadLayoutOptions()
    config = options.lefdef_config
    config.read_lef_with_def = False
    config.lef_files = [str(file) for file in lef_files]
    config.layer_map = _layers()
    config.create_other_layers = False
    config.dbu = platform.DATABASE_UM
    for kind in ("routing", "special_routing", "via_geometry", "pins", "lef_pins", "obstructions"):
        setattr(config, f"produce_{kind}", True)
        setattr(config, f"{kind}_suffix", "")
        setattr(config, f"{kind}_datatype", 0)
    config.produce_obstructions = False
    config.produce_placement_blockages = False
    config.produce_regions = False
    return options


def macro_shapes(technology: Path, lef: Path, gds: Path, *, obstructions: bool = False) -> None:
    """Draw the macros of a LEF file, their outline and pins, as cells of a GDS file.

    What the LEF obstructs is no metal that anyone drew: a layout is without it.
    """
    options = _reader([technology])
    options.lefdef_config.produce_obstructions = obstructions
    options.lefdef_config.produce_cell_outlines = True
    options.lefdef_config.macro_resolution_mode = 1  # shapes of the LEF
    layout = db.Layout()
    layout.dbu = platform.DATABASE_UM
    layout.read(str(lef), options)
    layout.write(str(gds))


def merge(definition: Path, lef_files: Sequence[Path], layouts: Sequence[Path], top: str, gds: Path) -> Metrics:
    """Write one GDS file of a DEF file and the cells' GDS files; raises StepFailed when a cell is missing."""
    options = _reader(lef_files)
    options.lefdef_config.macro_resolution_mode = 2  # shapes of the layouts
    options.lefdef_config.macro_layout_files = [str(file) for file in layouts]
    layout = db.Layout()
    layout.read(str(definition), options)
    cell = layout.cell(top)
    if cell is None:
        raise StepFailed(f"{definition.name} holds no design {top}")
    empty = sorted(layout.cell(index).name for index in cell.called_cells() if layout.cell(index).is_empty())
    if empty:
        raise StepFailed(f"no layout of {', '.join(empty[:5])}")
    keep = {cell.cell_index(), *cell.called_cells()}
    for other in [each.cell_index() for each in layout.each_cell() if each.cell_index() not in keep]:
        layout.delete_cell(other)
    layout.write(str(gds))
    box = cell.dbbox()
    return {
        "layout__gds__bytes": gds.stat().st_size,
        "layout__cells": len(keep),
        "layout__width": round(box.width(), 3),
        "layout__height": round(box.height(), 3),
    }


def picture(gds: Path, png: Path, pixels: int = PIXELS) -> None:
    """All metal of a layout, from above: the higher over the lower, each pixel the mean of the finer ones under it."""
    view = lay.LayoutView()
    view.set_config("background-color", "#ffffff")
    view.set_config("grid-visible", "false")
    view.set_config("text-visible", "false")
    view.load_layout(str(gds))
    view.max_hier()
    view.clear_layers()
    shown = [(platform.GDS_OUTLINE, OUTLINE_COLOUR)]
    shown += [(platform.GDS_LAYERS[name], colour) for name, colour in platform.COLOURS.items()]
    for number, colour in shown:
        properties = lay.LayerProperties()
        properties.source = f"{number}/0"
        properties.fill_color = colour
        properties.frame_color = colour if number != platform.GDS_OUTLINE else platform.COLOURS["metal8"]
        properties.dither_pattern = 0
        view.insert_layer(view.end_layers(), properties)
    view.zoom_fit()
    box = view.active_cellview().layout().top_cell().dbbox()
    width, height = (pixels, max(1, round(pixels * box.height() / box.width())))
    view.save_image_with_options(str(png), width, min(height, 2 * pixels), 1, OVERSAMPLING, 1.0, box, False)
