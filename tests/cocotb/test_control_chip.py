"""The whole chip on Verilator decodes exactly what the integer twin decodes, whatever its host does.

Factors of a run: a stall on each of the five channels, teacher-forced or free, logits streamed or not; and the seed of
the start values.  ``make verify`` has all combinations, ``make test`` a sixteenth: every three factors crossed.
"""

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
import torch

from flow import rtl
from golden.fixed.numbers import ints
from golden.fixed.twin import Twin
from golden.fixed.weights import chip_weights
from golden.model import build_model
from hw import image
from hw.control.registers import Flag
from hw.params import from_preset
from sim import verilator

BENCH = "tests.cocotb.bench_control_chip"
CHANNELS = ("image", "prompt", "tokens", "logits", "lite")
FACTORS = (*CHANNELS, Flag.TEACHER_FORCED, Flag.STREAM_LOGITS)
SEEDS = (1, 2)


def everything(seed):
    """All combinations of the factors."""
    return list(product((0, 1), repeat=len(FACTORS)))


def selection(seed):
    """Eight combinations; those of two seeds are each other's opposites."""
    rows = ((a, b, c, a ^ b, a ^ c, b ^ c, a ^ b ^ c) for a, b, c in product((0, 1), repeat=3))
    return [tuple(level ^ (seed == SEEDS[1]) for level in row) for row in rows]


def test_selection_crosses_every_three_factors():
    rows = [(seed, *row) for seed in SEEDS for row in selection(seed)]
    for chosen in combinations(range(1 + len(FACTORS)), 3):
        assert len({tuple(row[i] for i in chosen) for row in rows}) == 8


class Chip:
    """A chip with random weights, its image and its twin."""

    def __init__(self, preset, rows, positions, folder):
        p = from_preset(preset)
        self.p = replace(p, array_rows=rows or p.array_rows, mla_positions=positions or p.mla_positions)
        model = build_model(self.p.model, seed=self.p.array_rows, dtype=torch.float64)
        weights = chip_weights(self.p.model, {name: value.numpy() for name, value in model.state_dict().items()})
        self.twin = Twin(self.p.model, weights)
        self.design = rtl.make(self.p)
        self.image = folder / rtl.IMAGE
        image.save(self.image, image.pack(self.design.program.image(weights), self.design.shape, self.design.sizes))

    def run(self, prompt, count, flags, stalls):
        """A run as the bench takes it, with the twin's tokens and the logits of every position."""
        state, forced = self.twin.init_state(), bool(flags & Flag.TEACHER_FORCED)
        fed, tokens, logits = list(prompt), [], []
        for position in range(len(prompt) if forced else len(prompt) + count - 1):
            values = self.twin.step(ints([fed[position]]), state)[0]
            logits.append(values.tolist())
            if forced or position >= len(prompt) - 1:
                tokens.append(int(np.argmax(values)))
                fed.append(tokens[-1])
        return dict(prompt=prompt, count=count, flags=int(flags), tokens=tokens, logits=logits, stalls=stalls)

    def runs(self, rows, rng):
        """Runs of some combinations with random prompts of two tokens; those without an image stall first."""
        made = []
        for row in sorted(rows):
            on = [factor for factor, level in zip(FACTORS, row, strict=True) if level]
            prompt = rng.integers(0, self.p.model.vocab_size, 2).tolist()
            flags = sum(factor for factor in on if factor not in CHANNELS)
            made.append(self.run(prompt, 2, flags, [factor for factor in on if factor in CHANNELS]))
        return made

    def build(self, memories):
        """The compiled chip: the one behind ``nanok3 generate --on rtl``, or one whose memories can be read."""
        if not memories:
            return rtl.compiled(self.design)
        sources = rtl.sources(rtl.emitted(self.design))
        return verilator.build(sources, rtl.TOP, folder=rtl.SIMULATIONS, memories=True)


def check_cycles(runs, counted):
    """Stalled outputs cost cycles; nothing else does, neither other stalls nor what is computed."""
    free: dict[int, set[int]] = {flags: set() for flags in range(4)}
    longer = {"tokens": 0, "logits": 0}
    for run, (cycles, token_stalls) in zip(runs, counted, strict=True):
        outputs = {"tokens", "logits"} if run["flags"] & Flag.STREAM_LOGITS else {"tokens"}
        assert "tokens" in run["stalls"] or not token_stalls
        if not outputs & set(run["stalls"]):
            free[run["flags"]].add(cycles)
    assert all(len(cycles) == 1 for cycles in free.values()), free
    for run, (cycles, _) in zip(runs, counted, strict=True):
        (least,) = free[run["flags"]]
        assert cycles >= least
        for name in set(longer) & set(run["stalls"]):
            longer[name] += cycles > least
    assert all(longer.values()), longer


def check_start_values(reports, memories):
    """Two seeds start from other registers and other memories."""
    one, two = reports
    assert one["outputs"] != two["outputs"]
    differ = [one["memories"][path] != two["memories"][path] for path in one["memories"]]
    assert len(differ) > 10 and sum(differ) > 0.9 * len(differ) if memories else not differ


RUNS = "start_values", "stalled_runs"
MISUSE = "resets", "refusals"
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "preset,rows,positions,rows_of,memories",
    [
        pytest.param("micro-k3", None, None, selection, False, id="micro-k3"),
        pytest.param("micro-k3", None, None, everything, False, id="micro-k3-everything", marks=SLOW),
        pytest.param("micro-k3", 8, 1, everything, True, id="micro-k3-8x1-everything", marks=SLOW),
        pytest.param("micro-k3", 8, 4, selection, False, id="micro-k3-8x4", marks=SLOW),
        pytest.param("nano-k3", None, None, selection, False, id="nano-k3", marks=SLOW),
    ],
)
def test_chip_equals_twin(preset, rows, positions, rows_of, memories, tmp_path):
    chip = Chip(preset, rows, positions, tmp_path)
    build, rng = chip.build(memories), np.random.default_rng(7)
    given = {"image": str(chip.image), "vocab": chip.p.model.vocab_size, "positions": chip.p.model.max_positions}
    all_runs, counted, reports = [], [], []
    for seed in SEEDS:
        runs = chip.runs(rows_of(seed), rng)
        thorough = rows_of is everything
        tests = RUNS + MISUSE if thorough or seed == SEEDS[0] else RUNS
        parameters = {**given, "runs": runs, "thorough": thorough}
        (done,) = build.simulate(BENCH, parameters=parameters, seeds=[seed], tests=tests, timeout=3600)
        assert done.tests == tests
        all_runs += runs
        counted += done.reports["counted"]
        reports.append(done.reports)
    check_cycles(all_runs, counted)
    check_start_values(reports, memories)


@SLOW
@pytest.mark.parametrize("what,reason", [("logits", "logits of position 2"), ("tokens", "AssertionError")])
def test_a_wrong_expectation_is_noticed(what, reason, tmp_path):
    """One logit that is an ulp off, or another token: the bench fails."""
    chip = Chip("micro-k3", None, None, tmp_path)
    run = chip.run([1, 2, 3], 2, Flag.STREAM_LOGITS, [])
    wrong = dict(run, logits=[list(row) for row in run["logits"]], tokens=list(run["tokens"]))
    if what == "logits":
        wrong["logits"][2][509] += 1
    else:
        wrong["tokens"][1] ^= 1
    parameters = {"image": str(chip.image), "runs": [run, wrong]}
    with pytest.raises(verilator.BenchFailed, match=reason):
        rtl.compiled(chip.design).simulate(BENCH, parameters=parameters, tests=["stalled_runs"])
