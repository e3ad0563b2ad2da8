"""MLA engine: scores against the cached latent, softmax and context, in the absorbed form.

A cache entry is the normalised latent c and the shared key k_r, CACHE format.
"""

from __future__ import annotations

import math

from golden.fixed.functions import exp2_neg, recip
from golden.fixed.numbers import CACHE, CTX, NRM, QUERY, SCORE, VEC, Ints, round_shift, saturate

SCALE_FRAC = 18


def score_factor(nope: int, rope: int) -> int:
    """(nope + rope)^-0.5 * log2(e) with SCALE_FRAC fraction bits."""
    return math.floor(math.log2(math.e) / math.sqrt(nope + rope) * 2**SCALE_FRAC + 0.5)


def to_cache(x: Ints, frac: int) -> Ints:
    """A latent (NRM) or shared key (VEC) with ``frac`` fraction bits as CACHE."""
    return saturate(round_shift(x, frac - CACHE.frac), CACHE)


def to_query(x: Ints) -> Ints:
    """An absorbed query or q_rope (VEC) as QUERY."""
    return saturate(round_shift(x, VEC.frac - QUERY.frac), QUERY)


def scores(query: Ints, cache: Ints, factor: int) -> Ints:
    """Scores [..., heads, T] in log2 units (SCORE): query [..., heads, r + rope], cache [..., T, r + rope]."""
    dot = (query[..., :, None, :] * cache[..., None, :, :]).sum(axis=-1)
    short = round_shift(dot, QUERY.frac + CACHE.frac - SCORE.frac)
    return saturate(round_shift(short * factor, SCALE_FRAC), SCORE)


def weigh(s: Ints, latent: Ints) -> tuple[Ints, Ints]:
    """Softmax-weighted sum before its division: (CTX [..., heads, r], 1/m mantissa [..., heads], 18 fraction bits).

    s [..., heads, T] SCORE, latent [..., T, r] CACHE.  exp2 of (s - max) is UNIT; both
    sums are exact.  The sum of exponentials is m * 2**p with m in [1, 2): the weighted sum is shifted by p into CTX.
    """
    e = exp2_neg((s.max(axis=-1, keepdims=True) - s) << (16 - SCORE.frac))
    mantissa, p = recip(e.sum(axis=-1))  # e is 1.0 at the maximum, so p >= 16
    total = (e[..., None] * latent[..., None, :, :]).sum(axis=-2)
    shift = CACHE.frac - CTX.frac + p[..., None]
    return saturate(round_shift(total, shift), CTX), mantissa


def context(s: Ints, latent: Ints) -> Ints:
    """softmax(s) . c as NRM [..., heads, r]: ``weigh``, then times 1/m (in the vector unit)."""
    shifted, mantissa = weigh(s, latent)
    return saturate(round_shift(shifted * mantissa[..., None], CTX.frac + 18 - NRM.frac), NRM)
