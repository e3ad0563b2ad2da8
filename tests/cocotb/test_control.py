"""Control (registers, loader, token loop, counters) on Verilator, in several shapes."""

import dataclasses

import pytest

from hw.control.control import Control
from hw.image import Section
from hw.layouts import Space
from hw.params import from_preset
from hw.program import UNITS
from tests.cocotb.runner import run

# memories: (words, bits) of each; short, so that many images can be loaded
SHAPES = {
    "small": ("micro-k3", {"max_positions": 8, "vocab_size": 32}, {"WEIGHTS": (3, 70), "VECTOR": (2, 32)}),
    "whole": ("nano-k3", {}, {"WEIGHTS": (5, 64), "VECTOR": (1, 33), "LANE": (3, 1), "ROUTER": (2, 96)}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_control(shape):
    preset, changes, sizes = SHAPES[shape]
    p = from_preset(preset)
    p = dataclasses.replace(p, model=dataclasses.replace(p.model, **changes))
    sections = {space: Section(*sizes.get(space.name, (0, 32))) for space in Space.__members__.values()}
    given = {
        "vocab_size": p.model.vocab_size,
        "max_positions": p.model.max_positions,
        "shape": 0xC0FFEE42,
        "sizes": {space.name: dataclasses.astuple(section) for space, section in sections.items()},
    }
    control = Control(p, given["shape"], sections, UNITS)
    seeds = (1, 2) if shape == "small" else (3,)
    run(control, "control", "tests.cocotb.bench_control", parameters=given, seeds=seeds)
