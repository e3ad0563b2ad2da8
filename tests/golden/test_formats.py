"""MX formats: every code, every rounding boundary, the named scale rule, block edge cases."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import formats
from golden.formats import E2M1, E4M3, MX_BLOCK
from tests import cases

REFERENCE = {"E2M1": ml_dtypes.float4_e2m1fn, "E4M3": ml_dtypes.float8_e4m3fn}
BOTH = pytest.mark.parametrize("fmt", [E2M1, E4M3], ids=lambda f: f.name)


@BOTH
def test_every_code_decodes_as_ml_dtypes(fmt):
    codes = np.arange(2 * fmt.sign_bit, dtype=np.uint8)
    want = codes.view(REFERENCE[fmt.name]).astype(np.float64)
    np.testing.assert_array_equal(formats.decode_element(codes, fmt), want)


@BOTH
def test_every_code_survives_encoding(fmt):
    codes = np.arange(2 * fmt.sign_bit, dtype=np.uint8)
    values = formats.decode_element(codes, fmt)
    codes = codes[~np.isnan(values)]
    np.testing.assert_array_equal(formats.encode_element(formats.decode_element(codes, fmt), fmt), codes)


@BOTH
def test_encoding_rounds_as_ml_dtypes_on_boundaries_and_noise(fmt):
    positive = np.sort(formats.element_values(fmt)[: fmt.sign_bit])
    positive = positive[~np.isnan(positive)]
    # float32, because ml_dtypes rounds float64 to float32 first
    middles = ((positive[1:] + positive[:-1]) / 2).astype(np.float32)
    below, above = (np.nextafter(middles, np.float32(end)) for end in (0, 1e9))
    near = np.concatenate([middles, below, above, positive])
    noise = np.random.default_rng(1).normal(size=4000) * np.exp2(np.random.default_rng(2).integers(-11, 10, 4000))
    x = np.concatenate([near, -near, noise]).astype(np.float32)
    clamped = np.clip(x, -fmt.max_value, fmt.max_value)  # ml_dtypes overflows E4M3 to NaN
    want = clamped.astype(REFERENCE[fmt.name]).view(np.uint8)
    np.testing.assert_array_equal(formats.encode_element(x, fmt), want)


def test_e4m3_nan_codes():
    assert np.isnan(formats.decode_element(np.array([0x7F, 0xFF]), E4M3)).all()
    assert formats.encode_element(np.array([np.nan]), E4M3)[0] == 0x7F
    with pytest.raises(ValueError, match="E2M1"):
        formats.encode_element(np.array([np.nan]), E2M1)


@pytest.mark.parametrize("case", cases.E4M3_DECODE)
def test_e4m3_decode_cases(case):
    got = formats.decode_element(np.array(case.code), E4M3)
    assert np.isnan(got) if case.value is None else got == case.value


def test_e8m0_every_code_as_ml_dtypes():
    codes = np.arange(256, dtype=np.uint8)
    want = codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    np.testing.assert_array_equal(formats.decode_e8m0(codes), want)


@pytest.mark.parametrize("case", cases.E8M0)
def test_e8m0_cases(case):
    got = formats.decode_e8m0(np.array(case.code))
    assert np.isnan(got) if case.value is None else got == case.value


@pytest.mark.parametrize(
    ("fmt", "case"), [*((E2M1, c) for c in cases.E2M1_ENCODE), *((E4M3, c) for c in cases.E4M3_ENCODE)]
)
def test_encode_cases(fmt, case):
    assert formats.decode_element(formats.encode_element(np.array(case.x), fmt), fmt) == case.value


def block(*values: float) -> np.ndarray:
    return np.array([*values, *[0.0] * (MX_BLOCK - len(values))])


@pytest.mark.parametrize("case", cases.MXFP8_BLOCK_AMAX)
def test_mxfp8_block_amax_cases(case):
    codes, scales = formats.mx_encode(block(case.amax), E4M3)
    assert case.exponent is None or scales[0] == 127 + case.exponent
    assert scales[0] != formats.E8M0_NAN
    assert formats.mx_decode(codes, scales, E4M3)[0] == case.value


@BOTH
def test_zero_block_has_zero_elements_and_a_legal_scale(fmt):
    codes, scales = formats.mx_encode(block(), fmt)
    assert not codes.any() and scales[0] != formats.E8M0_NAN
    assert not formats.mx_decode(codes, scales, fmt).any()
    x = torch.zeros(64, requires_grad=True)
    formats.mx_quantise(x, fmt).sum().backward()
    assert torch.equal(x.grad, torch.ones(64)) and not formats.mx_round(x.detach(), fmt).any()


@BOTH
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_block_with_nan_or_infinity_is_nan(fmt, bad):
    codes, scales = formats.mx_encode(block(1.0, bad), fmt)
    assert scales[0] == formats.E8M0_NAN
    assert np.isnan(formats.mx_decode(codes, scales, fmt)).all()


@BOTH
def test_scale_exponent_is_exact_around_powers_of_two(fmt):
    """A float logarithm would round log2 of the value just under 2^k up to k."""
    powers = np.exp2(np.arange(-60, 61, dtype=np.float64))
    k = np.arange(-60, 61) - fmt.emax
    np.testing.assert_array_equal(formats.scale_exponent(powers, fmt), k)
    np.testing.assert_array_equal(formats.scale_exponent(np.nextafter(powers, 0), fmt), k - 1)


@BOTH
def test_scale_exponent_is_clamped_to_e8m0(fmt):
    np.testing.assert_array_equal(formats.scale_exponent(np.array([1e-300, 1e300]), fmt), [-127, 127])
    codes, scales = formats.mx_encode(block(1e-300), fmt)
    assert scales[0] == 0 and not codes.any()


def test_rule_floor_clips_the_top_of_a_binade():
    """amax in (1.75, 2) * 2^k saturates to 448 * scale: the rule's known price, not an accident."""
    for amax, want in ((1.75, 1.75), (1.76, 1.75), (1.99, 1.75), (2.0, 2.0)):
        codes, scales = formats.mx_encode(block(amax), E4M3)
        assert formats.mx_decode(codes, scales, E4M3)[0] == want


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torch_rounding_equals_the_exact_encoder(fmt, dtype):
    gen = torch.Generator().manual_seed(3)
    x = torch.randn(300, 96, generator=gen, dtype=dtype)
    x = x * torch.exp2(torch.randint(-30, 30, (300, 1), generator=gen).to(dtype))
    x[:100] *= torch.exp2(torch.randint(-14, 3, (100, 96), generator=gen).to(dtype))  # subnormal elements
    x[100:200] = x[100:200].round()  # many ties
    if dtype == torch.float64:
        x[-5:] *= 2.0**-110  # near the smallest scales
    want = formats.mx_decode(*formats.mx_encode(x.numpy(), fmt), fmt)
    np.testing.assert_array_equal(formats.mx_round(x, fmt).double().numpy(), want)


@BOTH
@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-(2.0**60), 2.0**60, width=32), min_size=MX_BLOCK, max_size=MX_BLOCK))
def test_quantising_twice_changes_nothing_and_errors_are_bounded(fmt, values):
    x = torch.tensor(values, dtype=torch.float64)
    once = formats.mx_round(x, fmt)
    np.testing.assert_array_equal(formats.mx_decode(*formats.mx_encode(x.numpy(), fmt), fmt), once.numpy())
    assert torch.equal(formats.mx_round(once, fmt), once)
    scale = 2.0 ** float(formats.scale_exponent(x.abs().max().numpy(), fmt))
    clipped = x.clamp(-fmt.max_value * scale, fmt.max_value * scale)
    step = torch.maximum(clipped.abs() * 2.0**-fmt.man_bits, torch.tensor(scale * 2.0 ** (fmt.min_exp - fmt.man_bits)))
    assert ((once - clipped).abs() <= step / 2).all()


def test_straight_through_gradient_is_the_identity():
    x = torch.randn(3, 64, requires_grad=True)
    weight = torch.randn(3, 64)
    (formats.mx_quantise(x, "mxfp8") * weight).sum().backward()
    assert torch.equal(x.grad, weight)


def test_blocks_must_divide_the_axis():
    with pytest.raises(ValueError, match="multiple"):
        formats.mx_encode(np.zeros(33), E2M1)


def test_packing_puts_even_columns_in_the_low_nibble():
    codes = np.array([[1, 2, 15, 8]])
    packed = formats.pack_e2m1(codes)
    np.testing.assert_array_equal(packed, [[0x21, 0x8F]])
    np.testing.assert_array_equal(formats.unpack_e2m1(packed), codes)


def test_int4_group_by_hand():
    """Range -1..2 in 15 steps of 0.2: zero point 5, -1 -> code 0, 2 -> code 15, 0.29 -> 0.2."""
    w = np.zeros(128)
    w[:3] = [-1.0, 2.0, 0.29]
    codes, scale, zero = formats.int4_encode(w)
    assert scale[0] == pytest.approx(0.2, abs=1e-15) and zero[0] == 5
    assert codes[:4].tolist() == [0, 15, 6, 5]
    np.testing.assert_allclose(formats.int4_decode(codes, scale, zero)[:4], [-1.0, 2.0, 0.2, 0.0], atol=1e-15)


def test_int4_groups_are_independent_and_short_rows_are_one_group():
    w = np.concatenate([np.full(128, 0.5), np.full(128, -3.0)])
    codes, scale, zero = formats.int4_encode(w)
    np.testing.assert_allclose(scale, [0.5 / 15, 3.0 / 15])
    assert zero.tolist() == [0, 15]
    np.testing.assert_allclose(formats.int4_decode(codes, scale, zero), w, atol=1e-15)
    assert formats.int4_encode(np.ones((2, 64)))[1].shape == (2, 1)
    codes, scale, zero = formats.int4_encode(np.zeros(128))
    assert scale[0] == 1.0 and not formats.int4_decode(codes, scale, zero).any()
