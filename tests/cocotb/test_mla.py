"""The MLA engine under Verilator: nano-k3's, and one with a head and twice as many positions at a time.

tests/hw has other numbers of positions.
"""

import pytest

from hw.units.mla import MlaEngine
from tests.cocotb.runner import run
from tests.hw.mla_reference import params

SIZES = [
    ("nano-k3", None, None, (1,)),
    ("micro-k3", 4, None, (2, 3)),
]


@pytest.mark.parametrize("preset,positions,most,seeds", SIZES)
def test_mla_engine(preset, positions, most, seeds):
    p = params(preset, positions, most)
    run(
        MlaEngine(p),
        f"mla_engine_{p.model.num_attention_heads}x{p.mla_positions}x{p.model.max_positions}",
        "tests.cocotb.bench_mla",
        parameters={"preset": preset, "mla_positions": positions, "max_positions": most},
        seeds=seeds,
    )
