"""Scalar functions of the chip: piecewise quadratics on integers.

Every function is  c0 + c1 u + c2 u^2  on a segment, u = dx / 2**D in [0, 1), in
Horner form with two half-up roundings.  Coefficients are integers with GUARD
bits below the output; hw/arith builds its constant tables from the same
objects.  Coefficients interpolate f at both ends and the middle of each segment,
so that neighbouring segments meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from golden.fixed.numbers import SIG, UNIT, Ints, floor_log2, ints, round_shift

GUARD = 3


@dataclass(frozen=True)
class Quadratic:
    """Table of a piecewise quadratic: ``segments`` triples (c0, c1, c2) with out_frac + GUARD fraction bits."""

    name: str
    dx_bits: int
    out_frac: int
    table: tuple[tuple[int, int, int], ...]

    def __call__(self, index: Ints, dx: Ints) -> Ints:
        """Value with ``out_frac`` fraction bits; 0 <= dx < 2**dx_bits."""
        c = np.asarray(self.table, np.int64)[index]
        slope = c[..., 1] + round_shift(c[..., 2] * dx, self.dx_bits)
        return round_shift(c[..., 0] + round_shift(slope * dx, self.dx_bits), GUARD)


def build(
    name: str, f: Callable[[float], float], edges: list[tuple[float, float]], dx_bits: int, out_frac: int
) -> Quadratic:
    """Fit f on each (left, width) of ``edges``."""
    scale = 2.0 ** (out_frac + GUARD)
    rows = []
    for left, width in edges:
        u1, u2 = 0.5, 1.0
        y0, y1, y2 = (f(left + width * u) for u in (0.0, u1, u2))
        d1, d2 = (y1 - y0) / u1, (y2 - y0) / u2
        c2 = (d2 - d1) / (u2 - u1)
        c0, c1, c2 = (math.floor(c * scale + 0.5) for c in (y0, d1 - c2 * u1, c2))
        rows.append((c0, c1, c2))
    return Quadratic(name, dx_bits, out_frac, tuple(rows))


SIGMOID_IN_FRAC = 14  # one more than VEC, so that g/2 keeps its last bit
SIGMOID_REGIONS = ((0, 64, 1 / 16), (4, 32, 1 / 8), (8, 16, 1 / 2))  # (start, segments, width): 112 segments to 16
SIGMOID = build(
    "sigmoid",
    lambda x: 1.0 / (1.0 + math.exp(-x)),
    [(start + i * w, w) for start, n, w in SIGMOID_REGIONS for i in range(n)],
    dx_bits=13,
    out_frac=SIG.frac,
)


def sigmoid(x: Ints) -> Ints:
    """sigmoid of x (14 fraction bits, any width) as SIG; exactly 0 or 1 from |x| >= 16 on.

    Within one ulp (2**-20) of the real value; rising but for dips of one ulp beyond |x| = 7.
    """
    a = np.abs(ints(x))
    inside = np.minimum(a, (16 << 14) - 1)
    low, mid = inside < (4 << 14), inside < (8 << 14)
    upper = np.where(mid, 64 + ((inside - (4 << 14)) >> 11), 96 + ((inside - (8 << 14)) >> 13))
    index = np.where(low, inside >> 10, upper)
    dx = np.where(low, (inside & 1023) << 3, np.where(mid, (inside & 2047) << 2, inside & 8191))
    one = 1 << SIG.frac
    y = np.where(a >= (16 << 14), one, np.minimum(SIGMOID(index, dx), one))
    return np.where(ints(x) < 0, one - y, y)


EXP2 = build("exp2", lambda f: 2.0**-f, [(i / 16, 1 / 16) for i in range(16)], dx_bits=12, out_frac=18)
EXP2_IN_FRAC = 16


def exp2_neg(t: Ints) -> Ints:
    """2**-t of t >= 0 (16 fraction bits) as UNIT; 0 from t >= 32 on."""
    t = ints(t)
    whole = np.minimum(t >> 16, 32)
    y = EXP2((t >> 12) & 15, t & 4095)
    return round_shift(y, whole + (EXP2.out_frac - UNIT.frac))


RSQRT = build("rsqrt", lambda m: 1.0 / math.sqrt(m), [(1 + i / 32, 1 / 32) for i in range(96)], dx_bits=13, out_frac=18)


def rsqrt(v: Ints, frac: int) -> tuple[Ints, Ints]:
    """1/sqrt(v * 2**-frac) of v >= 1 as (mantissa, k): mantissa * 2**-18 in (0.5, 1], result mantissa * 2**-(18 + k).

    v * 2**-frac = m * 4**k with m in [1, 4), m truncated to 18 fraction bits.
    """
    v = ints(v)
    p = floor_log2(v)
    k = (p - frac) >> 1
    m_shift = 2 * k + frac - 18  # right shift that leaves m with 18 fraction bits
    m = (v << np.maximum(-m_shift, 0)) >> np.maximum(m_shift, 0)
    return RSQRT((m >> 13) - 32, m & 8191), k


RECIP = build("recip", lambda m: 1.0 / m, [(1 + i / 64, 1 / 64) for i in range(64)], dx_bits=12, out_frac=18)


def recip(v: Ints) -> tuple[Ints, Ints]:
    """1/v of an integer v >= 1 as (mantissa, p): 1/v = mantissa * 2**-(18 + p), p = floor(log2 v).

    mantissa * 2**-18 is in (0.5, 1]; v * 2**-p is truncated to 18 fraction bits.
    """
    v = ints(v)
    p = floor_log2(v)
    m = (v << np.maximum(18 - p, 0)) >> np.maximum(p - 18, 0)
    return RECIP((m >> 12) - 64, m & 4095), p
