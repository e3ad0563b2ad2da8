"""The trained nano-k3 decodes on its RTL exactly what the integer twin decodes.

The compiled simulation is the one that ``nanok3 generate --on rtl`` and ``make demo`` use, so it is built once.
"""

from functools import cache

import numpy as np
import pytest

from flow import rtl
from flow.commands import common
from golden.fixed.numbers import ints
from golden.fixed.twin import Twin
from golden.fixed.weights import chip_weights
from hw import image
from sim.decode import decode

PROMPTS = ("Return the ", "class ", "If the file is not found")


@cache
def made(preset):
    """(checkpoint or seeded weights, chip, compiled simulation) of a preset."""
    loaded = common.load(preset, None)
    chip = rtl.make(rtl.parameters(preset, None, loaded))
    return loaded, chip, rtl.compiled(chip)


def twin_run(loaded, prompt, count):
    """(tokens, logits of every position) of the twin."""
    twin = Twin(loaded.cfg, chip_weights(loaded.cfg, loaded.state))
    state = twin.init_state()
    fed, logits = list(prompt), []
    for position in range(len(prompt) + count - 1):
        logits.append(twin.step(ints([fed[position]]), state)[0])
        if position >= len(prompt) - 1:
            fed.append(int(np.argmax(logits[-1])))
    return fed[len(prompt) :], np.stack(logits)


def check(preset, prompt, count, tmp_path, logits, seed=1):
    """Decode on the chip and in the twin; returns the chip's run."""
    loaded, chip, build = made(preset)
    image.save(tmp_path / rtl.IMAGE, rtl.image_words(chip, loaded))
    tokens, values = twin_run(loaded, prompt, count)
    run = decode(build, tmp_path / rtl.IMAGE, prompt, count, logits=logits, seed=seed)
    assert run.tokens == tokens and len(tokens) == count
    if logits:
        np.testing.assert_array_equal(np.array(run.logits), values)
    for unit in ("array", "vector", "kda", "mla", "router"):
        assert sum(run.counters[unit].values()) == run.counters["cycles"]
    return run


def ids(text):
    return made("nano-k3")[0].tokenizer.encode(text).ids


def test_nano_decodes_16_tokens_with_logits(tmp_path):
    check("nano-k3", ids(PROMPTS[0]), 16, tmp_path, logits=True)


def test_a_chip_reset_at_work_begins_anew(tmp_path):
    """A soft reset leaves the image and no trace of the run; a hard one leaves nothing (asserted by the bench)."""
    loaded, chip, build = made("nano-k3")
    image.save(tmp_path / rtl.IMAGE, rtl.image_words(chip, loaded))
    given = {"image": str(tmp_path / rtl.IMAGE), "prompt": [5], "count": 1, "logits": False, "resets": True}
    (run,) = build.simulate("sim.decode_bench", parameters={**given, "progress": str(tmp_path / "progress")}, seeds=[1])
    assert run.reports["tokens"] == twin_run(loaded, [5], 1)[0] and run.reports["ended"] > run.reports["edges"][0]


@pytest.mark.slow
@pytest.mark.parametrize("text", PROMPTS)
def test_nano_decodes_64_tokens(text, tmp_path):
    check("nano-k3", ids(text), 64, tmp_path, logits=True)


@pytest.mark.slow
def test_nano_fills_its_context(tmp_path):
    """256 positions, from two sets of start values, in the same cycles."""
    prompt = ids(PROMPTS[1])
    one, two = (check("nano-k3", prompt, 257 - len(prompt), tmp_path, logits=True, seed=seed) for seed in (1, 2))
    assert one.before_reset != two.before_reset
    assert len(one.logits) == 256
    # clock edges count from the simulation's start, where the host's first transfer may shift by one: compare distances
    assert (one.tokens, one.logits, one.cycles(), one.counters) == (two.tokens, two.logits, two.cycles(), two.counters)


@pytest.mark.slow
def test_micro_fills_its_context(tmp_path):
    check("micro-k3", [7], 64, tmp_path, logits=True)
