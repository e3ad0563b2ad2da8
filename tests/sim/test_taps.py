"""The table of the chip's taps: complete, in the twin's order and shapes, and in step with the program."""

import dataclasses
from functools import cache

import numpy as np
import pytest
import torch

from golden.compare import RecordedStepper, TwinStepper, compare
from golden.config import load_preset
from golden.fixed.numbers import NRM, SIG, UNIT, VEC
from golden.model import build_model
from golden.taps import Recorder
from hw.layouts import Combine, Dest, Func, Source, VectorOp
from hw.layouts import Out as To
from hw.params import Params, from_preset
from hw.program import compile_program
from sim import taps
from sim.taps import Place, Stage

PRESETS = ("micro-k3", "nano-k3")
FUNCTIONS = {Func.GATE: SIG, Func.DECAY: UNIT, Func.LINEAR: VEC, Func.CONV: VEC, Func.SITU: VEC}


@cache
def twin_run(preset, positions=3):
    """Taps of every position of the twin on random weights."""
    cfg = load_preset(preset)[0]
    twin, runs = TwinStepper(cfg, build_model(cfg, seed=4, dtype=torch.float64).state_dict()), []
    for token in (5, 17, 300)[:positions]:
        runs.append(Recorder())
        twin.step(token, runs[-1])
    return [run.values for run in runs]


@pytest.mark.parametrize("preset", PRESETS)
def test_the_chip_has_every_tap_of_the_twin_in_its_shape(preset):
    table = {stage.name: stage for stage in taps.stages(from_preset(preset))}
    for position, values in enumerate(twin_run(preset)):
        assert set(table) == set(values)
        for name, value in values.items():
            shape = tuple(position + 1 if n == -1 else n for n in table[name].shape)
            assert value.shape == (1, *shape), name


@pytest.mark.parametrize("preset", PRESETS)
def test_what_has_no_register_is_listed(preset):
    """Wires and sums made by the bench are exactly those that the list names."""
    found = {
        s.name.split(".", 2)[-1]
        for s in taps.stages(from_preset(preset))
        if s.place in taps.WIRES or s.plus is not None
    }
    assert found == set(taps.WITHOUT_REGISTER)


@pytest.mark.parametrize(
    "preset,rows,changes",
    [
        ("micro-k3", 16, {}),
        ("micro-k3", 8, {"num_experts_per_token": 1, "num_attention_heads": 2}),
        ("nano-k3", 16, {}),
        ("nano-k3", 32, {"intermediate_size": 96, "num_shared_experts": 1}),
    ],
)
def test_places_and_formats_are_those_of_the_commands(preset, rows, changes):
    p = Params(dataclasses.replace(from_preset(preset).model, **changes), array_rows=rows)
    program = compile_program(p)
    found = taps.readings(p, program)
    by_name = {stage.name: stage for stage in taps.stages(p)}
    assert len({(r.name, r.part) for r in found}) == len(found) >= len(by_name)
    for reading in found:
        stage, command = by_name[reading.name], program.units[reading.unit][reading.count - 1].command
        check_place(stage, command)
    for stage in by_name.values():
        lanes = [r.size for r in found if r.name == stage.name]
        if stage.place == Place.VECTOR:
            assert sum(lanes) >= np.prod(stage.shape) > sum(lanes) - rows, stage.name


def check_place(stage, command):
    """A command writes what the table says, in that format."""
    if stage.place == Place.VECTOR:
        assert command["dest"] in (Dest.T0, Dest.T1, Dest.T2, Dest.T3) and stage.fmt == FUNCTIONS[command["func"]]
    elif stage.place == Place.SUMS:
        assert command["func"] == Func.HEAD or command["dest"] in (Dest.P, Dest.P_ADD)
    elif stage.place == Place.PREFIX and stage.unit == "array":
        assert command["func"] == Func.EMBED or command["dest"] in (Dest.P, Dest.P_ADD)
    elif stage.place == Place.PREFIX:
        assert command["src"] == Source.P
    elif stage.place == Place.MIXTURE:
        assert command["src"] == Source.MIX
        assert (command["combine"] == Combine.EXPERTS) == stage.name.endswith(".routed")
    elif stage.place == Place.WORK:
        assert command["op"] == VectorOp.FLOW and command["out"] == To.SLOTS and stage.fmt == NRM
    elif stage.place in (Place.KEY, Place.QUERY):
        assert command["out"] == (To.KDA_K if stage.place == Place.KEY else To.KDA_Q)
    elif stage.place in (Place.LATENT, Place.SHARED_KEY):
        assert command["out"] == To.CACHE
    else:
        assert stage.unit in ("kda", "mla", "router")


def test_a_stage_that_the_program_does_not_have_is_refused():
    p = from_preset("micro-k3")
    program = compile_program(p)
    program.units["kda"][1].label = "layer.0.reed"
    with pytest.raises(ValueError, match=r"layer\.0\.beta: 0 commands 'layer\.0\.read' of unit kda"):
        taps.readings(p, program)


def test_raw_lanes_become_values():
    signed = Stage("a", "array", ("x",), Place.VECTOR, VEC, (3,))
    raw = np.array([1 << 13, 0xFFFFFF, 0x800000, 7])  # a lane more than the stage has
    np.testing.assert_array_equal(signed.value(raw), [[1.0, -(2.0**-13), -1024.0]])
    gate = Stage("a", "array", ("x",), Place.VECTOR, SIG, (2,))
    np.testing.assert_array_equal(gate.value(np.array([1 << 20, 0xE00001])), [[1.0, 2.0**-20]])  # bits above SIG
    turned = Stage("a", "mla", ("x",), Place.SCORES, VEC, (2, -1), axes=(1, 0))
    np.testing.assert_array_equal(turned.value(np.arange(6) << 13), [[[0, 2, 4], [1, 3, 5]]])
    whole = Stage("a", "router", ("x",), Place.EXPERTS, None, (2,))
    np.testing.assert_array_equal(whole.value(np.array([3, 1])), [[3, 1]])
    with pytest.raises(ValueError):
        signed.value(raw[:2])


def test_a_recorded_run_is_compared_and_takes_no_other_tokens():
    cfg = load_preset("micro-k3")[0]
    state = build_model(cfg, seed=4, dtype=torch.float64).state_dict()
    tokens, runs = [5, 17, 300], [dict(values) for values in twin_run("micro-k3")]
    same = compare(TwinStepper(cfg, state), RecordedStepper(tokens, runs), tokens)
    assert same.divergence is None and same.same_choice == 3
    wrong = runs[1]["layer.3.scores"].copy()
    wrong[0, 0, 1] += 0.25
    runs[1]["layer.3.scores"] = wrong
    other = compare(TwinStepper(cfg, state), RecordedStepper(tokens, runs), tokens)
    assert (other.position, other.divergence.name, other.divergence.index) == (1, "layer.3.scores", (0, 0, 1))
    with pytest.raises(ValueError, match="token 5 here, not 6"):
        RecordedStepper(tokens, runs).step(6)
    short = RecordedStepper([], [])
    with pytest.raises(ValueError, match="token None"):
        short.step(5)
