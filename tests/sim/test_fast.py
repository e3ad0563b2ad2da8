"""The compiled executor equals the twin and the readable machine to the bit, saturations included."""

import dataclasses
import fnmatch
import tomllib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.checkpoint import load_preset_model
from golden.fixed import functions, mx
from golden.fixed.numbers import CTX, NRM, SATURATIONS, VEC, ints
from golden.fixed.twin import Twin
from golden.fixed.weights import chip_weights
from golden.model import build_model
from hw.image import ImageError, sections
from hw.layouts import Space
from hw.params import Params, from_preset
from hw.program import compile_program
from sim.fast import CompilerError, FastMachine, build
from sim.machine import Machine


def model(name, **changes):
    return dataclasses.replace(from_preset(name).model, **changes)


def random_weights(cfg, seed):
    """Seeded weights with no vector at its start value."""
    gen = torch.Generator().manual_seed(seed)
    state = build_model(cfg, seed=seed, dtype=torch.float64).state_dict()
    for key, t in state.items():
        if t.ndim == 1 or "res_proj" in key:
            t += 0.2 * torch.randn(t.shape, generator=gen, dtype=t.dtype)
    return chip_weights(cfg, {k: v.numpy() for k, v in state.items()})


def made(p, weights):
    program = compile_program(p)
    return FastMachine(p, program, program.image(weights))


def check_against_twin(p, weights, tokens):
    """All logits of a sequence, and the greedy token of each."""
    fast, twin = made(p, weights), Twin(p.model, weights)
    state = twin.init_state()
    for token in tokens:
        want = twin.step(ints([token]), state)[0]
        assert fast.step(int(token)) == want.argmax()
        np.testing.assert_array_equal(fast.logits(), want)


def random_tokens(p, count, seed):
    return np.random.default_rng(seed).integers(0, p.model.vocab_size, count)


# ---------------------------------------------------------------- whole models

VARIANTS = {
    "micro-k3": Params(model("micro-k3")),
    "rows of 8": Params(model("micro-k3"), array_rows=8),
    "rows of 32": Params(model("nano-k3"), array_rows=32),
    "one KDA head": Params(model("nano-k3", kda_num_heads=1)),
    "one MLA head, one expert": Params(model("nano-k3", num_attention_heads=1, num_experts_per_token=1)),
    "two heads on a narrow hidden state": Params(model("micro-k3", kda_num_heads=2, num_attention_heads=2)),
    "32 experts scaled, all layers MoE": Params(
        model("micro-k3", num_experts=32, routed_scaling_factor=2.828, first_k_dense_replace=0)
    ),
    "other epsilons and SiTU bound, dense only": Params(
        model(
            "micro-k3", rms_norm_eps=1e-3, mla_norm_eps=1e-4, l2_norm_eps=1e-2, activation_situ_linear_beta=7.0,
            first_k_dense_replace=5, intermediate_size=64,
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_equals_the_twin(name):
    p = VARIANTS[name]
    check_against_twin(p, random_weights(p.model, seed=len(name)), random_tokens(p, 5, seed=2))


@pytest.mark.parametrize("seed", range(3))
def test_equals_the_twin_on_other_weights(seed):
    p = from_preset("micro-k3")
    check_against_twin(p, random_weights(p.model, seed), random_tokens(p, 12, seed))


@cache
def trained():
    loaded = load_preset_model("nano-k3")
    assert loaded.source == "checkpoint nano-k3"
    return loaded, chip_weights(loaded.cfg, loaded.state)


def test_the_trained_model_decodes_64_tokens():
    loaded, weights = trained()
    prompt = loaded.tokenizer.encode("Return the ").ids
    fast = made(from_preset("nano-k3"), weights)
    out = list(fast.decode(prompt, 64))
    last = fast.logits()
    twin = Twin(loaded.cfg, weights)
    state = twin.init_state()
    fed = [*prompt, *out[:-1]]
    want = [twin.step(ints([token]), state)[0] for token in fed]
    assert out == [int(row.argmax()) for row in want[len(prompt) - 1 :]]
    np.testing.assert_array_equal(last, want[-1])
    fast.reset()
    for token, row in zip(fed, want, strict=True):
        fast.step(token)
        np.testing.assert_array_equal(fast.logits(), row)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["micro-k3", "nano-k3"])
def test_the_whole_context(name):
    p = from_preset(name)
    weights = trained()[1] if name == "nano-k3" else random_weights(p.model, seed=9)
    check_against_twin(p, weights, random_tokens(p, p.model.max_positions, seed=9))


# ---------------------------------------------------------------- images at the ends of the formats


def random_bits(rng, shape):
    return rng.integers(0, 256, shape)


def largest(rng, shape):
    """Every element +6, every constant near its format's end."""
    return np.full(shape, 0x77)


def lone_rows(rng, shape):
    """Random codes in the first row of each word, zeros in the others: few elements of a head carry its norm."""
    raw = random_bits(rng, shape)
    raw[:, 16:] = 0
    return raw


def corner_image(p, program, contents, scales):
    """Every memory filled by ``contents``, the matrices' scale codes drawn from ``scales``."""
    rng = np.random.default_rng(5)
    out = {}
    for space, size in sections(p, program).items():
        raw = contents(rng, (size.words, size.width // 8)).astype(np.uint8)
        if space == Space.WEIGHTS:
            raw[:, 16 * p.array_rows :] = rng.choice(scales, (size.words, p.array_rows))
        out[space] = [int.from_bytes(word.tobytes(), "little") for word in raw]
    return out


@pytest.mark.parametrize(
    "preset,contents,scales,clips",
    [
        ("micro-k3", random_bits, range(112, 122), {"cache"}),
        ("micro-k3", random_bits, range(118, 127), {"vec", "state", "cache", "query", "read"}),
        ("micro-k3", random_bits, range(124, 140), {"vec", "nrm", "state", "cache", "query", "read"}),
        ("micro-k3", random_bits, range(256), {"vec", "nrm", "state", "cache", "query", "read"}),
        ("micro-k3", lone_rows, range(256), {"key"}),
        ("micro-k3", largest, range(118, 127), {"vec", "nrm", "state", "cache", "query", "score"}),
        ("nano-k3", random_bits, range(118, 127), {"vec", "nrm", "state", "cache", "query", "read"}),
        ("nano-k3", largest, range(256), {"vec", "nrm", "state", "cache", "query", "score"}),
    ],
)
def test_equals_the_machine_where_formats_end(preset, contents, scales, clips):
    """Images that no checkpoint gives: together they clip every format that can clip (CTX cannot)."""
    p = from_preset(preset)
    program = compile_program(p)
    image = corner_image(p, program, contents, np.array(scales))
    fast, machine = FastMachine(p, program, image), Machine(p, program, image)
    SATURATIONS.clear()
    for token in (3, 400, 77):
        want = machine.step(token)
        assert fast.step(token) == want.argmax()
        np.testing.assert_array_equal(fast.logits(), want)
    assert set(SATURATIONS) >= clips
    SATURATIONS.clear()


# ---------------------------------------------------------------- single functions


@cache
def small():
    """A micro chip with seeded weights."""
    p = from_preset("micro-k3")
    program = compile_program(p)
    return p, program, program.image(random_weights(p.model, seed=1))


@cache
def small_machine():
    return FastMachine(*small())


def magnitudes(bits):
    """Integers >= 1 of every size below 2**bits: around each power of two, and at random."""
    powers = 1 << np.arange(bits, dtype=np.int64)
    drawn = np.random.default_rng(0).integers(0, powers[:, None], (bits, 200)) + powers[:, None]
    return np.unique(np.concatenate([powers, np.maximum(powers - 1, 1), powers + 1, drawn.ravel()]))


def test_sigmoid_everywhere():
    x = np.concatenate([np.arange(-(17 << 14), 17 << 14), [-(1 << 40), 1 << 40]])
    np.testing.assert_array_equal(small_machine().sigmoid(x), functions.sigmoid(x))


def test_exp2_everywhere():
    t = np.concatenate([np.arange(1 << 16), np.arange(0, 34 << 16, 997), [1 << 26]])
    np.testing.assert_array_equal(small_machine().exp2_neg(t), functions.exp2_neg(t))


def test_recip_and_rsqrt_of_every_magnitude():
    v = magnitudes(52)
    for got, want in zip(small_machine().recip(v), functions.recip(v), strict=True):
        np.testing.assert_array_equal(got, want)
    for frac in (26, 31, 32, 37, 38):
        for got, want in zip(small_machine().rsqrt(v, frac), functions.rsqrt(v, frac), strict=True):
            np.testing.assert_array_equal(got, want)


ELEMENT = st.integers(0, 24).flatmap(lambda bits: st.integers(-(1 << max(bits - 1, 0)), (1 << max(bits - 1, 0)) - 1))


@settings(max_examples=150, deadline=None)
@given(st.lists(ELEMENT, min_size=32, max_size=32), st.sampled_from([VEC, NRM, CTX]))
def test_quantiser(values, fmt):
    want = mx.quantise(ints(values), fmt)
    units, scale = small_machine().quantise(ints(values), fmt)
    np.testing.assert_array_equal(units, mx.e4m3_units(want.codes)[0])
    assert scale == want.scale[0]


# ---------------------------------------------------------------- use


def test_decode_equals_single_steps():
    machine = FastMachine(*small())
    prompt, count = [7, 500, 3], 40
    decoded = list(machine.decode(prompt, count))
    last = machine.logits()
    machine.reset()
    token, stepped = [machine.step(t) for t in prompt][-1], []
    for _ in range(count):
        stepped.append(token)
        token = machine.step(token)
    assert decoded == stepped and len(set(decoded)) > 1
    assert list(machine.decode(prompt, count)) == decoded  # nothing is left of the run before
    np.testing.assert_array_equal(machine.logits(), last)


def test_decode_comes_back_between_tokens():
    """So that Ctrl-C works and a caller can follow."""
    machine = FastMachine(*small())
    tokens = machine.decode([7, 500], 60)
    assert machine.position == 0
    for made in range(1, 61):
        next(tokens)
        assert made < machine.position < made + 2 + 16
    assert next(tokens, None) is None and machine.position == 61
    assert list(machine.decode([7], 0)) == []


@pytest.mark.parametrize(
    "use,reason",
    [
        (lambda m: m.step(512), "token 512 is not in the vocabulary, 0 to 511"),
        (lambda m: m.step(-1), "token -1 is not in the vocabulary"),
        (lambda m: m.feed([]), "give at least one token"),
        (lambda m: m.feed([1] * 65), "65 more tokens do not fit: 0 of 64 are taken"),
        (lambda m: m.decode([1, 2], 64), "65 more tokens do not fit"),
        (lambda m: [*m.decode([1], 64), m.step(1)], "1 more tokens do not fit: 64 of 64 are taken"),
    ],
)
def test_what_the_chip_cannot_take_is_refused(use, reason):
    with pytest.raises(ValueError, match=reason):
        use(FastMachine(*small()))


def test_images_of_another_chip_are_refused():
    p, program, image = small()
    with pytest.raises(ImageError, match="LANE: .* words given"):
        FastMachine(p, program, {**image, Space.LANE: image[Space.LANE][1:]})
    with pytest.raises(ImageError, match="ROUTER: a word does not fit 64 bits"):
        FastMachine(p, program, {**image, Space.ROUTER: [1 << 64] * len(image[Space.ROUTER])})


@pytest.mark.parametrize(
    "unit,index,field,value,what",
    [
        ("array", 3, "base", 2000, "weights"),
        ("array", 3, "slot", 8, "operand slots"),
        ("array", 3, "expert", 3, "picked experts"),
        ("array", 22, "base", 270, "weights"),  # an expert: the last one would end at 292 of 287
        ("array", 3, "group0", 2, "vector registers"),
        ("vector", 3, "constant", 200, "vector constants"),
        ("vector", 3, "segments", 2, "vector registers"),
        ("kda", 0, "layer", 3, "KDA layers"),
    ],
)
def test_commands_that_leave_the_chip_are_refused(unit, index, field, value, what):
    p, _, image = small()
    program = compile_program(p)
    program.units[unit][index].command[field] = value
    with pytest.raises(ValueError, match=f"a command leaves the {what}: "):
        FastMachine(p, program, image)


def test_a_program_that_deadlocks_is_refused():
    p, _, image = small()
    program = compile_program(p)
    program.units["vector"][0].need["array"] = 10_000
    with pytest.raises(RuntimeError, match="the program deadlocks: array waits at "):
        FastMachine(p, program, image)


# ---------------------------------------------------------------- the compiled library


def test_it_is_compiled_once(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(build, "_compile", lambda generated, target: calls.append(target.write_text("library")))
    assert build.compiled(tmp_path) == build.compiled(tmp_path)
    assert len(calls) == 1
    monkeypatch.setattr(build, "header", lambda: "// another table")
    build.compiled(tmp_path)
    assert len(calls) == 2


def test_a_missing_compiler_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "COMPILER", "no-such-g++")
    with pytest.raises(CompilerError, match="^no-such-g.. is missing: .*[^\n]$"):
        build.compiled(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_compiler_that_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "header", lambda: "#error no such width")
    with pytest.raises(CompilerError) as failed:
        build.compiled(tmp_path / "made")
    assert "no such width" in str(failed.value) and "\n" not in str(failed.value)
    assert not list((tmp_path / "made").iterdir())


def test_sources_ship_with_the_package():
    project = Path(__file__).parents[2] / "pyproject.toml"
    patterns = tomllib.loads(project.read_text())["tool"]["setuptools"]["package-data"]["*"]
    assert build.MAIN.is_file()
    for file in build.SOURCES.iterdir():
        assert file.suffix == ".py" or file.is_dir() or any(fnmatch.fnmatch(file.name, p) for p in patterns), file.name
