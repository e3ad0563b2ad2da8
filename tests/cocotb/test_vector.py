"""The vector unit in Verilator: random programs, table edges, three sizes."""

import pytest

from hw.units.vector import VectorUnit
from tests.cocotb.runner import build
from tests.hw.vector_reference import params

CONSTANTS = 200
BENCH = "tests.cocotb.bench_vector"


@pytest.mark.parametrize("preset,commands", [("nano-k3", 250), ("micro-k3", 250), ("narrow-k3", 120)])
def test_vector(preset, commands):
    made = build(VectorUnit(params(preset), CONSTANTS), "vector")
    given = {"preset": preset, "commands": commands, "constants": CONSTANTS}
    runs = made.simulate(BENCH, parameters=given, seeds=(1, 2) if preset == "micro-k3" else (1,))
    assert all(run.reports["cycles"] > commands for run in runs)
