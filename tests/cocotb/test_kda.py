"""The KDA engine under Verilator, in its sizes: two heads and one."""

import pytest

from hw.params import from_preset
from hw.units.kda import KdaEngine
from tests.cocotb.runner import run


@pytest.mark.parametrize("preset,tokens,seeds", [("nano-k3", 4, (1, 2)), ("micro-k3", 6, (3,))])
def test_kda_engine(preset, tokens, seeds):
    run(
        KdaEngine(from_preset(preset)),
        f"kda_engine_{preset.split('-')[0]}",
        "tests.cocotb.bench_kda",
        parameters={"preset": preset, "tokens": tokens},
        seeds=seeds,
        memories=True,
    )
