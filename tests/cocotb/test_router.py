"""The router under Verilator, in sizes with one and two picks, odd, few and most experts, and scaling factors."""

import pytest

from hw.units.router import Router
from tests.cocotb.router_sizes import make_params
from tests.cocotb.runner import run

SIZES = {"nano": [0, 1], "doubled": [2], "odd": [], "most": [], "two": []}  # and the small cases that each can hold


@pytest.mark.parametrize("size", SIZES)
def test_router(size):
    runs = run(
        Router(make_params(size)),
        f"router_{size}",
        "tests.cocotb.bench_router",
        parameters={"size": size},
        seeds=(1, 2) if size == "nano" else (3,),
    )
    assert all(done.reports["edges"] == 4 * 64 and done.reports["cases"] == SIZES[size] for done in runs)
