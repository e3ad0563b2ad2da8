"""The array unit on Verilator, in two sizes that differ in lanes, blocks and rows."""

import dataclasses

import pytest

from hw.params import from_preset
from hw.units.array import ArrayUnit
from tests.cocotb.runner import run


@pytest.mark.parametrize("preset,rows", [("nano-k3", 16), ("micro-k3", 8)])
def test_array(preset, rows):
    p = dataclasses.replace(from_preset(preset), array_rows=rows)
    runs = run(ArrayUnit(p), "array_unit", "tests.cocotb.bench_array", parameters={"preset": preset, "rows": rows})
    assert len(runs[0].tests) == 8
