"""The cycle simulator equals the RTL: tokens, the clock cycle of each, streamed logits and all counters.

Image, prompt, tokens and logits are stalled by the same seeded pauses on both sides.  'make crosscheck' runs the long
ones too: the whole context of nano-k3 and chips of other rows, lanes and banks.
"""

import dataclasses
import json
from functools import cache

import pytest
import torch
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring

from flow import cli, rtl
from golden.fixed.weights import chip_weights
from golden.model import build_model
from hw import image
from hw.params import Params, from_preset
from hw.timing import timing
from sim.crosscheck import Trial, differences, on_rtl, plan
from sim.fast import FastMachine
from sim.run import Request
from sim.timing import Timer
from tests.cocotb.runner import build

TINY = {
    "num_hidden_layers": 2, "kda_layers": (1,), "full_attn_layers": (2,), "vocab_size": 64,
    "num_experts": 2, "max_positions": 16,
}  # fmt: skip


def tiny():
    """The smallest chip that has every unit."""
    model = dataclasses.replace(from_preset("micro-k3").model, **TINY)
    return Params(model, array_rows=8, mla_positions=1)


def variant(preset, rows, positions, **model):
    """A preset with other sizes; those of the model change the lanes."""
    model = dataclasses.replace(from_preset(preset).model, **model)
    return Params(model, array_rows=rows, mla_positions=positions)


@cache
def contents(p):
    """Seeded weights as memory contents, and the chip they are for."""
    chip = rtl.make(p)
    model = build_model(p.model, seed=3, dtype=torch.float64)
    weights = chip_weights(p.model, {name: value.numpy() for name, value in model.state_dict().items()})
    return chip, chip.program.image(weights)


def compare(p, trials, made=None, t=None):
    """What differs between simulator and RTL over some runs of a chip.

    ``made``: another compiled simulation than the chip's own; ``t``: another timing.
    """
    chip, memories = contents(p)
    words = image.pack(memories, chip.shape, chip.sizes)
    timer = Timer(p, chip.program, t or timing(p))
    planned = plan(timer, trials, FastMachine(p, chip.program, memories), len(words))
    return planned, differences(planned, on_rtl(made or rtl.compiled(chip), words, planned))


def prompt(p, length, seed=5):
    """Token ids."""
    return [(seed + 37 * i) % p.model.vocab_size for i in range(length)]


def trials(p):
    """Free-running and teacher-forced, logits off and on, every stream with pauses."""
    vocab = p.model.vocab_size
    long = 2 * vocab  # a pause in which a position's logits cannot all leave
    return [
        Trial(Request(prompt(p, 3), count=4), {"image": (1, 0.3)}),
        Trial(Request(prompt(p, 4, 2), forced=True), {"tokens": (2, 0.6, 700), "prompt": (3, 0.5)}, early=True),
        Trial(Request(prompt(p, 2, 9), count=3, logits=True)),
        Trial(Request(prompt(p, 3, 1), count=2, logits=True), {"logits": (4, 0.5), "tokens": (5, 0.5, long)}),
        Trial(Request(prompt(p, 3, 4), forced=True, logits=True), {"logits": (6, 0.3, 7)}, reload=vocab < 100),
    ]


def test_micro_k3():
    p = from_preset("micro-k3")
    planned, different = compare(p, trials(p))
    assert not different
    stalled = planned[1].result.counters()
    assert stalled["token_stalls"] > 0  # the pauses did hold the chip up


class Hesitant(wiring.Component):
    """A unit that begins every command one cycle late."""

    def __init__(self, unit):
        self.unit = unit
        super().__init__(dict(unit.signature.members))

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = self.unit
        waited = Signal()
        m.d.sync += waited.eq(self.valid & ~self.take)
        for name, member in self.unit.signature.members.items():
            outer, inner = getattr(self, name), getattr(self.unit, name)
            if name == "valid":
                outer = outer & waited
            m.d.comb += inner.eq(outer) if member.flow == wiring.In else outer.eq(inner)
        return m


def test_one_cycle_more_in_a_unit_of_the_rtl_is_found():
    """The comparison can fail: the same tokens, other cycles. Told of the change, the simulator is exact again."""
    p = tiny()
    chip = rtl.make(p)
    chip.units["mla"] = Hesitant(chip.units["mla"])
    made = build(chip, rtl.TOP)
    _, different = compare(p, trials(p)[:1], made)
    found = {line.split(": ")[1] for line in different}
    assert {"edges", "counters"} <= found and "tokens" not in found
    t = timing(p)
    slower = dataclasses.replace(t, mla=dataclasses.replace(t.mla, pipeline=t.mla.pipeline + 1))
    assert not compare(p, trials(p), made, slower)[1]


VARIANTS = [
    ("micro-k3", 8, 1, TINY),
    ("micro-k3", 8, 4, {}),
    ("micro-k3", 16, 1, {}),
    ("micro-k3", 16, 8, {"num_experts_per_token": 1, "max_positions": 128}),
    ("micro-k3", 32, 2, {"kda_num_heads": 2}),  # 64 lanes
    ("nano-k3", 8, 4, {}),
    ("nano-k3", 32, 8, {}),
]


@pytest.mark.slow
@pytest.mark.parametrize("preset,rows,positions,model", VARIANTS)
def test_other_rows_lanes_and_banks(preset, rows, positions, model):
    p = variant(preset, rows, positions, **model)
    assert not compare(p, [*trials(p), Trial(Request(prompt(p, 2), count=3 * positions + 2))])[1]


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["micro-k3", "nano-k3"])
def test_whole_context(preset):
    """Every position, free-running; then the same with stalls, and once more with logits."""
    p = from_preset(preset)
    size = p.model.max_positions
    whole = [
        Trial(Request(prompt(p, 3), count=size - 2)),
        Trial(Request(prompt(p, size), forced=True), {"tokens": (1, 0.3, 900), "prompt": (2, 0.4)}),
        Trial(
            Request(prompt(p, size // 4), count=size // 4, logits=True), {"logits": (3, 0.4), "tokens": (4, 0.5, 99)}
        ),
    ]
    planned, different = compare(p, whole)
    assert not different
    assert len(planned[0].result.edges) == size - 2


@pytest.mark.slow
def test_the_simulator_is_at_least_200_times_as_fast_as_the_rtl(capsys):
    """Both on one core, as one command measures them."""
    assert cli.run(["sim", "If ", "--tokens", "40", "--config", "nano-k3", "--bench", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)["metrics"]
    assert measured["sim__speed__ratio__simulator"] >= 200
    assert measured["sim__speed__ratio__timing_only"] > measured["sim__speed__ratio__simulator"]
