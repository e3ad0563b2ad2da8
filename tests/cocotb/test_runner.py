"""The cocotb runner: a bench that passes, benches that must fail, random start values, reuse of builds."""

import pytest

from hw.memory.sram import Sram
from sim import verilator
from tests.cocotb.runner import BenchFailed, BuildFailed, build, run

SHAPE = {"depth": 16, "width": 40}


def make():
    return build(Sram(**SHAPE), "sram_example")


def test_passing_bench_and_random_contents():
    one, two, again = run(
        Sram(**SHAPE), "sram_example", "tests.cocotb.bench_example", parameters=SHAPE, seeds=(1, 2, 1)
    )
    assert one.tests == ("random_accesses", "unwritten_word")
    assert one.reports == again.reports
    assert one.reports != two.reports


@pytest.mark.parametrize(
    "test,reason", [("wrong_value", "failed: .*wrong_value"), ("crash", "crashed"), ("hang", "stopped after 3 s")]
)
def test_failing_bench_is_noticed(test, reason):
    with pytest.raises(BenchFailed, match=reason):  # a busy machine may need more than 3 s to start the others
        make().simulate("tests.cocotb.bench_must_fail", tests=[test], timeout=3 if test == "hang" else 120)


def test_bench_without_tests_is_noticed():
    with pytest.raises(BenchFailed):
        make().simulate("tests.cocotb.bench_example", tests=["no_such_test"], parameters=SHAPE)


def test_second_build_compiles_nothing(monkeypatch):
    made = make()
    monkeypatch.setattr(verilator, "_compile", lambda *a: pytest.fail("compiled again"))
    assert make() == made
    with pytest.raises(pytest.fail.Exception):
        build(Sram(**{**SHAPE, "width": 41}), "sram_example")


def test_broken_verilog_is_noticed(tmp_path):
    (tmp_path / "broken.v").write_text("module broken(input clk); assign x = y; endmodule")
    with pytest.raises(BuildFailed, match="broken"):
        build(tmp_path / "broken.v", "broken")
