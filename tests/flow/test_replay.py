"""A recorded simulation of RTL is replayed on the synthesised netlist, whole and part by part; pins get activity.

A wrong netlist is found, and the part of it that is wrong.
"""

import json
import re
import shutil
from collections import Counter
from dataclasses import replace

import pytest

from flow import netlist
from flow.design import Design
from flow.nangate45 import library as nangate45
from flow.steps import activity, netlist_sim, replay, synth
from flow.steps.step import StepFailed
from hw.emit import MODELS, emit_verilog
from sim.verilator import build
from tests.flow.designs import Unit

NO_STA = synth.SynthConfig(keep=("pair",), sta_program="none")
START = 100
WINDOW = START, 250


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """(folder with the records of the design and of the pairs in it, the design as a part, text of its netlist)."""
    folder = tmp_path_factory.mktemp("replay")
    verilog = emit_verilog(Unit(), "unit", out_dir=folder / "rtl")
    result = synth.run(folder / "rtl", "unit", folder / "synth", NO_STA)
    ports = {name: replay.ports(netlist.read(verilog)[name].text) for name in ("unit", "pair")}
    recorder = folder / "recorder.v"
    recorder.write_text("".join(replay.recorder(name, ports[name], "unit") for name in ports))
    models = folder / "rtl" / MODELS
    made = build([verilog, models, recorder], "unit", folder=folder / "sim")
    run = made.simulate("tests.flow.bench_random", parameters={"edges": 300}, zeros=True)[0]
    for record in run.log.parent.glob("*.rec"):
        shutil.copy(record, folder / record.name)
    part = replay.Part("unit", ports["unit"], [folder / "netlist.v"], [nangate45.locate().verilog, models])
    return folder, part, open(f"{result['directory']}/{synth.NETLIST}").read()


def read(text, folder):
    (folder / "read.v").write_text(text)
    return netlist.read(folder / "read.v")


def replayed(part, record, work, window=None):
    return replay.run(part, replay.compiled(part, work, window=window, optimise="-O0"), record, work)


def test_every_instance_is_recorded_when_it_changes(recorded):
    """One file an instance, a line a change, the number of edges last."""
    folder, _, _ = recorded
    assert {file.name for file in folder.glob("*.rec")} == {"unit.rec", *(f"unit.pair_{i}.rec" for i in range(4))}
    for file in folder.glob("*.rec"):
        lines = [line.split() for line in file.read_text().splitlines()]
        edges = [int(line[0]) for line in lines]
        assert edges[0] == 0 and edges[:-1] == sorted(set(edges[:-1])) and -edges[-1] > edges[-2]
        assert all(before[1:] != after[1:] for before, after in zip(lines[:-2], lines[1:-1], strict=True))


def test_the_netlist_does_what_was_recorded(recorded, tmp_path):
    """All outputs agree before every edge; every pin of the top module's cells gets activity, the clock's is right."""
    folder, part, text = recorded
    part.netlists[0].write_text(text)
    found = replayed(part, folder / "unit", tmp_path, WINDOW)
    assert found.edges >= 300 and found.wrong_edges == 0 and found.first is None
    outputs = sum(port.width for port in part.ports if port.output)
    assert found.compared_bits == found.edges * outputs
    nets = activity.read_saif(tmp_path / replay.ACTIVITY, replay.DUT, START * replay.CLOCK_PS)
    modules = netlist.read(part.netlists[0])
    known, pins = activity.write(modules, "unit", nets, tmp_path / "activity.csv")
    assert known == pins > 500
    lines = dict(line.split(",", 1) for line in (tmp_path / "activity.csv").read_text().splitlines())
    flip_flop = next(name for name in lines if name.endswith("/CK"))
    density, duty = map(float, lines[flip_flop].split(","))
    assert density == pytest.approx(2 / (replay.CLOCK_PS * 1e-12), rel=0.02) and duty == pytest.approx(0.5, abs=0.02)
    assert "store.bank_0/addr[5]" in lines and "store.bank_0/rdata[31]" in lines
    pairs = {name.split("/")[0] for name in lines if name.count("/") == 2}
    assert "pair" in modules and len(pairs) == modules["unit"].instances["pair"] > 1, "cells of modules below"


def in_parts(recorded, text, tmp_path, monkeypatch, window=WINDOW):
    """The replays of a netlist's parts, the pairs apart."""
    folder, part, _ = recorded
    part.netlists[0].write_text(text)
    (folder / "rtl" / "nanok3.v").write_bytes((folder / "rtl" / "unit.v").read_bytes())
    monkeypatch.setattr(netlist_sim, "APART", ("pair",))
    monkeypatch.setattr("flow.rtl.TOP", "unit")
    design = Design("made", None, "unit", folder / "rtl")
    work = tmp_path / "work"
    work.mkdir()
    modules = netlist.read(part.netlists[0])
    return modules, list(netlist_sim.replayed(design, modules, folder, window, work)), work


def test_parts_alone_do_what_the_whole_does(recorded, tmp_path, monkeypatch):
    """Every instance agrees with its record; the activity of all nets is what one simulation of the whole gives."""
    folder, part, text = recorded
    modules, replays, work = in_parts(recorded, text, tmp_path, monkeypatch)
    assert [each.path for each in replays] == [(), *((f"pair_{i}",) for i in range(4))]
    assert all(each.outcome.edges >= 300 and each.outcome.wrong_edges == 0 for each in replays)
    netlist_sim.refuse_wrong("unit", replays)
    assert [entry.name for entry in work.iterdir()] == ["log"], "programs and waveforms are taken away"
    replayed(part, folder / "unit", tmp_path, WINDOW)
    whole = activity.read_saif(tmp_path / replay.ACTIVITY, replay.DUT, START * replay.CLOCK_PS)
    joined = {net: toggles for each in replays for net, toggles in each.nets.items()}
    pins = dict(activity.pins(modules, "unit"))
    different = {net for net in pins.values() if joined[net] != whole[net]}
    assert len(pins) > 500 and not different


def test_the_part_that_is_wrong_is_named(recorded, tmp_path, monkeypatch):
    """A wrong gate in the pairs shows in the pairs; one around them shows in what is around them, players included."""
    _, _, text = recorded
    before, pair, after = text.partition("module pair(")
    inside, end, rest = after.partition("endmodule")
    wrong_pair = before + pair + inside.replace("  NAND2_X1 ", "  NOR2_X1 ", 1) + end + rest
    assert wrong_pair != text
    _, replays, work = in_parts(recorded, wrong_pair, tmp_path, monkeypatch)
    assert {each.path[:1] for each in replays if each.outcome.wrong_edges} == {(f"pair_{i}",) for i in range(4)}
    with pytest.raises(StepFailed, match=r"^the netlist differs from the RTL in 4 of its 5 parts, first in unit/pair_"):
        netlist_sim.refuse_wrong("unit", replays)
    assert "@@ outputs differ at edge" in (work / "log").read_text()


def test_a_wrong_input_of_a_neighbour_is_found(recorded, tmp_path):
    """Two wires to a part that stands beside are swapped: its player sees it, although all outputs are as recorded."""
    folder, part, text = recorded
    modules = netlist.read(folder / "rtl" / "unit.v")
    played = replace(part, played={"pair": replay.ports(modules["pair"].text)})
    swapped = text.replace(".clear(clear)", ".clear(1'h0)", 1)
    assert swapped != text
    for content, wrong in ((text, False), (swapped, True)):
        part.netlists[0].write_text(content)
        whole = netlist.read(part.netlists[0])
        netlist.write(whole, ["unit"], part.netlists[0])
        found = replayed(played, folder / "unit", tmp_path)
        assert (found.wrong_edges > 0) == wrong and found.edges >= 300
    assert "@@ inputs of replay.dut.pair_" in (tmp_path / replay.LOG).read_text()


@pytest.mark.parametrize("clock", ["1'b0", "", "x[0]", "not_clk", "buffered"])
def test_the_clock_of_a_neighbour_is_looked_at(clock, recorded, tmp_path):
    """Tied, open, another net, inverted: its player would not notice by the inputs. A buffered one is a clock."""
    folder, part, text = recorded
    modules = netlist.read(folder / "rtl" / "unit.v")
    before, pair, after = text.partition("  pair pair_3 (")
    assert ".clk(clk)" in after.split(";")[0]
    cells = "  INV_X1 made_0 (.A(clk), .ZN(not_clk));\n  CLKBUF_X1 made_1 (.A(clk), .Z(buffered));\n"
    part.netlists[0].write_text(before + cells + pair + after.replace(".clk(clk)", f".clk({clock})", 1))
    netlist.write(netlist.read(part.netlists[0]), ["unit"], part.netlists[0])
    found = replayed(replace(part, played={"pair": replay.ports(modules["pair"].text)}), folder / "unit", tmp_path)
    assert (found.wrong_edges > 0) == (clock != "buffered")


@pytest.mark.parametrize("reset", ["1'b0", "nowhere"])
def test_a_lost_reset_is_found(reset, recorded, tmp_path, monkeypatch):
    """State is 0 at the beginning with or without it; the record has a second reset, with something to clear."""
    before, pair, after = recorded[2].partition("module pair(")
    inside, end, rest = after.partition("endmodule")
    assert "(rst)" in inside
    wrong = before + pair + inside.replace("(rst)", f"({reset})") + end + rest
    _, replays, _ = in_parts(recorded, wrong, tmp_path, monkeypatch)
    assert any(each.outcome.wrong_edges for each in replays)


def test_a_port_may_be_called_like_a_word_of_verilog(recorded, tmp_path):
    """Synthesis escapes it, layout writes it plainly, and it is the same port."""
    folder, part, text = recorded
    plain = re.sub(r"\bsel\b", "context", text)
    escaped = re.sub(r"\bsel\b", r"\\context ", text)
    found = [replay.ports(read(each, tmp_path)["unit"].text) for each in (plain, escaped)]
    assert found[0] == found[1] and {"context"} < {port.name for port in found[0]}
    for each in (plain, escaped):
        part.netlists[0].write_text(each)
        assert replayed(replace(part, ports=found[0]), folder / "unit", tmp_path).wrong_edges == 0


def test_what_is_missing_is_one_line(recorded, tmp_path, monkeypatch):
    """A record, a compiler, a record that ends before the activity begins."""
    folder, part, text = recorded
    part.netlists[0].write_text(text)
    with pytest.raises(replay.ReplayFailed, match=r"^there is no record other.rec of unit$"):
        replay.run(part, folder / "nothing", folder / "other", tmp_path)
    with monkeypatch.context() as without:
        without.setenv("PATH", str(tmp_path))
        with pytest.raises(replay.ReplayFailed, match="^make is missing: Verilator compiles what it simulates"):
            replay.compiled(part, tmp_path)
    with pytest.raises(replay.ReplayFailed, match="^the record unit.rec ends before edge 5000$"):
        in_parts(recorded, text, tmp_path, monkeypatch, window=(5000, 6000))
    shutil.rmtree(tmp_path / "work")
    (folder / "unit.pair_2.rec").rename(tmp_path / "kept")
    try:
        with pytest.raises(replay.ReplayFailed, match=r"^there is no unit.pair_2.rec in .*: remove the folder"):
            in_parts(recorded, text, tmp_path, monkeypatch)
    finally:
        (tmp_path / "kept").rename(folder / "unit.pair_2.rec")


def test_a_wrong_netlist_is_found(recorded, tmp_path):
    """One gate of another kind is seen, and where."""
    folder, part, text = recorded
    head, module, tail = text.partition("module unit(")
    assert "  NAND2_X1 " in head + tail
    part.netlists[0].write_text((head + module + tail).replace("  NAND2_X1 ", "  NOR2_X1 ", 1))
    found = replayed(part, folder / "unit", tmp_path)
    assert found.wrong_edges > 0 and found.first is not None


def test_a_record_that_was_cut_off_is_refused(recorded, tmp_path):
    """Without its last line a record does not say how long it is: nothing is concluded from it."""
    folder, part, text = recorded
    part.netlists[0].write_text(text)
    whole = (folder / "unit.rec").read_text().splitlines(keepends=True)
    program = replay.compiled(part, tmp_path, optimise="-O0")
    for lines in (whole[:-1], whole[: len(whole) // 2], []):
        (tmp_path / "cut.rec").write_text("".join(lines))
        with pytest.raises(replay.ReplayFailed, match="^the replay of unit ended early, see .*/replay.log$"):
            replay.run(part, program, tmp_path / "cut", tmp_path)


def test_ports_may_come_in_any_order(recorded, tmp_path):
    """A netlist whose ports a tool has sorted is driven by name; one with other ports is refused."""
    folder, part, text = recorded
    head, module, tail = text.partition("module unit(")
    names, rest = tail.split(")", 1)
    listed = [name.strip() for name in names.split(",")]
    declared, body = [], []
    before_end, end = rest.split("endmodule", 1)
    for line in before_end.splitlines(keepends=True):
        (declared if line.strip().startswith(("input", "output")) else body).append(line)
    shuffled = f"{', '.join(sorted(listed, reverse=True))}){body[0]}{''.join(reversed(declared))}{''.join(body[1:])}"
    part.netlists[0].write_text(f"{head}{module}{shuffled}endmodule{end}")
    found = replay.ports(netlist.read(part.netlists[0])["unit"].text)
    assert found != part.ports and replay.same_ports(part.ports, found) == part.ports
    assert replayed(part, folder / "unit", tmp_path).wrong_edges == 0
    with pytest.raises(replay.ReplayFailed, match=f"^the netlist has other ports than the RTL: {found[0].name}$"):
        replay.same_ports(part.ports, found[1:])


def test_a_netlist_that_does_not_compile_is_one_line(recorded, tmp_path):
    _, part, text = recorded
    part.netlists[0].write_text(text.replace("endmodule", "", 1))
    with pytest.raises(replay.ReplayFailed, match="^the netlist of unit cannot be compiled, see .*/compile.log$"):
        replay.compiled(part, tmp_path)


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


def test_records_are_made_anew_when_what_they_are_made_of_changed(tmp_path, monkeypatch):
    """Kept while image, recorder and bench are the same; not when these changed, or when a file of it is missing."""
    made = []

    def record(design, given, work):
        made.append(given.sha256)
        (work / "nanok3.rec").write_text("-0 0 0\n")
        (work / netlist_sim.DECODE).write_text(json.dumps({"made_of": given.sha256}))

    def given(content):
        return netlist_sim._Given(None, None, [], "", {}, content)

    monkeypatch.setattr(netlist_sim, "RECORDS", tmp_path)
    monkeypatch.setattr(netlist_sim, "_record", record)
    design = Design("made", None, "unit", tmp_path / "rtl")
    for content in ("a", "a", "b", "b"):
        monkeypatch.setattr(netlist_sim, "_given", lambda design, content=content: given(content))
        folder = netlist_sim.recorded(design)
    assert made == ["a", "b"]
    for spoil in (lambda file: file.unlink(), lambda file: file.write_text('{"made_of"')):
        spoil(folder / netlist_sim.DECODE)
        netlist_sim.recorded(design)
    assert made == ["a", "b", "b", "b"]
