"""A netlist after layout against the one before it: what layout may do passes, a changed function is found."""

import pytest

from flow import netlist
from flow.design import Design
from flow.nangate45 import library as nangate45
from flow.steps import equivalence, netlist_sim
from flow.steps.activity import Toggles
from flow.steps.step import StepFailed
from hw.emit import MODELS

BEFORE = """
module half(a, b, y);
  input a;
  input b;
  output [1:0] y;
  wire n;
  NAND2_X1 g (.A1(a), .A2(b), .ZN(n));
  BUF_X1 strong (.A(n), .Z(y[0]));
  DFF_X1 r (.CK(b), .D(n), .Q(y[1]));
endmodule

module top(clk, x, y, z);
  input clk;
  input [1:0] x;
  output [2:0] y;
  output z;
  wire [1:0] w;
  wire low;
  half h0 (.a(x[0]), .b(clk), .y(w));
  half h1 (.a(x[1]), .b(clk), .y(y[1:0]));
  OAI21_X1 o (.A(w[0]), .B1(w[1]), .B2(low), .ZN(y[2]));
  LOGIC0_X1 l (.Z(low));
  assign z = y[2];
endmodule
"""
# The same without hierarchy, as OpenROAD writes it.
AFTER = """module top (clk,
    z,
    x,
    y);
 input clk;
 output z;
 input [1:0] x;
 output [2:0] y;

 wire \\h0/n ;
 wire \\h1/n ;
 wire \\w[0] ;
 wire \\w[1] ;
 wire low;

 NAND2_X1 \\h0/g  (.A1(x[0]),
    .A2(clk),
    .ZN(\\h0/n ));
 BUF_X1 \\h0/strong  (.A(\\h0/n ),
    .Z(\\w[0] ));
 DFF_X1 \\h0/r  (.CK(clk),
    .D(\\h0/n ),
    .Q(\\w[1] ));
 NAND2_X1 \\h1/g  (.A1(x[1]),
    .A2(clk),
    .ZN(\\h1/n ));
 BUF_X1 \\h1/strong  (.A(\\h1/n ),
    .Z(y[0]));
 DFF_X1 \\h1/r  (.CK(clk),
    .D(\\h1/n ),
    .Q(y[1]));
 OAI21_X1 o (.A(\\w[0] ),
    .B1(\\w[1] ),
    .B2(low),
    .ZN(y[2]));
 LOGIC0_X1 l (.Z(low));
 assign z = y[2];
endmodule
"""
INS, OUTS = ["clk", "x[0]", "x[1]"], ["y[0]", "y[1]", "y[2]", "z"]
END = "endmodule\n"
BUFFERED = [
    (".D(\\h0/n )", ".D(b2)"),
    (END, "BUF_X2 b1 (.A(\\h0/n ), .Z(b1));\nCLKBUF_X3 b2 (.A(b1), .Z(b2));\n" + END),
]
COPIED = [(".D(\\h1/n )", ".D(c)"), (END, " NAND2_X2 copy (.A1(x[1]), .A2(clk), .ZN(c));\n" + END)]
# A copy that hangs on a copy: o and the cell that feeds it.
CHAIN = [
    (".ZN(y[2])", ".ZN(other)"),
    (
        END,
        " DFF_X1 c0 (.CK(clk), .D(\\h0/n ), .Q(c0));\n OAI21_X2 c1 (.A(\\w[0] ), .B1(c0), .B2(low), .ZN(y[2]));\n"
        + END,
    ),
]


def read(text, folder):
    file = folder / "netlist.v"
    file.write_text(text)
    return equivalence.flat(netlist.read(file), "top", equivalence.outputs([nangate45.locate().verilog]))


def differences(changes, folder):
    text = AFTER
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return list(equivalence.differences(read(BEFORE, folder), read(text, folder), INS, OUTS))


@pytest.mark.parametrize(
    "changes",
    [
        [],
        BUFFERED,
        COPIED,
        CHAIN,
        [(".Z(\\w[0] )", ".Z(unused)"), (".A(\\w[0] )", ".A(\\h0/n )")],
        [("NAND2_X1 \\h1/g", "NAND2_X4 \\h1/g")],
        [(".A1(x[0])", ".A1(clk)"), (".A2(clk)", ".A2(x[0])")],
        [(".B1(\\w[1] )", ".B1(low)"), (".B2(low)", ".B2(\\w[1] )")],
        [(END, " INV_X4 clkload0 (.A(clk));\n" + END)],
        [(".B2(low)", ".B2(low2)"), (END, " LOGIC0_X1 l2 (.Z(low2));\n" + END)],
        [("assign z = y[2]", "BUF_X8 out (.A(y[2]), .Z(z))")],
        [("assign z = y[2]", "assign z = q1;\n assign q1 = y[2]")],
    ],
    ids=[
        "none",
        "buffered",
        "copied",
        "chain",
        "unbuffered",
        "size",
        "swap",
        "swap2",
        "load",
        "tie",
        "assign",
        "chain of assigns",
    ],
)
def test_what_layout_does_is_no_difference(changes, tmp_path):
    assert differences(changes, tmp_path) == []


@pytest.mark.parametrize(
    "changes, found",
    [
        ([("NAND2_X1 \\h0/g", "NOR2_X1 \\h0/g")], "h0/g is another function, or of other inputs"),
        ([(".D(\\h0/n )", ".D(\\h1/n )")], "h0/r is another function, or of other inputs"),
        ([(".A(\\w[0] )", ".A(low)"), (".B2(low)", ".B2(\\w[0] )")], "o is another function, or of other inputs"),
        ([("LOGIC0_X1 l ", "LOGIC1_X1 l ")], "o is another function, or of other inputs"),
        ([(".CK(clk)", ".CK(x[0])")], "h0/r is another function, or of other inputs"),
        ([(" OAI21_X1 o (", " OAI21_X1 p (")], "o is gone"),
        ([("assign z = y[2]", "assign z = y[1]")], "output z is driven by h1/r"),
        (
            [("BUF_X1 \\h1/strong", "INV_X1 \\h1/strong"), (".Z(y[0])", ".ZN(y[0])")],
            "output y[0] is driven by h1/strong",
        ),
        ([(END, " INV_X1 two (.A(clk), .ZN(\\h0/n ));\n" + END)], "net h0/n has two drivers"),
        ([(END, " assign low = x[0];\n" + END)], "net low has two drivers"),
        ([(END, " assign z = x[0];\n" + END)], "net z has two drivers"),
        ([(END, " BUF_X1 back (.A(x[0]), .Z(x[0]));\n" + END)], "input x[0] is driven"),
        ([("assign z = y[2]", "assign q1 = y[1];\n assign z = q1")], "output z is driven by h1/r"),
        ([("assign z = y[2]", "assign z = q1")], "output z is driven by"),
        ([(".A(\\h1/n ),", "")], "output y[0] is driven by"),
        ([(".A(\\h1/n )", ".A(y[0])")], "output y[0] is driven by"),
        ([(".A2(clk),", "")], "h0/g is another function, or of other inputs"),
        ([*COPIED[:1], (END, " NAND2_X2 copy (.A1(x[0]), .A2(clk), .ZN(c));\n" + END)], "h1/r is another function"),
        ([*COPIED[:1], (END, " NOR2_X2 copy (.A1(x[1]), .A2(clk), .ZN(c));\n" + END)], "h1/r is another function"),
    ],
    ids=[
        *("kind", "input", "groups", "tie", "clock", "gone", "output", "inverter", "two drivers", "assigned"),
        *("assigned twice", "driven input", "chain", "chain to nothing"),
        *("buffer of nothing", "buffer ring", "open input", "copy's input", "copy's kind"),
    ],
)
def test_a_changed_function_is_found(changes, found, tmp_path):
    assert any(line.startswith(found) for line in differences(changes, tmp_path))


def test_a_cell_without_a_model_is_one_line(tmp_path):
    with pytest.raises(netlist.NetlistError, match="^no model of ODD_X1, which h0/g is$"):
        read(AFTER.replace("NAND2_X1 \\h0/g", "ODD_X1 \\h0/g"), tmp_path)


def test_activity_goes_with_the_source(tmp_path):
    """A buffered or copied net does what its source does; constants stay; what was not simulated is left out."""
    text = AFTER
    for old, new in [*BUFFERED, *COPIED[:1], (END, COPIED[1][1])]:
        text = text.replace(old, new, 1)
    nets = {"h0/n": Toggles(0.25, 1e6), "h1/n": Toggles(0.5, 2e6), "clk": Toggles(0.5, 2e8)}
    found = equivalence.carried_over(read(BEFORE, tmp_path), read(text, tmp_path), nets)
    assert found["b1"] == found["b2"] == found["h0/n"] == found["w[0]"] == Toggles(0.25, 1e6)
    assert found["c"] == found["y[0]"] == Toggles(0.5, 2e6) and found["clk"] == Toggles(0.5, 2e8)
    assert found["low"] == Toggles(0.0, 0.0) and "y[1]" not in found and "y[2]" not in found


HIERARCHY = """module top (a, y);
  input a;
  output y;
  wire [1:0] n;
  tile t (.in(a), .out(n));
  AND2_X1 g (.A1(n[0]), .A2(n[1]), .ZN(y));
endmodule
"""
TILE = "module tile (in, out);\n input in;\n output [1:0] out;\nendmodule\n"


def test_a_design_over_blocks_is_compared_with_the_blocks_as_cells(tmp_path):
    """The step compares what lies around blocks; a swapped pin of one is found, activity comes with it."""

    def modules(text):
        (tmp_path / "n.v").write_text(text)
        return netlist.read(tmp_path / "n.v")

    design = Design("made", None, "top", tmp_path, (Design("made", "tile", "tile", tmp_path),), 1)
    (tmp_path / MODELS).write_text("")
    before, blocks = modules(HIERARCHY), modules(TILE)
    buffered = HIERARCHY.replace(".A1(n[0])", ".A1(m)").replace("endmodule", " BUF_X1 b (.A(n[0]), .Z(m));\nendmodule")
    nets = {"a": Toggles(0.5, 1e6), "n[0]": Toggles(0.25, 2e6), "n[1]": Toggles(0.1, 3e6), "y": Toggles(0.1, 4e6)}
    same = netlist_sim.same_as(before, modules(buffered), before | blocks, design)
    assert equivalence.carried_over(*same, nets) == {**nets, "m": nets["n[0]"]}
    wrong = HIERARCHY.replace(".A2(n[1])", ".A2(a)")
    with pytest.raises(StepFailed, match="^the netlist after layout differs .* in one place: g is another function"):
        netlist_sim.same_as(before, modules(wrong), before | blocks, design)
    for old, new in (
        ("(a, y)", "(a)"),
        ("  output y;\n", ""),
        ("input a;", "output a;"),
        ("input a;", "input [1:0] a;"),
    ):
        with pytest.raises(StepFailed, match="^the netlist after layout has other ports than synthesis's: [ay]$"):
            netlist_sim.same_as(before, modules(HIERARCHY.replace(old, new)), before | blocks, design)


def test_outputs_with_a_name_that_is_a_word_of_verilog_are_compared(tmp_path):
    """Synthesis escapes it, layout does not."""

    def modules(text):
        (tmp_path / "n.v").write_text(text)
        return netlist.read(tmp_path / "n.v")

    written = "module top (a, {n});\n input [1:0] a;\n output [1:0] {n};\n BUF_X1 b (.A(a[{i}]), .Z({n}[0]));\n"
    written += " BUF_X1 c (.A(a[1]), .Z({n}[1]));\nendmodule\n"
    design = Design("made", None, "top", tmp_path, (), 0)
    (tmp_path / MODELS).write_text("")
    before = modules(written.format(n="\\context ", i=0))
    netlist_sim.same_as(before, modules(written.format(n="context", i=0)), {}, design)
    with pytest.raises(StepFailed, match=r"output context\[0\] is driven by"):
        netlist_sim.same_as(before, modules(written.format(n="context", i=1)), {}, design)


def test_two_cells_of_one_name_are_refused(tmp_path):
    with pytest.raises(netlist.NetlistError, match="^two cells are called o$"):
        read(AFTER.replace(" LOGIC0_X1 l (", " LOGIC0_X1 o ("), tmp_path)
