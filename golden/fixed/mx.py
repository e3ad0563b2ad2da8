"""MX arithmetic on integers: the quantiser and the exact block dot product.

E4M3 codes decode to integers in units of 2**-9, E2M1 codes in units of 2**-1
(OCP Microscaling Formats v1.0), so a product has the unit 2**-10 and a
32-term sum is exact in 28 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from golden.fixed.numbers import VEC, Fixed, Ints, floor_log2, ints, round_shift, saturate

BLOCK = 32
E8M0_BIAS = 127
DOT_FRAC = 10  # unit of a block dot product before its scales
E2M1_HALVES = ints([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])  # value * 2 of each code


def e4m3_units(codes: Ints) -> Ints:
    """E4M3 codes as integers in units of 2**-9 (the NaN codes are never produced by the quantiser)."""
    codes = ints(codes)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(exponent == 0, mantissa, (8 + mantissa) << np.maximum(exponent - 1, 0))
    return np.where(codes & 128, -magnitude, magnitude)


@dataclass
class MxVector:
    """A vector of MXFP8 blocks: ``codes`` [..., blocks, 32] E4M3, ``scale`` [..., blocks] E8M0."""

    codes: Ints
    scale: Ints


@dataclass
class MxMatrix:
    """An MXFP4 matrix: ``codes`` [rows, blocks, 32] E2M1, ``scale`` [rows, blocks] E8M0."""

    codes: Ints
    scale: Ints

    @property
    def rows(self) -> int:
        """Number of output rows."""
        return self.codes.shape[0]


def quantise(x: Ints, fmt: Fixed) -> MxVector:
    """Integers of ``fmt`` [..., n] to MXFP8 blocks of 32 (n is a multiple of 32).

    Scale rule "floor": exponent floor(log2 amax) - 8; RNE; magnitudes above 448
    saturate; a zero block has scale code 127.  ``fmt.width`` <= 24.
    """
    x = ints(x).reshape(*np.shape(x)[:-1], -1, BLOCK)
    a = np.abs(x)
    amax = a.max(axis=-1)
    zero = amax == 0
    top = floor_log2(np.where(zero, 1, amax))
    scale = np.where(zero, E8M0_BIAS, top - fmt.frac - 8 + E8M0_BIAS)
    pa = floor_log2(np.where(a == 0, 1, a))
    drop = np.maximum(pa - 3, top[..., None] - 17)  # bits below the E4M3 step; subnormals share the step 2**-9
    shift = np.maximum(drop, 0)
    kept, rest = (a << np.maximum(-drop, 0)) >> shift, a & ((np.int64(1) << shift) - 1)
    half = np.where(shift > 0, np.int64(1) << np.maximum(shift - 1, 0), 0)
    kept = kept + ((rest > half) | ((rest == half) & (shift > 0) & (kept & 1 == 1)))
    # kept is 0..16; with the exponent of the step it is the code itself, carries included
    step = drop - (top[..., None] - 17)  # 0 for the subnormal step, else exponent field - 1
    code = np.where(a == 0, 0, np.minimum((step << 3) + kept, 126))
    return MxVector(np.where(x < 0, code | 128, code), scale)


def block_dots(w: MxMatrix, x: MxVector) -> Ints:
    """Exact sums [..., rows, blocks] of E2M1 x E4M3 products, unit 2**-10, scales left out; fits 28 bits."""
    wi = E2M1_HALVES[w.codes].astype(np.float64)  # float64 is exact below 2**53 and uses BLAS
    xi = e4m3_units(x.codes).astype(np.float64)
    return ints(np.stack([xi[..., b, :] @ wi[:, b, :].T for b in range(wi.shape[1])], axis=-1))


def scaled(dot: Ints, exponent: Ints) -> Ints:
    """A block dot times 2**exponent (the two scales) as VEC: half-up, saturated. The row accumulator adds these."""
    shift = np.clip(DOT_FRAC - VEC.frac - ints(exponent), -24, 31)
    return saturate(round_shift(dot, shift), VEC)


def matvec(w: MxMatrix, x: MxVector) -> Ints:
    """W x as VEC [..., rows]: each block is rounded to VEC, the blocks are added exactly, the sum saturates."""
    exponent = w.scale + x.scale[..., None, :] - 2 * E8M0_BIAS
    return saturate(scaled(block_dots(w, x), exponent).sum(axis=-1), VEC)


def dequantise_row(w: MxMatrix, row: Ints) -> Ints:
    """Row(s) of an MXFP4 matrix as VEC [..., blocks * 32] (the embedding look-up)."""
    halves = E2M1_HALVES[w.codes[row]]
    shift = np.clip(1 - VEC.frac - (w.scale[row][..., None] - E8M0_BIAS), -24, 31)
    y = saturate(round_shift(halves, shift), VEC)
    return y.reshape(*y.shape[:-2], -1)
