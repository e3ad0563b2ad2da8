"""The integer twin of the whole chip: one token at a time, batched over sequences.

Normative for the hardware: every value that a register, cache or stream of the
chip holds is computed here to the bit.  Taps carry real values (exact in
float64) under the names of :mod:`golden.taps`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from golden.config import ModelConfig
from golden.fixed import kda, lanes, mla, router, vector
from golden.fixed.mx import MxVector, dequantise_row, matvec, quantise
from golden.fixed.numbers import (
    CACHE,
    CONST,
    KEY,
    NRM,
    QUERY,
    ROWSCALE,
    SCORE,
    SIG,
    STATE,
    UNIT,
    VEC,
    Fixed,
    Ints,
    ints,
    round_shift,
    saturate,
    to_float,
)
from golden.fixed.weights import ChipWeights, FfnWeights, KdaWeights, LayerWeights, MlaWeights, MoeWeights

Tap = Callable[[str, np.ndarray], None]
LN2 = math.log(2.0)  # of a score, which is in units of log2


@dataclass
class TwinState:
    """Everything that lives from token to token; ``position`` tokens have been taken.

    state [B, kda layers, heads, keys, values] STATE; history[q|k|v] [B, kda layers, channels, 3] VEC, oldest first;
    cache [B, mla layers, max positions, latent + rope] CACHE.
    """

    position: int
    state: Ints
    history: dict[str, Ints]
    cache: Ints


class Twin:
    """The chip's arithmetic for one model; ``tap(name, real values)`` sees every stage boundary."""

    def __init__(self, cfg: ModelConfig, weights: ChipWeights, tap: Tap | None = None) -> None:
        self.cfg = cfg
        self.weights = weights
        self.tap = tap
        self.factor = mla.score_factor(cfg.qk_nope_head_dim, cfg.qk_rope_head_dim)

    def init_state(self, batch: int = 1) -> TwinState:
        """State before the first token."""
        c = self.cfg
        heads, dim = c.kda_num_heads, c.kda_head_dim
        return TwinState(
            position=0,
            state=np.zeros((batch, len(c.kda_layers), heads, dim, dim), np.int64),
            history={n: np.zeros((batch, len(c.kda_layers), heads * dim, 3), np.int64) for n in "qkv"},
            cache=np.zeros(
                (batch, len(c.full_attn_layers), c.max_positions, c.kv_lora_rank + c.qk_rope_head_dim), np.int64
            ),
        )

    def record(self, name: str, value: Ints, fmt: Fixed | None = None, factor: float = 1.0) -> None:
        """Show a stage boundary to the tap, as real values (times a factor that the chip leaves out)."""
        if self.tap is not None:
            self.tap(name, to_float(value, fmt) * factor if fmt else value)

    def step(self, tokens: Ints, state: TwinState) -> Ints:
        """One token per sequence: tokens [B] -> logits [B, vocab] VEC; ``state`` moves on in place."""
        c, w = self.cfg, self.weights
        prefix = dequantise_row(w.embed, ints(tokens))
        self.record("embedding", prefix, VEC)
        blocks: list[Ints] = []
        for i, layer in enumerate(w.layers):
            scope = f"layer.{i}"
            x = self.mix(blocks, prefix, layer.attn_mix)
            self.record(f"{scope}.attn_in", x, VEC)
            restart = i in c.block_starts()
            if restart:
                blocks.append(prefix)
            x = vector.rms(x, VEC, layer.attn_norm, c.rms_norm_eps)
            self.record(f"{scope}.attn_norm", x, NRM)
            out = self.attention(i, layer, quantise(x, NRM), state, scope)
            self.record(f"{scope}.attn_out", out, VEC)
            prefix = out if restart else saturate(prefix + out, VEC)
            self.record(f"{scope}.prefix_attn", prefix, VEC)
            h = self.mix(blocks, prefix, layer.mlp_mix)
            self.record(f"{scope}.mlp_in", h, VEC)
            h = vector.rms(h, VEC, layer.mlp_norm, c.rms_norm_eps)
            self.record(f"{scope}.mlp_norm", h, NRM)
            for out in self.feed_forward(layer, quantise(h, NRM), scope):
                prefix = saturate(prefix + out, VEC)
            self.record(f"{scope}.prefix", prefix, VEC)
        x = self.mix(blocks, prefix, w.out_mix)
        self.record("final_in", x, VEC)
        x = vector.rms(x, VEC, w.final_norm, c.rms_norm_eps)
        self.record("final_norm", x, NRM)
        logits = matvec(w.head, quantise(x, NRM))
        self.record("logits", logits, VEC)
        state.position += 1
        return logits

    def mix(self, blocks: list[Ints], prefix: Ints, projection: Ints) -> Ints:
        """Attention residual over the snapshots and the running prefix."""
        if not blocks:
            return prefix
        candidates = [*blocks, prefix]
        scores = np.stack([vector.mix_score(v, projection, self.cfg.rms_norm_eps) for v in candidates], axis=-1)
        return vector.weighted_sum(vector.softmax_weights(scores), candidates)

    def attention(self, i: int, layer: LayerWeights, x: MxVector, state: TwinState, scope: str) -> Ints:
        """KDA or MLA of layer ``i``."""
        if isinstance(layer.attn, KdaWeights):
            return self.kda(layer.attn, x, state, self.cfg.kda_layers.index(i + 1), scope)
        return self.mla(layer.attn, x, state, self.cfg.full_attn_layers.index(i + 1), scope)

    def kda(self, w: KdaWeights, x: MxVector, state: TwinState, index: int, scope: str) -> Ints:
        """KDA layer ``index`` (among KDA layers): x [B, blocks] -> VEC [B, d]."""
        c = self.cfg
        shape = (-1, c.kda_num_heads, c.kda_head_dim)
        conv = {n: self.convolution(w, n, matvec(getattr(w, n), x), state, index, scope) for n in "qkv"}
        q, k = (vector.l2(conv[n].reshape(shape), VEC, c.l2_norm_eps) for n in "qk")
        v = conv["v"].reshape(shape)
        f = matvec(w.f_b, quantise(matvec(w.f_a, x), VEC))
        alpha = lanes.decay(f, w.dt_bias, w.rate, c.gate_lower_bound).reshape(shape)
        beta = round_shift(lanes.gate(matvec(w.b, x)), SIG.frac - UNIT.frac)
        result = kda.state_update(state.state[:, index], k, q, v, alpha, beta)
        state.state[:, index] = result.state
        gate = lanes.gate(matvec(w.g, x))
        o = vector.normalise(result.o, NRM, c.rms_norm_eps * c.kda_head_dim)  # q came without its head_dim^-0.5
        normed = vector.scale(o.reshape(o.shape[0], -1), w.o_norm, CONST)
        gated = vector.gated(normed, gate, NRM)
        for name, value, fmt in (
            ("q", q, KEY), ("k", k, KEY), ("v", v, VEC), ("alpha", alpha, UNIT), ("beta", beta, UNIT),
            ("o", result.o, NRM), ("gate", gate, SIG), ("gated", gated, NRM), ("state", result.state, STATE),
        ):  # fmt: skip
            self.record(f"{scope}.{name}", value, fmt, c.kda_head_dim**-0.5 if name in "qo" else 1.0)
        return matvec(w.o, quantise(gated, NRM))

    def convolution(self, w: KdaWeights, name: str, raw: Ints, state: TwinState, index: int, scope: str) -> Ints:
        """Short convolution and SiLU of one stream; moves its history on."""
        window = np.concatenate([state.history[name][:, index], raw[..., None]], axis=-1)
        state.history[name][:, index] = window[..., 1:]
        y = lanes.silu(lanes.conv(window, w.taps[name]))
        self.record(f"{scope}.{name}_conv", y, VEC)
        return y

    def mla(self, w: MlaWeights, x: MxVector, state: TwinState, index: int, scope: str) -> Ints:
        """MLA layer ``index`` (among MLA layers): x [B, blocks] -> VEC [B, d]."""
        c = self.cfg
        heads, lora, t = c.num_attention_heads, c.kv_lora_rank, state.position + 1
        q_a = vector.rms(matvec(w.q_a, x), VEC, w.q_a_norm, c.mla_norm_eps)
        q_a_mx = quantise(q_a, NRM)
        q_nope = matvec(w.q_nope, q_a_mx).reshape(-1, heads, c.qk_nope_head_dim)
        q_rope = matvec(w.q_rope, q_a_mx).reshape(-1, heads, c.qk_rope_head_dim)
        scaled = vector.scale(q_nope, w.row_scale, ROWSCALE, NRM, VEC)
        absorbed = np.stack([matvec(w.key[h], quantise(scaled[:, h], NRM)) for h in range(heads)], axis=1)
        query = np.concatenate([mla.to_query(absorbed), mla.to_query(q_rope)], axis=-1)
        latent = vector.rms(matvec(w.latent, x), VEC, w.latent_norm, c.mla_norm_eps)
        k_rope = matvec(w.k_rope, x)
        entry = np.concatenate([mla.to_cache(latent, NRM.frac), mla.to_cache(k_rope, VEC.frac)], axis=-1)
        state.cache[:, index, state.position] = entry
        seen = state.cache[:, index, :t]
        s = mla.scores(query, seen, self.factor)
        context = mla.context(s, seen[..., :lora])
        values = [matvec(w.value[h], quantise(context[:, h], NRM)) for h in range(heads)]
        o = np.concatenate(values, axis=-1)
        gate = lanes.gate(matvec(w.g, x))
        gated = vector.gated(o, gate, VEC)
        for name, value, fmt in (
            ("q_nope", q_nope, VEC), ("q_rope", query[..., lora:], QUERY), ("c", entry[..., :lora], CACHE),
            ("k_r", entry[..., lora:], CACHE), ("q_abs", query[..., :lora], QUERY), ("scores", s, SCORE),
            ("context", context, NRM), ("o", o, VEC), ("gate", gate, SIG), ("gated", gated, NRM),
        ):  # fmt: skip
            self.record(f"{scope}.{name}", value, fmt, LN2 if name == "scores" else 1.0)
        return matvec(w.o, quantise(gated, NRM))

    def feed_forward(self, layer: LayerWeights, x: MxVector, scope: str) -> list[Ints]:
        """The parts that are added to the running prefix, in the chip's order, VEC [B, d] each."""
        if isinstance(layer.ffn, FfnWeights):
            out = [self.ffn(layer.ffn, x, f"{scope}.dense")]
        else:
            out = self.moe(layer.ffn, x, scope)
        self.record(f"{scope}.ffn_out", sum(out, start=ints(0)), VEC)
        return out

    def activation(self, g: Ints, u: Ints) -> Ints:
        """SiTU-GLU with the preset's bounds."""
        return lanes.situ(g, u, self.cfg.activation_situ_beta, self.cfg.activation_situ_linear_beta)

    def ffn(self, w: FfnWeights, x: MxVector, scope: str) -> Ints:
        """Dense FFN or fused shared experts."""
        hidden = self.activation(matvec(w.gate, x), matvec(w.up, x))
        self.record(f"{scope}.hidden", hidden, VEC)
        return matvec(w.down, quantise(hidden, VEC))

    def moe(self, w: MoeWeights, x: MxVector, scope: str) -> list[Ints]:
        """Shared experts' and routed experts' outputs."""
        c = self.cfg
        scores = lanes.gate(matvec(w.router, x))
        experts, weights = router.route(scores, w.bias, c.num_experts_per_token, c.routed_scaling_factor)
        z = matvec(w.down, x)
        z_mx = quantise(z, VEC)
        outs = self.routed(w, z_mx, experts)
        u = vector.weighted_sum(weights, [outs[:, i] for i in range(outs.shape[1])])
        normed = vector.rms(u, VEC, w.norm, c.rms_norm_eps)
        shared = self.ffn(w.shared, x, f"{scope}.shared")
        for name, value, fmt in (
            ("router", scores, SIG), ("experts", experts, None), ("expert_weights", weights, UNIT), ("z", z, VEC),
            ("expert_out", outs, VEC), ("routed", u, VEC), ("shared_out", shared, VEC),
        ):  # fmt: skip
            self.record(f"{scope}.{name}", value, fmt)
        return [shared, matvec(w.up, quantise(normed, NRM))]

    def routed(self, w: MoeWeights, z: MxVector, experts: Ints) -> Ints:
        """Picked experts' outputs VEC [B, k, latent]."""
        out = np.zeros((*experts.shape, self.cfg.latent_size), np.int64)
        for e in np.unique(experts):
            expert = w.experts[int(e)]
            batch, slot = np.nonzero(experts == e)
            picked = MxVector(z.codes[batch], z.scale[batch])
            hidden = self.activation(matvec(expert.gate, picked), matvec(expert.up, picked))
            out[batch, slot] = matvec(expert.down, quantise(hidden, VEC))
        return out

    def generate(self, prompt: list[int], count: int) -> list[int]:
        """Greedy decode: ``count`` tokens after ``prompt`` (1 or more tokens)."""
        state = self.init_state()
        logits = None
        for token in prompt:
            logits = self.step(ints([token]), state)
        out: list[int] = []
        for i in range(count):
            assert logits is not None
            out.append(int(lanes.argmax(logits)[0]))
            if i + 1 < count:
                logits = self.step(ints([out[-1]]), state)
        return out
