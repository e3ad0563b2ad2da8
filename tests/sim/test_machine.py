"""The compiled program on the packed image equals the twin, in every order that its dependencies allow."""

import numpy as np
import pytest
import torch

from golden.fixed.numbers import ints
from golden.fixed.twin import Twin
from golden.fixed.weights import chip_weights
from golden.model import build_model
from hw.params import Params, from_preset
from hw.program import UNITS, compile_program
from sim.machine import Machine


def chip(p: Params, seed: int):
    model = build_model(p.model, seed=seed, dtype=torch.float64)
    return chip_weights(p.model, {k: v.numpy() for k, v in model.state_dict().items()})


@pytest.mark.parametrize(
    "preset,rows,steps",
    [("micro-k3", 16, 5), ("micro-k3", 8, 3), ("nano-k3", 16, 3), ("nano-k3", 32, 2), ("nano-k3", 8, 1)],
)
def test_program_equals_twin(preset, rows, steps):
    p = Params(from_preset(preset).model, array_rows=rows)
    weights = chip(p, seed=rows)
    program = compile_program(p)
    machine = Machine(p, program, program.image(weights), seed=rows)
    twin = Twin(p.model, weights)
    state = twin.init_state()
    rng = np.random.default_rng(3)
    for token in rng.integers(0, p.model.vocab_size, steps):
        np.testing.assert_array_equal(machine.step(int(token)), twin.step(ints([token]), state)[0])


def test_every_order_gives_the_same_logits():
    p = from_preset("micro-k3")
    program = compile_program(p)
    image = program.image(chip(p, seed=5))
    runs = [[Machine(p, program, image, seed=s).step(t) for t in (7,)] for s in range(12)]
    for run in runs[1:]:
        np.testing.assert_array_equal(run, runs[0])


def test_a_dropped_dependency_is_noticed():
    """The check above can fail: a program whose commands do not wait for the vector unit gives other logits."""
    p = from_preset("micro-k3")
    program = compile_program(p)
    image = program.image(chip(p, seed=5))
    right = Machine(p, program, image, seed=1).step(7)
    for unit in UNITS:
        for step in program.units[unit]:
            step.need.pop("vector", None)
    assert any((Machine(p, program, image, seed=s).step(7) != right).any() for s in range(4))
