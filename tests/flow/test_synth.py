"""Synthesis of small designs: metrics, netlists, failures that must be clear."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from flow.nangate45 import library as nangate45
from flow.steps import repair, sta, synth
from hw import yosys
from hw.emit import MODELS, emit_verilog
from hw.memory.macro_model import MacroSpec, cost
from hw.units.router import Router
from tests.cocotb.router_sizes import make_params
from tests.cocotb.runner import run
from tests.flow.designs import Broadcast, Inferred, Mac, Multiply, Unit, Wires

needs_sta = pytest.mark.skipif(sta.executable() is None, reason="OpenSTA (sta) is not installed")
NO_STA = synth.SynthConfig(sta_program="sta-that-does-not-exist")


@pytest.fixture(scope="module")
def unit(tmp_path_factory):
    """The test design synthesised with its pairs kept as modules: (result, folder of results, folder of Verilog)."""
    folder = tmp_path_factory.mktemp("unit")
    emit_verilog(Unit(), "unit", out_dir=folder / "rtl")
    config = synth.SynthConfig(keep=("pair",))
    return synth.run(folder / "rtl", "unit", folder / "synth", config), folder / "synth", folder / "rtl", config


def test_metrics(unit):
    """Counts and areas are those of the parts, macros apart from cells."""
    result, *_ = unit
    metrics, root = result["metrics"], result["tree"]
    assert metrics["nanok3__count__flip_flops"] == 4 * 72 + 6 + 24
    assert metrics["nanok3__count__modules"] == 2
    (pair,) = root["children"]
    assert pair["module"] == "pair" and pair["count"] == 4
    total = root["own_area_um2"] + 4 * pair["area_um2"]
    assert metrics["synth__design__instance__area__stdcell"] == pytest.approx(total, abs=0.01)
    flip_flops = nangate45.FLIP_FLOP_AREA * 318
    assert flip_flops < metrics["synth__design__instance__area__stdcell"] < 5 * flip_flops
    macro = MacroSpec("1rw", 64, 32)
    assert metrics["synth__design__instance__area__macros"] == pytest.approx(cost(macro).area_um2)
    assert metrics["nanok3__area__macros__1mbit_per_mm2"] == macro.bits
    assert "sram_1rw_64x32" in synth.report(result)


def test_area_is_that_of_the_netlist(unit):
    """Cells counted in the netlist's text, by module, give the metric."""
    result, *_ = unit
    text = open(f"{result['directory']}/netlist.v").read()
    areas = nangate45.cell_areas(nangate45.locate().liberty)
    own = {}
    for name, body in re.findall(r"^module (\w+)(.*?)^endmodule", text, flags=re.M | re.S):
        own[name] = sum(areas.get(cell, 0.0) for cell in re.findall(r"^  (\w+) [^ ]+ \($", body, flags=re.M))
    expected = own["unit"] + 4 * own["pair"]
    assert result["metrics"]["synth__design__instance__area__stdcell"] == pytest.approx(expected, abs=0.01)


def test_netlist_is_plain(unit):
    """Nothing but cells: no assignment, expression, constant, memory or unmapped cell that other readers refuse."""
    result, *_ = unit
    text = open(f"{result['directory']}/netlist.v").read()
    for word in ("assign", "always", "signed", "$", "1'", "reg "):
        assert word not in text, word
    assert text.count("sram_1rw_64x32 ") == 1


@needs_sta
def test_timing_crosses_macros(unit):
    """The slack comes from OpenSTA, and paths from and to the macro are timed: the macro's delay is in them."""
    result, *_ = unit
    timing = result["timing"]
    assert timing["source"].startswith("opensta") and 5 < timing["setup_ws_ns"] < 10
    macro = cost(MacroSpec("1rw", 64, 32))
    assert timing["from_macro_ns"]["sram_1rw_64x32"] < 10 - macro.clk_to_q_ns
    assert timing["to_macro_ns"]["sram_1rw_64x32"] < 10 - macro.setup_ns
    assert "slack" in timing["worst_path"]


def test_results_are_kept(unit, monkeypatch):
    """The same inputs are not synthesised twice; another setting is another result."""
    result, out, rtl, config = unit
    monkeypatch.setattr(synth, "_synthesise", lambda *_: pytest.fail("synthesised again"))
    assert synth.run(rtl, "unit", out, config) == result
    with pytest.raises(pytest.fail.Exception):
        synth.run(rtl, "unit", out, synth.SynthConfig(keep=("pair",), abc_delay_ps=7000))


def test_failure_leaves_no_result(unit, tmp_path, monkeypatch):
    """A run that fails half-way leaves logs, not a result, and the next one succeeds."""
    emit_verilog(Mac(), "mac", out_dir=tmp_path / "rtl")
    with monkeypatch.context() as patch:
        patch.setattr(synth, "_metrics", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            synth.run(tmp_path / "rtl", "mac", tmp_path / "out", NO_STA)
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["mac.failed"]
    assert synth.run(tmp_path / "rtl", "mac", tmp_path / "out", NO_STA)["metrics"]["nanok3__count__flip_flops"] == 24


def test_without_sta_the_slack_is_labelled(tmp_path):
    emit_verilog(Mac(), "mac", out_dir=tmp_path / "rtl")
    metrics = synth.run(tmp_path / "rtl", "mac", tmp_path / "out", NO_STA)["metrics"]
    assert metrics["synth__timing__setup__ws__source"].startswith("abc")
    assert 5 < metrics["synth__timing__setup__ws"] < 10


def prove_equal(gold: list[str], gate: list[str], top: str) -> None:
    """Yosys' SAT solver proves two combinational modules equal, or YosysError is raised."""
    passes = []
    for side, files in (("gold", gold), ("gate", gate)):
        passes += [*files, f"hierarchy -top {top}", "proc", "flatten", f"rename {top} {side}", f"design -stash {side}"]
    passes += [f"design -copy-from {side} {side}" for side in ("gold", "gate")]
    passes += ["miter -equiv -flatten -make_outputs gold gate miter", "sat -verify -prove trigger 0 miter"]
    yosys.run(passes, timeout=600)


def test_netlist_equals_the_verilog(tmp_path):
    """A signed product after Booth recoding and mapping is proven equal to the Verilog for all inputs."""
    verilog = emit_verilog(Multiply(), "multiply", out_dir=tmp_path / "rtl")
    result = synth.run(tmp_path / "rtl", "multiply", tmp_path / "out", NO_STA)
    lib = nangate45.locate().liberty
    cells = [f"read_liberty -ignore_miss_func {lib}", f"read_verilog {result['directory']}/netlist.v"]
    prove_equal([f"read_verilog {verilog}"], cells, "multiply")
    assert "FA_X1" in open(f"{result['directory']}/netlist.v").read()
    verilog.write_text(verilog.read_text().replace("$signed(b)", "b"))
    with pytest.raises(yosys.YosysError):
        prove_equal([f"read_verilog {verilog}"], cells, "multiply")


def test_netlist_passes_the_bench_of_its_unit(tmp_path):
    """A router of library cells, full adders and flip-flops among them, routes as the twin does, cycle by cycle."""
    emit_verilog(Router(make_params("two")), "router", out_dir=tmp_path / "rtl")
    result = synth.run(tmp_path / "rtl", "router", tmp_path / "out", NO_STA)
    netlist = Path(result["directory"]) / "netlist.v"
    assert netlist.read_text().count("FA_X1") > 100
    models = [nangate45.locate().verilog, tmp_path / "rtl" / MODELS]
    (done,) = run(
        netlist, "router", "tests.cocotb.bench_router", parameters={"size": "two"}, seeds=(3,), extra_sources=models
    )
    assert done.reports["edges"] == 4 * 64


def test_wires_become_buffers_and_ties(tmp_path):
    """Outputs that are inputs get buffers and constants tie cells, and both are counted."""
    emit_verilog(Wires(), "wires", out_dir=tmp_path / "rtl")
    result = synth.run(tmp_path / "rtl", "wires", tmp_path / "out", NO_STA)
    text = open(f"{result['directory']}/netlist.v").read()
    assert text.count("BUF_X1") >= 4 and "LOGIC0_X1" in text and "LOGIC1_X1" in text and "assign" not in text
    assert result["metrics"]["synth__design__instance__count__stdcell"] >= 6


def heaviest_net(text: str, lib) -> float:
    """Largest load of a net in a netlist of one module, as a part of what its driver may carry."""
    pins = repair.read_pins(lib)
    wire = repair.read_wire_load(lib, sta.Constraints().wire_load)
    loads, limits = defaultdict(list), {}
    for kind, body in re.findall(r"^  (\w+) \S+ \(\n(.*?)\n  \);", text, flags=re.M | re.S):
        for pin, net in re.findall(r"\.(\w+)\((.*?)\)", body):
            known = pins[kind][pin]
            if known.direction == "output":
                limits[net.strip()] = known.max_load_ff
            else:
                loads[net.strip()].append(known.cap_ff)
    return max((sum(caps) + wire.cap_ff(len(caps))) / limits.get(net, 1e9) for net, caps in loads.items())


def test_broadcasts_are_buffered_across_modules(tmp_path):
    """A gate that feeds 300 modules gets a tree of buffers; no driver is overloaded and the function is the same."""
    verilog = emit_verilog(Broadcast(), "broadcast", out_dir=tmp_path / "rtl")
    config = synth.SynthConfig(keep=("leaf",), sta_program=NO_STA.sta_program)
    result = synth.run(tmp_path / "rtl", "broadcast", tmp_path / "out", config)
    assert result["metrics"]["nanok3__count__modules"] == 2
    assert result["tree"]["repair_buffers"] > 10
    lib, flat = nangate45.locate().liberty, tmp_path / "flat.v"
    netlist = f"read_verilog {result['directory']}/netlist.v"
    yosys.run(
        [f"read_liberty -lib -ignore_miss_func {lib}", netlist, "hierarchy -top broadcast", "flatten", "splitnets"]
        + ["opt_clean -purge", f"write_verilog -noattr -noexpr {flat}"]
    )
    assert 0 < heaviest_net(flat.read_text(), lib) <= 1.0
    cells = [f"read_liberty -ignore_miss_func {lib}", netlist]
    prove_equal([f"read_verilog {verilog}"], cells, "broadcast")


def test_wire_load_follows_the_library():
    """Length by fanout: the table's points, straight lines between them, the slope beyond; 0.1774 fF per unit."""
    wire = repair.read_wire_load(nangate45.locate().liberty, "5K_hvratio_1_1")
    assert wire.cap_ff(1) == pytest.approx(0.1774 * 1.7460)
    assert wire.cap_ff(10) == pytest.approx(0.1774 * (25.4842 + 27.0320) / 2)
    assert wire.cap_ff(13) == pytest.approx(0.1774 * (27.0320 + 2 * 5))
    with pytest.raises(ValueError, match="no wire-load model nothing"):
        repair.read_wire_load(nangate45.locate().liberty, "nothing")


def test_slow_scripts_are_stopped(tmp_path, monkeypatch):
    """A script that uses up its processor time is followed by the plain one, and the result says so."""
    emit_verilog(Mac(), "mac", out_dir=tmp_path / "rtl")
    monkeypatch.setitem(synth.ABC_SCRIPTS, "area", "strash; " + "dc2; dch; " * 2000 + "map; stime -p")
    config = synth.SynthConfig(abc_cpu_s=3, sta_program=NO_STA.sta_program)
    result = synth.run(tmp_path / "rtl", "mac", tmp_path / "out", config)
    assert result["tree"]["abc_script"] == "plain" and result["metrics"]["nanok3__count__abc_plain"] == 1


def test_missed_target_is_tried_again_for_delay(tmp_path):
    emit_verilog(Mac(), "mac", out_dir=tmp_path / "rtl")
    config = synth.SynthConfig(abc_delay_ps=100, sta_program=NO_STA.sta_program)
    result = synth.run(tmp_path / "rtl", "mac", tmp_path / "out", config)
    relaxed = synth.run(tmp_path / "rtl", "mac", tmp_path / "out", NO_STA)
    assert (result["tree"]["abc_script"], relaxed["tree"]["abc_script"]) == ("delay", "area")
    assert result["tree"]["abc_delay_ns"] < relaxed["tree"]["abc_delay_ns"]
    assert result["tree"]["area_um2"] > relaxed["tree"]["area_um2"]


def test_inferred_memories_are_refused(tmp_path):
    emit_verilog(Inferred(), "inferred", out_dir=tmp_path / "rtl")
    with pytest.raises(synth.SynthError, match="infers a memory: use hw.memory.sram.Sram"):
        synth.run(tmp_path / "rtl", "inferred", tmp_path / "out", NO_STA)


@pytest.mark.parametrize(
    ("top", "config", "message"),
    [
        ("unit", synth.SynthConfig(keep=("nothing*",)), "keep matches no module: nothing"),
        ("other", NO_STA, "no module other in the Verilog; it has"),
    ],
)
def test_wrong_settings_are_named(unit, tmp_path, top, config, message):
    with pytest.raises(synth.SynthError, match=message):
        synth.run(unit[2], top, tmp_path, config)


def test_missing_library_is_one_clear_line(unit, tmp_path, capsys):
    with pytest.raises(nangate45.LibraryMissing, match="no Nangate 45 library in .*: stdcells.lib") as caught:
        synth.run(unit[2], "unit", tmp_path, synth.SynthConfig(library_dir=str(tmp_path)))
    assert "\n" not in str(caught.value)


def test_library():
    """The installed library is found, and its areas are the known ones."""
    found = nangate45.locate()
    areas = nangate45.cell_areas(found.liberty)
    assert areas["DFF_X1"] == nangate45.FLIP_FLOP_AREA and areas["NAND2_X1"] == nangate45.NAND2_AREA
    assert sta.Constraints().wire_load in nangate45.wire_loads(found.liberty)


def test_models_are_not_synthesised(unit):
    """The behavioural memories lie beside the Verilog, but the netlist holds macros only."""
    _, _, rtl, _ = unit
    assert "mem [" in (rtl / MODELS).read_text()
