"""A recorded simulation of RTL is replayed on the synthesised netlist; a wrong netlist is found; pins get activity."""

import shutil
from collections import Counter

import pytest

from flow import netlist
from flow.nangate45 import library as nangate45
from flow.steps import activity, replay, synth
from flow.steps.netlist_sim import same_ports
from hw.emit import MODELS, emit_verilog
from sim.verilator import build
from tests.flow.designs import Unit

NO_STA = synth.SynthConfig(keep=("pair",), sta_program="none")
PERIOD_PS = 10_000


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """(record of the design's ports in a random run, its ports, its netlist's file, models, text of the netlist)."""
    folder = tmp_path_factory.mktemp("replay")
    verilog = emit_verilog(Unit(), "unit", out_dir=folder / "rtl")
    result = synth.run(folder / "rtl", "unit", folder / "synth", NO_STA)
    ports = replay.ports(netlist.read(verilog)["unit"].text)
    recorder = folder / "recorder.v"
    recorder.write_text(replay.recorder("unit", ports, "unit"))
    models = folder / "rtl" / MODELS
    made = build([verilog, models, recorder], "unit", folder=folder / "sim")
    run = made.simulate("tests.flow.bench_random", parameters={"edges": 300}, zeros=True)[0]
    shutil.copy(run.log.parent / "unit.hex", folder / "unit.hex")
    mapped = f"{result['directory']}/{synth.NETLIST}"
    return folder / "unit.hex", ports, folder / "netlist.v", [nangate45.locate().verilog, models], open(mapped).read()


def test_the_netlist_does_what_was_recorded(recorded, tmp_path):
    """All outputs agree before every edge; every pin of the top module's cells gets activity, the clock's is right."""
    record, ports, file, models, text = recorded
    file.write_text(text)
    start = 100
    found = replay.replay(
        [file], models, "unit", ports, record, tmp_path, activity=tmp_path / "a.saif", start=start, optimise="-O0"
    )
    assert found.edges >= 300 and found.wrong_edges == 0 and found.first is None
    outputs = sum(port.width for port in ports if port.output)
    assert found.compared_bits == found.edges * outputs
    nets = activity.read_saif(tmp_path / "a.saif", ("replay", "dut"), start * PERIOD_PS)
    modules = netlist.read(file)
    known, pins = activity.write(modules, "unit", nets, tmp_path / "activity.csv")
    assert known == pins > 500
    lines = dict(line.split(",", 1) for line in (tmp_path / "activity.csv").read_text().splitlines())
    flip_flop = next(name for name in lines if name.endswith("/CK"))
    density, duty = map(float, lines[flip_flop].split(","))
    assert density == pytest.approx(2 / (PERIOD_PS * 1e-12), rel=0.02) and duty == pytest.approx(0.5, abs=0.02)
    assert "store.bank_0/addr[5]" in lines and "store.bank_0/rdata[31]" in lines
    pairs = {name.split("/")[0] for name in lines if name.count("/") == 2}
    assert "pair" in modules and len(pairs) == modules["unit"].instances["pair"] > 1, "cells of modules below"


def test_a_wrong_netlist_is_found(recorded, tmp_path):
    """One gate of another kind is seen, and where."""
    record, ports, file, models, text = recorded
    head, module, tail = text.partition("module unit(")
    assert "  NAND2_X1 " in head + tail
    file.write_text((head + module + tail).replace("  NAND2_X1 ", "  NOR2_X1 ", 1))
    found = replay.replay([file], models, "unit", ports, record, tmp_path, optimise="-O0")
    assert found.wrong_edges > 0 and found.first is not None


def test_ports_may_come_in_any_order(recorded, tmp_path):
    """A netlist whose ports a tool has sorted is driven by name; one with other ports is refused."""
    record, ports, file, models, text = recorded
    head, module, tail = text.partition("module unit(")
    names, rest = tail.split(")", 1)
    listed = [name.strip() for name in names.split(",")]
    declared, body = [], []
    before_end, end = rest.split("endmodule", 1)
    for line in before_end.splitlines(keepends=True):
        (declared if line.strip().startswith(("input", "output")) else body).append(line)
    shuffled = f"{', '.join(sorted(listed, reverse=True))}){body[0]}{''.join(reversed(declared))}{''.join(body[1:])}"
    file.write_text(f"{head}{module}{shuffled}endmodule{end}")
    found = replay.ports(netlist.read(file)["unit"].text)
    assert found != ports and same_ports(ports, found) == ports
    assert replay.replay([file], models, "unit", ports, record, tmp_path, optimise="-O0").wrong_edges == 0
    with pytest.raises(replay.ReplayFailed, match=f"^the netlist has other ports than the RTL: {found[0].name}$"):
        same_ports(ports, found[1:])


def test_a_netlist_that_does_not_compile_is_one_line(recorded, tmp_path):
    record, ports, file, models, text = recorded
    file.write_text(text.replace("endmodule", "", 1))
    with pytest.raises(replay.ReplayFailed, match="^the netlist of unit cannot be compiled, see replay.log$"):
        replay.replay([file], models, "unit", ports, record, tmp_path)


def test_connections_are_read_bit_by_bit():
    """Names, bits, parts, whole buses, lists, constants and escaped names, as synthesis and OpenROAD write them."""
    module = """module top (a, y);
 input [3:0] a;
 wire [1:0] \\u/w ;
 NAND2_X1 _1_ (.A1(a[0]),
    .A2(\\u/n1 ),
    .ZN(y));
 sram \\m/bank_0 (.clk(clk), .addr({a[3:2], \\u/w [0]}), .rdata(\\u/w ), .en(1'b1));
endmodule
"""
    modules = {"top": netlist.NetlistModule(module, Counter())}
    assert list(activity.pins(modules, "top")) == [
        ("_1_/A1", "a[0]"),
        ("_1_/A2", "u/n1"),
        ("_1_/ZN", "y"),
        ("m/bank_0/clk", "clk"),
        ("m/bank_0/addr[2]", "a[3]"),
        ("m/bank_0/addr[1]", "a[2]"),
        ("m/bank_0/addr[0]", "u/w[0]"),
        ("m/bank_0/rdata[1]", "u/w[1]"),
        ("m/bank_0/rdata[0]", "u/w[0]"),
    ]


def test_activity_counts_from_where_the_recording_began(tmp_path):
    """Verilator's file: the duration is the whole simulation's; the asked scope is read, and what is below."""
    (tmp_path / "x.saif").write_text(
        "(SAIFILE\n(TIMESCALE 1ps)\n(DURATION 3000)\n (INSTANCE replay\n"
        "  (NET\n   (a (T0 1) (T1 2) (TZ 0) (TX 0) (TB 0) (TC 9))\n  )\n"
        "  (INSTANCE dut\n   (NET\n    (a\\[1\\] (T0 2000) (T1 1000) (TZ 0) (TX 0) (TB 0) (TC 4))\n   )\n"
        "   (INSTANCE cell\n    (NET\n     (b (T0 1) (T1 1) (TZ 0) (TX 0) (TB 0) (TC 4))\n    )\n   )\n"
        "   (NET\n    (c (T0 3000) (T1 0) (TZ 0) (TX 0) (TB 0) (TC 0))\n   )\n  )\n )\n)\n"
    )
    nets = activity.read_saif(tmp_path / "x.saif", ("replay", "dut"), 1000)
    assert set(nets) == {"a[1]", "cell/b", "c"}
    assert nets["a[1]"].duty == pytest.approx(0.5) and nets["a[1]"].density_hz == pytest.approx(4 / 2000e-12)
