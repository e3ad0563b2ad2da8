"""Generated Verilog: equal modules are merged, nothing else changes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from amaranth.back import rtlil

from hw import yosys
from hw.dedup import deduplicate, parse
from hw.emit import emit_verilog, to_rtlil
from hw.memory.sram import MacroPlatform
from tests.flow.designs import Chain, Mac, Pair, Unit


def modules(text: str) -> list[str]:
    return [module.name for module in parse(text)]


def test_equal_modules_are_merged_with_their_parents():
    """Eight Macs and four Pairs, wired in two orders, become one module each, named by class."""
    text, macros = to_rtlil(Unit(), "unit")
    assert sorted(modules(text)) == ["\\mac", "\\pair", "\\sram_1rw_64x32_by_1", "\\unit"]
    assert [macro.name for macro in macros] == ["sram_1rw_64x32"]


def test_different_modules_are_not_merged():
    """What is around a component makes no difference, what is in it does; the other module gets a number."""
    text, _ = to_rtlil(Chain(), "chain")
    assert sorted(modules(text)) == ["\\chain", "\\shift", "\\shift_2"]


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
def test_merged_design_is_equivalent(component, top, tmp_path):
    """The merged design is proven equal to the one that Amaranth wrote."""
    gold = re.sub(r"attribute \\init .*\n", "", rtlil.convert(component(), name=top, emit_src=False))
    prove_equal(gold, to_rtlil(component(), top)[0], top, tmp_path)


def test_a_wrong_merge_would_be_found(tmp_path):
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
    assert "attribute \\init" in rtlil.convert(Mac(), name="mac", platform=MacroPlatform())
    text = emit_verilog(Mac(), "mac", out_dir=tmp_path).read_text()
    assert not re.search(r"^\s*(input|output|wire|reg)\s+signed", text, flags=re.M)
    assert not re.search(r"reg \[\d+:0\] q = ", text) and "initial" not in text


def test_unused_ports_of_merged_modules_are_mapped():
    """Modules that differ in the names of all their ports, one of them unused, are merged port by port."""
    child = """
module \\top.{name}
  wire width 2 input 0 \\{a}
  wire width 1 input 1 \\{unused}
  wire width 2 output 2 \\{y}
connect \\{y} \\{a}
end
"""
    top = """
module \\top
  wire width 2 input 0 \\i
  wire width 2 output 1 \\o1
  wire width 2 output 2 \\o2
  cell \\top.one \\one
    connect \\a \\i
    connect \\u 1'0
    connect \\y \\o1
  end
  cell \\top.two \\two
    connect \\b \\i
    connect \\v 1'1
    connect \\z \\o2
  end
end
"""
    text = deduplicate(
        top + child.format(name="one", a="a", unused="u", y="y") + child.format(name="two", a="b", unused="v", y="z")
    )
    assert modules(text) == ["\\top", "\\one"]
    assert text.count("connect \\a \\i") == 2 and "connect \\u 1'1" in text and "connect \\y \\o2" in text
