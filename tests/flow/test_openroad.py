"""A tiny design with a macro goes through OpenROAD to sign-off, abstract and GDS; and what one run recorded.

The run is repeated where OpenROAD is installed. Its figures are kept in ``recorded_tiny.json`` (written by
``python -m tests.flow.test_openroad FOLDER``) and are checked everywhere.
"""

import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import klayout.db as db
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from flow import netlist
from flow.design import Design
from flow.nangate45 import library as nangate45
from flow.nangate45 import platform
from flow.pipeline import REPORT, STEPS, run_steps
from flow.settings import FlowSettings
from flow.steps import equivalence, layout, openroad, replay
from flow.steps.mapped import CELLS
from flow.steps.step import Job, run, sha256
from hw.emit import MODELS, emit_verilog
from hw.memory.sram import Sram
from tests.flow.designs import Mac

RECORDED = Path(__file__).parent / "recorded_tiny.json"
# These need a chip that decodes, one that ends with its global route, or other corners.
SKIPPED = ("netlist", "netlist_sim", "power", "corners")
needs_record = pytest.mark.skipif(not RECORDED.is_file(), reason="no run was recorded yet")
needs_openroad = pytest.mark.skipif(shutil.which("openroad") is None, reason="OpenROAD is not installed")


class Tiny(wiring.Component):
    """A multiply-accumulate fed by a small memory."""

    a: In(8)
    clear: In(1)
    we: In(1)
    addr: In(5)
    q: Out(24)

    def elaborate(self, platform):
        m = Module()
        m.submodules.store = store = Sram(32, 16)
        m.submodules.mac = mac = Mac()
        m.d.comb += [store.en.eq(1), store.we.eq(self.we), store.addr.eq(self.addr), store.wdata.eq(self.q[:16])]
        m.d.comb += [mac.a.eq(self.a ^ store.rdata[:8]), mac.b.eq(store.rdata[8:12]), mac.clear.eq(self.clear)]
        m.d.comb += self.q.eq(mac.q)
        return m


def lay_out(folder: Path) -> Job:
    """All steps but those that need a chip, from the Verilog on."""
    emit_verilog(Tiny(), "tiny", out_dir=folder / "rtl")
    design = Design("tiny", "tiny", "tiny", folder / "rtl")
    job = Job(design, FlowSettings(), openroad.find(), folder / design.name)
    run_steps(job, [step for step in STEPS if step.name not in SKIPPED], None)
    return job


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The design laid out now."""
    return lay_out(tmp_path_factory.mktemp("tiny"))


def report_of(job):
    return json.loads((job.folder / REPORT).read_text())


def check_metrics(report):
    """What must hold of any run of the design, here or recorded."""
    metrics = report["metrics"]
    assert report["state"] == "signed off" and metrics["detailedroute__route__drc_errors"] == 0
    for check in ("setup", "hold"):
        slacks = [metrics[f"{stage}__timing__{check}__ws"] for stage in ("repair", "globalroute", "finish")]
        assert all(0 < slack < 10 for slack in slacks), (check, slacks)
    assert metrics["globalroute__route__overflow"] == 0
    assert metrics["placement__design__power_grid__nets__unconnected"] == 0
    width, height = metrics["floorplan__design__die__width"], metrics["floorplan__design__die__height"]
    assert metrics["floorplan__design__die__area"] == pytest.approx(width * height)
    assert metrics["layout__width"] == pytest.approx(width) and metrics["layout__height"] == pytest.approx(height)
    assert metrics["cts__clock__buffers"] >= 1 and metrics["cts__clock__sinks"] >= 25
    assert metrics["finish__netlist__sha256"] == report["netlist_sha256"]
    assert metrics["parasitics__source"] == "layer resistance and capacitance, no rules"
    assert metrics["parasitics__capacitance"] > 0
    assert all(math.isfinite(value) and abs(value) < 1e29 for value in metrics.values() if not isinstance(value, str))
    for step in report["steps"]:
        assert step["seconds"] >= 0 and all(warning.startswith("[WARNING ") for warning in step["warnings"])


@needs_record
def test_recorded_run():
    """The figures that were recorded say what a run must say, of every step."""
    report = json.loads(RECORDED.read_text())
    check_metrics(report)
    assert [step["name"] for step in report["steps"]] == [step.name for step in STEPS if step.name not in SKIPPED]
    assert report["versions"]["openroad"]


@needs_record
@needs_openroad
def test_a_run_like_the_recorded_one(tiny):
    """Metrics have the recorded names, areas and counts are near the recorded ones."""
    report, recorded = report_of(tiny), json.loads(RECORDED.read_text())
    assert set(report["metrics"]) == set(recorded["metrics"])
    for name in ("floorplan__design__die__area", "synth__design__instance__area__stdcell", "layout__cells"):
        assert report["metrics"][name] == pytest.approx(recorded["metrics"][name], rel=0.1), name
    for name in ("finish__timing__setup__ws", "parasitics__capacitance"):
        assert report["metrics"][name] == pytest.approx(recorded["metrics"][name], rel=0.3), name


@needs_openroad
def test_a_run_is_clean(tiny):
    """Zero violations, setup and hold met, no overflow, no stand-ins for numbers."""
    check_metrics(report_of(tiny))


@needs_openroad
def test_layout_leaves_every_function_as_it_was(tiny):
    """Netlists after the global route and at sign-off are that of synthesis, cell by cell."""
    models = [nangate45.locate().verilog, tiny.design.rtl / MODELS]
    before = netlist.read(tiny.of("synth") / "netlist.v")
    rough = replace(tiny, settings=FlowSettings(detailed_cells=0))
    assert layout.Netlist().wanted(rough) and not layout.Netlist().wanted(tiny)
    found = run(layout.Netlist(), rough, {})
    assert found.metrics["netlist__netlist__sha256"] == sha256(found.folder / "netlist.v")
    ports = replay.ports(before["tiny"].text)
    ins, outs = (replay.bits(ports, output=each) for each in (False, True))
    for file in (found.folder / "netlist.v", tiny.of("signoff") / "netlist.v"):
        after = netlist.read(file)
        flat = [equivalence.flat(modules, "tiny", equivalence.outputs(models)) for modules in (before, after)]
        assert list(equivalence.differences(*flat, ins, outs)) == []
        assert set(after) == {"tiny"} and all(len(each.kinds) > 100 for each in flat)


@needs_openroad
def test_openroad_reads_the_macro_as_it_was_written(tiny):
    """Size and pins of the macro in the placed design; it lies on the placement grid."""
    definition = (tiny.of("signoff") / "design.def").read_text()
    scale = int(definition.split("UNITS DISTANCE MICRONS ")[1].split()[0])
    line = next(line for line in definition.splitlines() if "sram_1rw_32x16" in line and line.lstrip().startswith("-"))
    x, y = (int(word) / scale for word in line.split("FIXED (")[1].split(")")[0].split())
    assert y / platform.ROW_UM == pytest.approx(round(y / platform.ROW_UM), abs=1e-3) and x > 0
    cells = json.loads((tiny.of("synth") / CELLS).read_text())["cells"]
    assert cells["sram_1rw_32x16"] == 1


@needs_openroad
def test_files_hold_what_the_page_says(tiny):
    """Columns of the CSV files, paths with stages, slacks that agree with the metrics."""
    metrics = report_of(tiny)["metrics"]
    heads = {
        "placement/density.csv": "x_um,y_um,width_um,height_um,share",
        "clock_tree/clock_tree.csv": "name,master,x_um,y_um,kind",
        "global_route/congestion.csv": (
            "x_um,y_um,horizontal_usage,horizontal_capacity,vertical_usage,vertical_capacity"
        ),
        "signoff/slacks.csv": "corner,check,endpoint,slack_ns",
    }
    for name, head in heads.items():
        lines = (tiny.folder / name).read_text().splitlines()
        assert lines[0] == head and len(lines) > 10, name
    slacks = [line.split(",") for line in (tiny.of("signoff") / "slacks.csv").read_text().splitlines()[1:]]
    for check in ("setup", "hold"):
        worst = min(float(value) for _, kind, _, value in slacks if kind == check)
        assert worst == pytest.approx(metrics[f"finish__timing__{check}__ws"], abs=0.01)
    paths = json.loads((tiny.of("signoff") / "paths.json").read_text())["typical"]
    for check in ("setup", "hold"):
        first = paths[check][0]
        assert first["slack_ns"] == pytest.approx(metrics[f"finish__timing__{check}__ws"], abs=0.01)
        assert first["startpoint"] and first["endpoint"] and len(first["stages"]) > 1
    shares = [
        float(line.rsplit(",", 1)[1]) for line in (tiny.of("placement") / "density.csv").read_text().splitlines()[1:]
    ]
    assert 0.3 < sum(shares) / len(shares) < 1 and max(shares) <= 1.001


@needs_openroad
def test_views_for_the_level_above(tiny):
    """The abstract has the design's size and all its pins; the timing model has its ports; GDS holds every cell."""
    metrics = report_of(tiny)["metrics"]
    abstract = tiny.of("abstract")
    size = layout.sizes(abstract / "tiny.lef")["tiny"]
    assert size == pytest.approx((metrics["floorplan__design__die__width"], metrics["floorplan__design__die__height"]))
    text = (abstract / "tiny.lef").read_text()
    for pin in ("clk", "rst", "a[7]", "q[23]", "VDD", "VSS"):
        assert f"PIN {pin}\n" in text
    assert "LAYER metal7" in text and "metal7" not in text.split("OBS", 1)[1]
    assert "timing" in (abstract / "tiny_typical.lib").read_text()
    merged = db.Layout()
    merged.read(str(tiny.of("layout") / "layout.gds"))
    assert merged.cell("DFF_X1") is not None and merged.cell("sram_1rw_32x16") is not None
    assert (tiny.of("layout") / "layout.png").stat().st_size > 10_000


@needs_openroad
def test_a_step_that_fails_in_openroad_is_one_line(tiny, tmp_path):
    """A die whose edge cannot hold the pins, or whose cells do not fit, ends with one line; earlier steps stay."""
    folder = tmp_path / "tiny.tiny"
    shutil.copytree(tiny.folder, folder)
    job = Job(tiny.design, FlowSettings(density=0.05), tiny.openroad, folder)
    with pytest.raises(openroad.OpenRoadError, match="density 0.05 is below the core's") as caught:
        run_steps(job, STEPS, "placement")
    assert "\n" not in str(caught.value)
    assert json.loads((folder / REPORT).read_text())["steps"][-1]["name"] == "power_grid"


if __name__ == "__main__":
    made = report_of(lay_out(Path(sys.argv[1]).resolve()))
    made["settings"] = {name: value for name, value in made["settings"].items() if value is not None}
    RECORDED.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
