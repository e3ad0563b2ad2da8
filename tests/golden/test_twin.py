"""The integer twin: small cases with right values to a stated number of ulp, the whole model against quantised float.

The small cases and their bounds are in tests/cases.py.
"""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from golden.checkpoint import snap
from golden.compare import FloatStepper, TwinStepper, compare, stepper
from golden.config import load_preset
from golden.fixed import kda, lanes, mla, mx, router, vector
from golden.fixed import twin as twin_module
from golden.fixed.numbers import (
    CACHE,
    CONST,
    DTB,
    FORMATS,
    KEY,
    NRM,
    QUERY,
    RATE,
    SATURATIONS,
    SCORE,
    SIG,
    STATE,
    UNIT,
    VEC,
    Fixed,
    ints,
    saturate,
    to_fixed,
    to_float,
)
from golden.fixed.twin import Twin
from golden.fixed.weights import chip_weights
from golden.formats import E2M1, encode_element
from golden.model import build_model
from golden.numerics import Numerics
from golden.taps import Recorder
from tests import cases
from tests.cases import padded, ulps

# ---------------------------------------------------------------- KDA decay


def test_kda_alpha_cases():
    got = lanes.decay(*cases.decay_operands(), -5.0)
    assert ulps(got, [case.alpha for case in cases.KDA_ALPHA], UNIT) <= cases.KDA_ALPHA_ULPS


@pytest.mark.parametrize("a_log", [-3.0, 0.0, 1.5])
def test_kda_alpha_over_the_whole_range(a_log):
    """Rising f, falling alpha, inside (e^-5, 1), never further than 3 ulp from the real value."""
    f = to_fixed(np.linspace(-40, 40, 4001), VEC)
    dt, rate = to_fixed(0.75, DTB), to_fixed(math.exp(a_log), RATE)
    got = lanes.decay(f, dt, rate, -5.0)
    z = np.clip(to_float(rate, RATE) * (to_float(f, VEC) + 0.75), -1024, 1024)
    assert ulps(got, np.exp(-5.0 / (1.0 + np.exp(-z))), UNIT) <= 3
    assert (np.diff(got) <= 1).all()  # a rise of one ulp at a segment's edge at the most


# ---------------------------------------------------------------- MX formats


def matvec_of_ones(e2m1=2, w_scale=127, e4m3=56, x_scale=127):
    """The twin's product (VEC) of one element and one, in a block of zeros; the defaults are all 1.0."""
    codes, operand = np.zeros((1, 1, 32), np.int64), np.zeros((1, 32), np.int64)
    codes[0, 0, 5], operand[0, 5] = e2m1, e4m3
    w, x = mx.MxMatrix(codes, np.array([[w_scale]])), mx.MxVector(operand, np.array([x_scale]))
    return to_float(mx.matvec(w, x), VEC)[0]


@pytest.mark.parametrize("case", [case for case in cases.E8M0 if case.value is not None])
def test_e8m0_cases_exact(case):
    """A scale times the inverse scale on the other side: 1, whatever the two are by themselves."""
    other = 254 - case.code
    assert matvec_of_ones(w_scale=case.code, x_scale=other) == case.value * 2.0 ** (other - 127) == 1.0
    assert matvec_of_ones(w_scale=other, x_scale=case.code) == 1.0


@pytest.mark.parametrize("case", cases.E2M1_ENCODE)
def test_e2m1_as_the_twin_multiplies_it(case):
    code = encode_element(np.array([case.x]), E2M1)
    assert matvec_of_ones(e2m1=code[0]) == case.value


@pytest.mark.parametrize("case", [case for case in cases.E4M3_DECODE if case.value is not None])
def test_e4m3_decode_cases_exact(case):
    assert mx.e4m3_units(ints([case.code]))[0] * 2.0**-9 == case.value
    assert matvec_of_ones(e4m3=case.code) == case.value


@pytest.mark.parametrize("case", cases.E4M3_ENCODE)
def test_e4m3_encode_of_the_quantiser_exact(case):
    got = mx.quantise(cases.e4m3_block(case.x), Fixed("case", 24, cases.E4M3_BLOCK_FRAC))
    assert got.scale[0] == 127
    assert mx.e4m3_units(got.codes)[0, 7] * 2.0**-9 == case.value


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("case", cases.MXFP8_BLOCK_AMAX)
def test_mxfp8_block_amax_exact(case, sign):
    got = mx.quantise(padded([sign * case.amax], 32, VEC), VEC)
    assert case.exponent is None or got.scale[0] == 127 + case.exponent
    assert mx.e4m3_units(got.codes)[0, 0] * 2.0 ** (got.scale[0] - 127 - 9) == sign * case.value


def test_zero_block_is_zero():
    got = mx.quantise(np.zeros(32, np.int64), VEC)
    assert got.scale[0] != 255 and not got.codes.any()


@pytest.mark.parametrize("fmt", [VEC, NRM], ids=lambda f: f.name)
def test_quantiser_against_ml_dtypes(fmt):
    """All magnitudes that occur, ties and carries into the next binade among them."""
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(3000, 32)) * 2.0 ** rng.integers(0, 22, (3000, 1))).astype(np.int64)
    x[:1500] &= ~((1 << rng.integers(0, 20, (1500, 1))) - 1)  # short ones: many exact ties
    x = np.clip(x, fmt.min, fmt.max)
    got = mx.quantise(x, fmt)
    values = to_float(x, fmt)
    top = np.floor(np.log2(np.maximum(np.abs(values).max(-1), 1e-30)))
    exponent = np.where(np.abs(values).max(-1) > 0, top - 8, 0)
    want = np.clip(values * 2.0 ** -exponent[:, None], -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    np.testing.assert_array_equal(got.scale[:, 0] - 127, exponent)
    np.testing.assert_array_equal(mx.e4m3_units(got.codes)[:, 0] * 2.0**-9, want)


def test_matvec_is_exact_but_for_one_rounding_a_block():
    rng = np.random.default_rng(2)
    w = mx.MxMatrix(rng.integers(0, 16, (40, 3, 32)), rng.integers(120, 130, (40, 3)))
    x = mx.quantise(to_fixed(rng.normal(size=(5, 96)), NRM), NRM)
    wv = mx.E2M1_HALVES[w.codes] / 2 * 2.0 ** (w.scale[..., None] - 127)
    xv = mx.e4m3_units(x.codes) * 2.0**-9 * 2.0 ** (x.scale[..., None] - 127)
    want = np.einsum("rbi,nbi->nr", wv, xv)
    assert ulps(mx.matvec(w, x), want, VEC) <= 0.5 * 3


# ---------------------------------------------------------------- SiTU-GLU, router, residual mix, delta rule


def test_situ_glu_cases():
    g, u, want = np.array(cases.SITU_GLU).T
    got = lanes.situ(to_fixed(g, VEC), to_fixed(u, VEC), 4.0, 25.0)
    assert ulps(got, want, VEC) <= cases.SITU_GLU_ULPS


@pytest.mark.parametrize("case", cases.ROUTER)
def test_router_cases(case):
    """The pick is exact.  16 experts, more than the cases have: the others must not be picked."""
    logits, bias = cases.route_operands(case, 16)
    scores = lanes.gate(logits)
    assert ulps(scores, 1 / (1 + np.exp(-to_float(logits, VEC))), SIG) <= cases.SIGMOID_ULPS
    weights = cases.by_expert(*router.route(scores, bias, cases.ROUTER_TOP_K, case.scale), case)
    assert weights is not None and ulps(weights, case.weights, UNIT) <= cases.ROUTER_ULPS


@pytest.mark.parametrize("width", [4, 32, 64])
def test_residual_mix_case(width):
    case = cases.RESIDUAL_MIX
    candidates, projection = cases.mix_operands(case, width)
    scores = np.stack([vector.mix_score(v, projection, case.eps) for v in candidates], -1)
    assert ulps(scores, np.array(case.scores) * math.log2(math.e), SCORE) <= cases.RESIDUAL_SCORE_ULPS
    weights = vector.softmax_weights(scores)
    assert ulps(weights, case.weights, UNIT) <= cases.RESIDUAL_WEIGHT_ULPS
    out = to_float(vector.weighted_sum(weights, candidates), VEC)
    atol = cases.RESIDUAL_WEIGHT_ULPS * UNIT.ulp * np.max(case.candidates) + VEC.ulp / 2
    np.testing.assert_allclose(out, np.tile(case.out, width // 4), atol=atol, rtol=0)


def test_kda_step_cases():
    """Two tokens of one head, keys and values padded with zeros to 32."""
    state = np.zeros((32, 32), np.int64)
    for case in cases.KDA_STEPS:
        k, q, v, alpha = (
            padded(x, 32, fmt) for x, fmt in ((case.k, KEY), (case.q, KEY), (case.v, VEC), (case.alpha, UNIT))
        )
        got = kda.state_update(state, k, q, v, alpha, to_fixed(case.beta, UNIT))
        state = got.state
        assert ulps(state[:2, :2], case.state, STATE) * STATE.ulp <= cases.KDA_STEP_ULPS * VEC.ulp
        assert not state[2:].any() and not state[:, 2:].any()
        assert ulps(got.o[:2], case.out, NRM) * NRM.ulp <= cases.KDA_STEP_ULPS * VEC.ulp
        assert not got.o[2:].any()


# ---------------------------------------------------------------- attention


@pytest.mark.parametrize("positions", [1, 2, 64, 256])
def test_constant_cache_gives_the_same_context_at_any_length(positions):
    rng = np.random.default_rng(3)
    latent = to_fixed(rng.normal(size=32), CACHE)
    cache = np.broadcast_to(np.concatenate([latent, to_fixed(np.full(16, 0.5), CACHE)]), (1, positions, 48))
    query = to_fixed(rng.normal(size=(1, 1, 48)), QUERY)
    s = mla.scores(query, cache, mla.score_factor(32, 16))
    context = mla.context(s, cache[..., :32])
    assert ulps(context[0, 0], to_float(latent, CACHE), NRM) <= 2


def test_attention_against_float():
    rng = np.random.default_rng(4)
    cache, query = to_fixed(rng.normal(size=(1, 100, 48)), CACHE), to_fixed(2 * rng.normal(size=(1, 2, 48)), QUERY)
    s = mla.scores(query, cache, mla.score_factor(32, 16))
    want = np.einsum("bhi,bti->bht", to_float(query, QUERY), to_float(cache, CACHE)) / math.sqrt(48)
    np.testing.assert_allclose(to_float(s, SCORE) * math.log(2), want, atol=2e-4)
    e = np.exp(want - want.max(-1, keepdims=True))
    weights = e / e.sum(-1, keepdims=True)
    got = to_float(mla.context(s, cache[..., :32]), NRM)
    np.testing.assert_allclose(got, weights @ to_float(cache, CACHE)[0, :, :32], atol=5e-4)


# ---------------------------------------------------------------- saturation


def test_saturation_is_counted_per_format():
    SATURATIONS.clear()
    assert saturate(ints([VEC.max, VEC.max + 1, VEC.min - 5, 0]), VEC).tolist() == [VEC.max, VEC.max, VEC.min, 0]
    assert dict(SATURATIONS) == {"vec": 2}
    to_fixed([100.0, -100.0], CONST)
    assert dict(SATURATIONS) == {"vec": 2, "const": 2} and set(SATURATIONS) <= set(FORMATS)
    SATURATIONS.clear()


def test_a_model_with_huge_weights_saturates_and_a_normal_one_does_not():
    cfg, state = model_state()
    SATURATIONS.clear()
    twin_logits(cfg, state, tokens(2, 6))
    assert not SATURATIONS
    huge = dict(state)
    for name in ("gate", "up"):
        huge[f"model.layers.0.mlp.{name}_proj.weight"] = state[f"model.layers.0.mlp.{name}_proj.weight"] * 64
    huge["model.layers.0.mlp.down_proj.weight"] = state["model.layers.0.mlp.down_proj.weight"] * 64
    twin_logits(cfg, huge, tokens(2, 6))
    assert SATURATIONS["vec"] > 0
    SATURATIONS.clear()


# ---------------------------------------------------------------- the whole model


def model_state(seed=3, name="micro-k3"):
    """A random model with no vector at its start value, on the chip's grids."""
    cfg = load_preset(name)[0]
    gen = torch.Generator().manual_seed(seed)
    state = build_model(cfg, seed=seed).state_dict()
    for key, t in state.items():
        if t.ndim == 1 or "res_proj" in key:
            t += 0.2 * torch.randn(t.shape, generator=gen)
    return cfg, snap(cfg, state)


def tokens(batch, steps, seed=0):
    return np.random.default_rng(seed).integers(0, 512, (batch, steps))


def twin_logits(cfg, state, ids):
    """[B, T, vocab] integers."""
    twin = Twin(cfg, chip_weights(cfg, state))
    carried = twin.init_state(len(ids))
    return np.stack([twin.step(ids[:, i], carried) for i in range(ids.shape[1])], 1)


class Replay(Numerics):
    """Quantised float whose matmul inputs are the twin's: each block is replaced by the twin's nearest one.

    Without it one flipped rounding of MXFP8 changes a value by up to an eighth, and later stages cannot be compared.
    """

    def __init__(self, blocks, tap):
        super().__init__(quantise=True, tap=tap)
        self.blocks = torch.from_numpy(blocks)
        self.furthest = 0.0

    def act(self, x):
        flat = x.reshape(-1, 32)
        distance = torch.cdist(flat, self.blocks)
        scale = flat.abs().amax(-1).clamp(min=1e-3)
        self.furthest = max(self.furthest, float((distance.amin(-1) / scale).max()))
        return self.blocks[distance.argmin(-1)].reshape(x.shape)


def recorded_blocks(monkeypatch):
    """Every MXFP8 block that the twin makes from now on, as real values."""
    blocks = []

    def recording(x, fmt):
        out = mx.quantise(x, fmt)
        blocks.extend((mx.e4m3_units(out.codes) * 2.0 ** (out.scale[..., None] - 127 - 9)).reshape(-1, 32))
        return out

    monkeypatch.setattr(twin_module, "quantise", recording)
    return blocks


@pytest.mark.parametrize("name", ["micro-k3", "nano-k3"])
def test_every_stage_is_near_quantised_float(name, monkeypatch):
    """With the same MXFP8 inputs, every tap of 6 tokens: within 2**-8 of its RMS, or of 1 where that is less."""
    cfg, state = model_state(name=name)
    twin, model = TwinStepper(cfg, state), build_model(cfg, state, dtype=torch.float64)
    blocks, carried, checked = recorded_blocks(monkeypatch), model.init_state(), set()
    for token in tokens(1, 6, seed=1)[0].tolist():
        blocks.clear()
        a, b = Recorder(), Recorder()
        twin.step(token, b)
        numerics = Replay(np.array(blocks), a)
        with torch.no_grad():
            _, carried = model.step(torch.tensor([token]), carried, numerics)
        assert numerics.furthest < 0.3  # an input that the twin does not have at all would be far from all of its
        for tap, x in a.values.items():
            y, rms = b.values[tap], np.sqrt(np.mean(np.square(x, dtype=np.float64)))
            assert np.abs(x - y).max() <= 2**-8 * max(rms, 1.0), (tap, np.abs(x - y).max(), rms)
            checked.add(tap)
    assert len(checked) > 80


@pytest.mark.parametrize("name", ["micro-k3", "nano-k3"])
def test_logits_are_near_quantised_float(name):
    """Each with its own MXFP8 roundings, random weights: logits of 6 tokens within half of their RMS, on average."""
    cfg, state = model_state(name=name)
    quantised, twin = FloatStepper(cfg, state, True, torch.float64), TwinStepper(cfg, state)
    steps = [(quantised.step(t), twin.step(t)) for t in tokens(1, 6, seed=1)[0].tolist()]
    a, b = (np.stack(s) for s in zip(*steps, strict=True))
    assert np.sqrt(np.mean((a - b) ** 2)) < 0.5 * np.sqrt(np.mean(a**2))


def test_last_token_does_not_change_earlier_outputs():
    cfg, state = model_state()
    ids = tokens(1, 9)
    other = ids.copy()
    other[0, -1] = (other[0, -1] + 7) % 512
    a, b = twin_logits(cfg, state, ids), twin_logits(cfg, state, other)
    np.testing.assert_array_equal(a[:, :-1], b[:, :-1])
    assert (a[:, -1] != b[:, -1]).any()


def test_a_batch_is_its_sequences_bit_for_bit():
    cfg, state = model_state()
    ids = tokens(3, 7, seed=4)
    together = twin_logits(cfg, state, ids)
    for row in range(3):
        np.testing.assert_array_equal(together[row], twin_logits(cfg, state, ids[row : row + 1])[0])


def test_earlier_tokens_do_change_later_outputs():
    """The state is used at all: of KDA, its convolutions and the MLA cache."""
    cfg, state = model_state()
    ids = tokens(1, 9)
    other = ids.copy()
    other[0, 0] = (other[0, 0] + 7) % 512
    assert (twin_logits(cfg, state, ids)[:, -1] != twin_logits(cfg, state, other)[:, -1]).any()


def test_greedy_choice_takes_the_lowest_of_equal_logits():
    assert lanes.argmax(ints([[3, 7, 7, 1], [5, 5, 5, 5]])).tolist() == [1, 0]


# ---------------------------------------------------------------- the first divergence


@pytest.mark.parametrize(
    ("layer", "matrix", "stage"),
    [(0, "q", "layer.0.q_conv"), (1, "b", "layer.1.beta"), (3, "latent", "layer.3.c"), (4, "g", "layer.4.gate")],
)
def test_comparison_finds_a_planted_error(monkeypatch, layer, matrix, stage):
    """Two twins, one with a wrong bit in one row of one matrix's result: the first stage that shows it is named."""
    cfg, state = model_state()
    right, wrong = stepper("twin", cfg, state), stepper("twin", cfg, state)
    target = getattr(wrong.twin.weights.layers[layer].attn, matrix)
    matvec = mx.matvec

    def planted(w, x):
        y = matvec(w, x)
        if w is target:
            y[..., 0] += 1 << 12
        return y

    monkeypatch.setattr(twin_module, "matvec", planted)
    result = compare(right, wrong, [5, 6, 7])
    assert (result.position, result.divergence.name) == (0, stage)
    assert result.divergence.index[-1] == 0 and result.divergence.largest > 0
    same = compare(stepper("twin", cfg, state), stepper("twin", cfg, state), [5, 6, 7])
    assert same.position is None and same.divergence is None and same.same_choice == 3


def test_taps_carry_the_values_of_their_formats():
    cfg, state = model_state()
    taps = Recorder()
    TwinStepper(cfg, state).step(9, taps)
    for name, fmt in (("layer.1.gate", SIG), ("layer.1.alpha", UNIT), ("logits", VEC), ("layer.3.c", CACHE)):
        scaled = taps.values[name] * 2.0**fmt.frac
        assert (scaled == np.round(scaled)).all() and np.abs(scaled).max() <= fmt.max
