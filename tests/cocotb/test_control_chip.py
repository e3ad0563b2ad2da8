"""The whole chip on Verilator decodes exactly what the integer twin decodes."""

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
from hw.params import Params, from_preset
from hw.top import Nanok3


def twin_run(p, weights, prompt, count, flags, **more):
    """A run as the twin sees it: tokens put out, logits of every position."""
    twin = Twin(p.model, weights)
    state = twin.init_state()
    forced = bool(flags & Flag.TEACHER_FORCED)
    fed, tokens, logits = list(prompt), [], []
    for position in range(len(prompt) if forced else len(prompt) + count - 1):
        values = twin.step(ints([fed[position]]), state)[0]
        logits.append([int(v) for v in values])
        if forced or position >= len(prompt) - 1:
            tokens.append(int(np.argmax(values)))
            fed.append(tokens[-1])
    return {"prompt": prompt, "count": count, "flags": int(flags), "tokens": tokens, "logits": logits, **more}


SIZES = [
    ("micro-k3", 16, 2),
    pytest.param("micro-k3", 8, 4, marks=pytest.mark.slow),
    pytest.param("nano-k3", 16, 4, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("preset,rows,positions", SIZES)
def test_chip_equals_twin(preset, rows, positions, tmp_path):
    p = Params(from_preset(preset).model, array_rows=rows, mla_positions=positions)
    model = build_model(p.model, seed=rows, dtype=torch.float64)
    weights = chip_weights(p.model, {name: value.numpy() for name, value in model.state_dict().items()})
    chip = Nanok3(p)
    words = image.pack(chip.program.image(weights), chip.shape, chip.sizes)
    image.save(tmp_path / "chip.img", words)
    rng = np.random.default_rng(rows)

    def prompt(length):
        return [int(token) for token in rng.integers(0, p.model.vocab_size, length)]

    runs = [
        twin_run(p, weights, prompt(3), 4, Flag.STREAM_LOGITS, pause=False),
        twin_run(p, weights, prompt(2), 3, 0, pause=False),
        twin_run(p, weights, prompt(3), 1, Flag.STREAM_LOGITS, pause=True, reset=700),
        twin_run(p, weights, prompt(4), 0, Flag.TEACHER_FORCED, pause=True),
        twin_run(p, weights, prompt(2), 0, Flag.TEACHER_FORCED | Flag.STREAM_LOGITS, pause=False),
    ]
    given = {"image": str(tmp_path / "chip.img"), "runs": runs}
    result = rtl.compiled(chip).simulate("tests.cocotb.bench_control_chip", parameters=given, timeout=900)
    print(result[0].reports)
