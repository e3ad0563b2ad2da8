"""What the MLA engine must answer, from the golden functions, and words for its ports."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from golden.fixed import mla as golden
from golden.fixed.functions import exp2_neg, recip
from golden.fixed.numbers import CACHE, CTX, NRM, SCORE, VEC, Ints, round_shift, saturate
from hw.params import Params, from_preset


def params(preset: str, mla_positions: int | None = None, max_positions: int | None = None) -> Params:
    """A preset with other sizes."""
    p = from_preset(preset)
    p = replace(p, model=replace(p.model, max_positions=max_positions or p.model.max_positions))
    return replace(p, mla_positions=mla_positions or p.mla_positions)


def pack(values, width: int) -> int:
    """Integers as one word, the first in the lowest bits."""
    return sum((int(v) & ((1 << width) - 1)) << (width * i) for i, v in enumerate(values))


def unpack(word: int, width: int, count: int) -> Ints:
    """Signed integers of a word."""
    raw = np.array([(word >> (width * i)) & ((1 << width) - 1) for i in range(count)], np.int64)
    return raw - ((raw >> (width - 1)) << width)


def vec(rng: np.random.Generator, scale: float, *shape: int) -> Ints:
    """Random VEC values of a magnitude."""
    return np.clip(rng.normal(0, scale, shape).astype(np.int64), VEC.min, VEC.max)


class Reference:
    """The cache, and golden's answers."""

    def __init__(self, p: Params) -> None:
        self.p, self.heads = p, p.model.num_attention_heads
        self.cache = np.zeros((p.mla_layers, p.model.max_positions, 48), np.int64)
        self.factor = golden.score_factor(p.model.qk_nope_head_dim, p.model.qk_rope_head_dim)

    def write(self, layer: int, position: int, latent: Ints, key: Ints) -> None:
        """Store an entry: CACHE latent and VEC key."""
        self.cache[layer, position] = np.concatenate([latent, golden.to_cache(key, VEC.frac)])

    def scores(self, layer: int, position: int, latent_query: Ints, rope_query: Ints) -> Ints:
        """Scores [heads, position + 1] of VEC queries [heads, 32] and [heads, 16]."""
        query = golden.to_query(np.concatenate([latent_query, rope_query], axis=-1))
        return golden.scores(query, self.cache[layer, : position + 1], self.factor)

    def attend(self, layer: int, position: int, latent_query: Ints, rope_query: Ints) -> tuple[Ints, Ints]:
        """(context [heads, 32] CTX, mantissas [heads]): golden.context before its last line."""
        s = self.scores(layer, position, latent_query, rope_query)
        latent = self.cache[layer, : position + 1, :32]
        e = exp2_neg((s.max(axis=-1, keepdims=True) - s) << (16 - SCORE.frac))
        mantissa, log = recip(e.sum(axis=-1))
        shifted = saturate(round_shift(e @ latent, CACHE.frac - CTX.frac + log[:, None]), CTX)
        final = saturate(round_shift(shifted * mantissa[:, None], CTX.frac + 18 - NRM.frac), NRM)
        np.testing.assert_array_equal(final, golden.context(s, latent))  # so this is what golden does
        return shifted, mantissa

    def registers(self, rng: np.random.Generator, latent_query: Ints, rope_query: Ints, key: Ints) -> int:
        """The T registers' word, random where the engine does not look."""
        t = rng.integers(VEC.min, VEC.max + 1, (4, self.p.lanes))
        t[0, : 32 * self.heads] = latent_query.ravel()
        t[3, : 16 * self.heads] = rope_query.ravel()
        t[3, 16 * self.heads : 16 * self.heads + 16] = key
        return pack(t.ravel(), VEC.width)
