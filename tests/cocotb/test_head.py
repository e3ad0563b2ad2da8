"""Head under Verilator: nano-k3's size and the smallest one (tests/hw has another)."""

from dataclasses import replace

import pytest

from hw.params import from_preset
from hw.units.head import Head
from tests.cocotb.runner import run


@pytest.mark.parametrize("rows,vocab,seeds", [(16, 512, (1,)), (8, 32, (2, 3))])
def test_head(rows, vocab, seeds):
    nano = from_preset("nano-k3")
    p = replace(nano, array_rows=rows, model=replace(nano.model, vocab_size=vocab))
    run(
        Head(p),
        f"head_{rows}x{vocab}",
        "tests.cocotb.bench_head",
        parameters={"array_rows": rows, "vocab_size": vocab},
        seeds=seeds,
    )
