"""MoE router: biased top-k (ties to the lowest index), unbiased renormalised weights."""

from __future__ import annotations

import numpy as np

from golden.fixed.functions import recip
from golden.fixed.numbers import BIAS, SIG, UNIT, Ints, ints, round_shift

SCALE_FRAC = 14


def route(s: Ints, bias: Ints, top_k: int, scale: float = 1.0) -> tuple[Ints, Ints]:
    """Picked experts [..., k] in order of rank and their weights [..., k] (UNIT's fraction, up to 2 * scale).

    s [..., E] SIG, bias [E] BIAS.  A score of 0 counts as one ulp, so the sum is never 0.
    """
    s = np.maximum(ints(s), 1)
    key = s + (bias << (SIG.frac - BIAS.frac))
    picks = []
    for _ in range(top_k):
        best = np.argmax(key, axis=-1)  # numpy takes the first of equal values
        picks.append(best)
        key = np.where(np.arange(key.shape[-1]) == best[..., None], np.iinfo(np.int64).min, key)
    experts = np.stack(picks, axis=-1)
    picked = np.take_along_axis(s, experts, axis=-1)
    mantissa, p = recip(picked.sum(axis=-1))
    weights = round_shift(picked * mantissa[..., None], 18 + p[..., None] - UNIT.frac)
    factor = int(np.floor(scale * 2**SCALE_FRAC + 0.5))
    return experts, weights if factor == 1 << SCALE_FRAC else round_shift(weights * factor, SCALE_FRAC)
