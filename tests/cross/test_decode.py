"""The trained nano-k3 decodes on its RTL exactly what the integer twin decodes.

The compiled simulation is the one that ``nanok3 generate --on rtl`` and ``make demo`` use, so it is built once.
"""

from functools import cache
from pathlib import Path

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
def nano():
    """(checkpoint, chip, compiled simulation)."""
    loaded = common.load("nano-k3", None)
    chip = rtl.make(rtl.parameters("nano-k3", None, loaded))
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


def check(text, count, tmp_path: Path, logits: bool, seed: int = 1):
    """Decode on the chip and in the twin; returns the chip's run."""
    loaded, chip, build = nano()
    prompt = loaded.tokenizer.encode(text).ids
    image.save(tmp_path / rtl.IMAGE, rtl.image_words(chip, loaded))
    tokens, values = twin_run(loaded, prompt, count)
    run = decode(build, tmp_path / rtl.IMAGE, prompt, count, logits=logits, seed=seed)
    assert run.tokens == tokens
    if logits:
        np.testing.assert_array_equal(np.array(run.logits), values)
    counters = run.counters
    for unit in ("array", "vector", "kda", "mla", "router"):
        assert sum(counters[unit].values()) == counters["cycles"]
    return run


def test_nano_decodes_16_tokens_with_logits(tmp_path):
    check(PROMPTS[0], 16, tmp_path, logits=True)


@pytest.mark.slow
@pytest.mark.parametrize("text", PROMPTS)
def test_nano_decodes_64_tokens(text, tmp_path):
    check(text, 64, tmp_path, logits=False)


@pytest.mark.slow
def test_nano_fills_its_context(tmp_path):
    """256 positions with every position's logits; the seeds of the two runs start from other register contents."""
    loaded = nano()[0]
    count = 257 - len(loaded.tokenizer.encode(PROMPTS[1]).ids)
    first = check(PROMPTS[1], count, tmp_path, logits=True, seed=1)
    second = check(PROMPTS[1], count, tmp_path, logits=True, seed=2)
    assert first.logits == second.logits and first.edges[1:] != []
