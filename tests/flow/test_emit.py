"""Generated Verilog: one module per kind of block, and the same function as with everything in its place."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from amaranth.back import rtlil

from flow import rtl
from flow.steps.rtlil import parse
from hw import yosys
from hw.emit import emit_verilog, to_rtlil
from hw.hierarchy import TILES, UNITS
from hw.params import from_preset
from tests.flow.designs import Chain, Delay, Mac, Multiply, Pair, Unit


def modules(text: str) -> list[str]:
    return sorted(module.name for module in parse(text))


def test_every_kind_of_block_is_one_module():
    """Eight Macs and four Pairs, wired in two orders, become one module each, named by class."""
    text, macros = to_rtlil(Unit(), "unit")
    assert modules(text) == ["\\mac", "\\pair", "\\sram_1rw_64x32_by_1", "\\unit"]
    assert [macro.name for macro in macros] == ["sram_1rw_64x32"]


def test_kinds_differ_in_their_arguments():
    """What is around a block makes no difference, its arguments do; the other module gets a number."""
    text, _ = to_rtlil(Chain(), "chain")
    assert modules(text) == ["\\chain", "\\shift", "\\shift_2"]
    assert text.count("cell \\shift ") == 4 and text.count("cell \\shift_2 ") == 1


def test_a_block_of_the_top_modules_name_gets_a_number():
    text, _ = to_rtlil(Pair(), "mac")
    assert modules(text) == ["\\mac", "\\mac_2"]


def test_blocks_without_resets_have_no_reset_pin():
    """A pipeline register that is not reset needs a clock only; logic alone needs neither."""
    for block, pins in ((Mac, {"clk", "rst"}), (Delay, {"clk"}), (Multiply, set())):
        text, _ = to_rtlil(block(), "dut")
        assert set(re.findall(r"input +\d+ +\\(clk|rst)$", text, flags=re.M)) == pins


def test_hierarchy_of_the_chip():
    """Every tile is a module of the chip, placed at least twice, without reset pin and macros; every unit is one."""
    text = (rtl.emitted(rtl.make(from_preset("micro-k3"))) / rtl.VERILOG).read_text()
    bodies = dict(re.findall(r"^module (\w+)(.*?)^endmodule", text, flags=re.M | re.S))
    assert "input clk;" in bodies["nanok3"] and "input rst;" in bodies["nanok3"]
    for name in TILES:
        assert len(re.findall(rf"^  {name} \w+ \($", text, flags=re.M)) >= 2
        assert "input rst;" not in bodies[name] and "sram_" not in bodies[name]
    for name in UNITS:
        assert len(re.findall(rf"^  {name} \w+ \($", bodies["nanok3"], flags=re.M)) == 1
        assert "input clk;" in bodies[name] and "input rst;" in bodies[name]
    assert "assign units_rst = rst | reset_units;" in bodies["nanok3"]  # the clock is the chip's own, the reset is not


def prove_equal(gold: str, gate: str, top: str, folder: Path) -> None:
    """Yosys proves two RTLIL designs equal, register by register, or YosysError is raised."""
    passes = []
    for side, text in (("gold", gold), ("gate", gate)):
        (folder / f"{side}.il").write_text(text)
        passes += [f"read_rtlil {folder / side}.il", f"hierarchy -top {top}", "proc", "flatten"]
        passes += [f"rename {top} {side}", "opt_clean", f"design -stash {side}"]
    passes += [f"design -copy-from {side} {side}" for side in ("gold", "gate")]
    yosys.run([*passes, "equiv_make gold gate equiv", "equiv_simple equiv", "equiv_status -assert equiv"], timeout=600)


@pytest.mark.parametrize(("component", "top"), [(Chain, "chain"), (Pair, "pair_top"), (Mac, "mac")])
def test_instances_equal_elaboration_in_place(component, top, tmp_path):
    """The design of instances is proven equal to the one that Amaranth wrote with everything in its place."""
    gold = re.sub(r"attribute \\init .*\n", "", rtlil.convert(component(), name=top, emit_src=False))
    prove_equal(gold, to_rtlil(component(), top)[0], top, tmp_path)


def test_a_wrong_instance_would_be_found(tmp_path):
    """The proof fails when the module with the constant is replaced by the other one."""
    gold, _ = to_rtlil(Chain(), "chain")
    wrong = gold.replace("cell \\shift_2", "cell \\shift")
    assert wrong != gold
    with pytest.raises(yosys.YosysError):
        prove_equal(gold, wrong, "chain", tmp_path)


def test_output_is_the_same_in_every_process(tmp_path):
    """Neither text nor files depend on Python's hash seed."""
    code = (
        "import sys; from hw.emit import emit_verilog; from tests.flow.designs import Unit;"
        "emit_verilog(Unit(), 'unit', out_dir=sys.argv[1])"
    )
    for seed in ("1", "2"):
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / seed)],
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    files = sorted(file.name for file in (tmp_path / "1").iterdir() if file.suffix != ".log")
    assert "unit.v" in files and "macros.json" in files
    for name in files:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes(), name


def test_registers_lose_initial_values_and_ports_their_sign(tmp_path):
    """Reset alone gives registers a value, as in silicon; other tools' readers refuse signed ports."""
    assert "attribute \\init" in rtlil.convert(Mac(), name="mac")
    text = emit_verilog(Mac(), "mac", out_dir=tmp_path).read_text()
    assert not re.search(r"^\s*(input|output|wire|reg)\s+signed", text, flags=re.M)
    assert not re.search(r"reg \[\d+:0\] q = ", text) and "initial" not in text
