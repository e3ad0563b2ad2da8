"""The vector unit: residual-mix scores, softmax over candidates, weighted sums and norms."""

from __future__ import annotations

import numpy as np

from golden.fixed.functions import exp2_neg, recip, rsqrt
from golden.fixed.numbers import CONST, KEY, NRM, SCORE, SIG, UNIT, VEC, Fixed, Ints, ints, round_shift, saturate


def inverse_norm(x: Ints, fmt: Fixed, eps: float, mean: bool) -> tuple[Ints, Ints]:
    """rsqrt mantissa and exponent k of (sum or mean of x^2) + eps over the last axis, whose size is a power of two.

    The sum is exact; eps is added as an integer in the sum's unit (times n for a mean).
    """
    n = x.shape[-1]
    log_n = n.bit_length() - 1
    assert n == 1 << log_n
    frac = 2 * fmt.frac
    eps_int = max(1, int(np.floor(eps * (n if mean else 1) * 2.0**frac + 0.5)))
    return rsqrt((x * x).sum(axis=-1) + eps_int, frac + (log_n if mean else 0))


def normalise(x: Ints, fmt: Fixed, eps: float, mean: bool = True, out: Fixed = NRM) -> Ints:
    """x / sqrt(mean(x^2) + eps) (or the sum's root: L2) over the last axis as ``out``."""
    mantissa, k = inverse_norm(x, fmt, eps, mean)
    return saturate(round_shift(x * mantissa[..., None], fmt.frac + 18 - out.frac + k[..., None]), out)


def l2(x: Ints, fmt: Fixed, eps: float) -> Ints:
    """x / sqrt(sum(x^2) + eps) over the last axis as KEY, in one rounding."""
    return normalise(x, fmt, eps, mean=False, out=KEY)


def scale(x: Ints, weight: Ints, fmt: Fixed, out: Fixed = NRM, x_fmt: Fixed = NRM) -> Ints:
    """Elementwise x * weight (``fmt``), rounded and saturated to ``out``."""
    return saturate(round_shift(x * weight, x_fmt.frac + fmt.frac - out.frac), out)


def rms(x: Ints, fmt: Fixed, weight: Ints, eps: float) -> Ints:
    """rms(x, w) as NRM; w is CONST."""
    return scale(normalise(x, fmt, eps), weight, CONST)


def gated(x: Ints, gate: Ints, x_fmt: Fixed) -> Ints:
    """x * gate with gate in SIG, as NRM."""
    return scale(x, gate, SIG, NRM, x_fmt)


def mix_score(v: Ints, projection: Ints, eps: float) -> Ints:
    """Residual-mix score log2(e) * p . rms(v, w) of VEC v [..., d] as SCORE.

    ``projection`` is CONST and holds p * w * log2(e); rms's factor is applied to the dot product.
    """
    mantissa, k = inverse_norm(v, VEC, eps, mean=True)
    dot = round_shift((v * projection).sum(axis=-1), 6)  # 19 fraction bits, 40 bits
    return saturate(round_shift(dot * mantissa, VEC.frac + CONST.frac - 6 + 18 - SCORE.frac + k), SCORE)


def softmax_weights(scores: Ints) -> Ints:
    """2^s / sum 2^s over the last axis (a handful of candidates) of SCORE as UNIT."""
    e = exp2_neg((scores.max(axis=-1, keepdims=True) - scores) << (16 - SCORE.frac))
    mantissa, p = recip(e.sum(axis=-1))
    return round_shift(e * mantissa[..., None], 18 + p[..., None] - UNIT.frac)


def weighted_sum(weights: Ints, vectors: list[Ints]) -> Ints:
    """sum_i w_i v_i of VEC vectors [..., d] with UNIT weights [..., n]: exact sum, one rounding, VEC."""
    total = sum((weights[..., i, None] * v for i, v in enumerate(vectors)), start=ints(0))
    return saturate(round_shift(total, UNIT.frac), VEC)
