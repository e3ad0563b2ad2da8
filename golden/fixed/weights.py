"""A checkpoint as the chip stores it: MXFP4 matrices and fixed-point vectors.

``state`` maps released tensor names (experts unpacked, ``.weight``) to arrays,
as :mod:`golden.model` names them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from golden.config import ConfigError, ModelConfig
from golden.fixed.mx import BLOCK, MxMatrix
from golden.fixed.numbers import BIAS, CONST, DTB, RATE, ROWSCALE, Fixed, Ints, ints, to_fixed
from golden.formats import E2M1, E8M0_NAN, mx_encode

State = Mapping[str, Any]


@dataclass
class FfnWeights:
    """Gate, up and down matrices of a dense FFN, the fused shared experts or one routed expert."""

    gate: MxMatrix
    up: MxMatrix
    down: MxMatrix


@dataclass
class KdaWeights:
    """One KDA layer. taps[stream] [channels, 4] CONST; dt_bias [channels] DTB; rate [channels] RATE; o_norm CONST."""

    q: MxMatrix
    k: MxMatrix
    v: MxMatrix
    f_a: MxMatrix
    f_b: MxMatrix
    b: MxMatrix
    g: MxMatrix
    o: MxMatrix
    taps: dict[str, Ints]
    dt_bias: Ints
    rate: Ints
    o_norm: Ints


@dataclass
class MlaWeights:
    """One MLA layer. key[h] is W_k transposed [latent, nope], one common scale; row_scale [heads, nope] ROWSCALE."""

    q_a: MxMatrix
    q_a_norm: Ints
    q_nope: MxMatrix
    q_rope: MxMatrix
    latent: MxMatrix
    latent_norm: Ints
    k_rope: MxMatrix
    key: list[MxMatrix]
    row_scale: Ints
    value: list[MxMatrix]
    g: MxMatrix
    o: MxMatrix


@dataclass
class MoeWeights:
    """Router, latent projections, routed experts and the fused shared ones. bias [E] BIAS, norm [latent] CONST."""

    router: MxMatrix
    bias: Ints
    down: MxMatrix
    up: MxMatrix
    norm: Ints
    experts: list[FfnWeights]
    shared: FfnWeights


@dataclass
class LayerWeights:
    """One layer; mix vectors are p * w * log2(e) as CONST (layer 0's attention mix is unused)."""

    attn_norm: Ints
    mlp_norm: Ints
    attn_mix: Ints
    mlp_mix: Ints
    attn: KdaWeights | MlaWeights
    ffn: FfnWeights | MoeWeights


@dataclass
class ChipWeights:
    """The whole model as the chip stores it."""

    embed: MxMatrix
    layers: list[LayerWeights]
    out_mix: Ints
    final_norm: Ints
    head: MxMatrix


def fit(name: str, values: Any, fmt: Fixed) -> Ints:
    """Values as ``fmt``; a value outside its range is refused by the tensor's name."""
    v = np.asarray(values, np.float64)
    if not np.isfinite(v).all():
        raise ConfigError(f"{name} holds a value that is not finite")
    worst = float(np.abs(v).max(initial=0.0))
    if (v * 2.0**fmt.frac > fmt.max + 0.5).any() or (v * 2.0**fmt.frac < fmt.min - 0.5).any():
        limit = f"{fmt.name} format (largest {fmt.max * fmt.ulp:.4g})"
        raise ConfigError(f"{name}: {worst:.4g} does not fit the chip's {limit}")
    return to_fixed(v, fmt)


def matrix(state: State, name: str) -> MxMatrix:
    """A stored matrix [rows, fan-in] as MXFP4."""
    values = np.asarray(state[name], np.float64)
    codes, scales = mx_encode(values, E2M1)
    if (scales == E8M0_NAN).any():
        raise ConfigError(f"{name} holds a value that is not finite")
    blocks = values.shape[1] // BLOCK
    return MxMatrix(ints(codes).reshape(-1, blocks, BLOCK), ints(scales).reshape(-1, blocks))


def rows(w: MxMatrix, index: Any) -> MxMatrix:
    """Some rows of a matrix."""
    return MxMatrix(w.codes[index], w.scale[index])


def mix_vector(state: State, prefix: str) -> Ints:
    """p * w * log2(e) of ``{prefix}_proj`` and ``{prefix}_norm`` as CONST."""
    p = np.asarray(state[f"{prefix}_proj.weight"], np.float64)[0]
    w = np.asarray(state[f"{prefix}_norm.weight"], np.float64)
    return fit(f"{prefix}_proj", p * w * math.log2(math.e), CONST)


def kda_weights(cfg: ModelConfig, state: State, at: str) -> KdaWeights:
    """A KDA layer; exp(A_log) is clipped to RATE's largest value (32), where the decay has long saturated."""
    m = {n: matrix(state, f"{at}.{n}_proj.weight") for n in ("q", "k", "v", "f_a", "f_b", "b", "g", "o")}
    a_log = np.asarray(state[f"{at}.A_log"], np.float64)[: cfg.kda_num_heads]
    rate = np.exp(np.minimum(a_log, math.log(RATE.max * RATE.ulp)))
    norm = np.asarray(state[f"{at}.o_norm.weight"], np.float64)
    return KdaWeights(
        **m,
        taps={n: fit(f"{at}.{n}_conv1d", np.asarray(state[f"{at}.{n}_conv1d.weight"])[:, 0], CONST) for n in "qkv"},
        dt_bias=fit(f"{at}.dt_bias", state[f"{at}.dt_bias"], DTB),
        rate=np.repeat(to_fixed(rate, RATE), cfg.kda_head_dim),
        o_norm=fit(f"{at}.o_norm", np.tile(norm, cfg.kda_num_heads), CONST),
    )


def transposed_key(w_k: MxMatrix) -> tuple[MxMatrix, Ints]:
    """W_k [nope, one block of latent] as its transpose with one scale, and the rows' relative scales as ROWSCALE.

    Relative scales below ROWSCALE's ulp (2**-14 of the head's largest) round to 0.
    """
    exponent = w_k.scale[:, 0]
    top = exponent.max()
    codes = w_k.codes[:, 0, :].T.reshape(BLOCK, 1, BLOCK)
    return MxMatrix(codes, np.full((BLOCK, 1), top)), to_fixed(2.0 ** (exponent - top).astype(np.float64), ROWSCALE)


def mla_weights(cfg: ModelConfig, state: State, at: str) -> MlaWeights:
    """An MLA layer; q_b and kv_b are split by head into the parts that the chip multiplies separately."""
    heads, nope, rope, lora = cfg.num_attention_heads, cfg.qk_nope_head_dim, cfg.qk_rope_head_dim, cfg.kv_lora_rank
    q_b = matrix(state, f"{at}.q_b_proj.weight")
    kv_a = matrix(state, f"{at}.kv_a_proj_with_mqa.weight")
    kv_b = matrix(state, f"{at}.kv_b_proj.weight")
    q_index = np.arange(heads * (nope + rope)).reshape(heads, -1)
    kv_index = np.arange(heads * (nope + cfg.v_head_dim)).reshape(heads, -1)
    keys = [transposed_key(rows(kv_b, kv_index[h, :nope])) for h in range(heads)]
    return MlaWeights(
        q_a=matrix(state, f"{at}.q_a_proj.weight"),
        q_a_norm=fit(f"{at}.q_a_layernorm", state[f"{at}.q_a_layernorm.weight"], CONST),
        q_nope=rows(q_b, q_index[:, :nope].ravel()),
        q_rope=rows(q_b, q_index[:, nope:].ravel()),
        latent=rows(kv_a, slice(0, lora)),
        latent_norm=fit(f"{at}.kv_a_layernorm", state[f"{at}.kv_a_layernorm.weight"], CONST),
        k_rope=rows(kv_a, slice(lora, lora + rope)),
        key=[k for k, _ in keys],
        row_scale=np.stack([s for _, s in keys]),
        value=[rows(kv_b, kv_index[h, nope:]) for h in range(heads)],
        g=matrix(state, f"{at}.g_proj.weight"),
        o=matrix(state, f"{at}.o_proj.weight"),
    )


def ffn_weights(state: State, gate: str, up: str, down: str) -> FfnWeights:
    """Three matrices by name."""
    return FfnWeights(*(matrix(state, f"{n}.weight") for n in (gate, up, down)))


def moe_weights(cfg: ModelConfig, state: State, at: str) -> MoeWeights:
    """A MoE layer."""
    shared = f"{at}.shared_experts"
    return MoeWeights(
        router=matrix(state, f"{at}.gate.weight"),
        bias=fit(f"{at}.gate.e_score_correction_bias", state[f"{at}.gate.e_score_correction_bias"], BIAS),
        down=matrix(state, f"{at}.routed_expert_down_proj.weight"),
        up=matrix(state, f"{at}.routed_expert_up_proj.weight"),
        norm=fit(f"{at}.routed_expert_norm", state[f"{at}.routed_expert_norm.weight"], CONST),
        experts=[
            ffn_weights(state, *(f"{at}.experts.{e}.{w}" for w in ("w1", "w3", "w2"))) for e in range(cfg.num_experts)
        ],
        shared=ffn_weights(state, *(f"{shared}.{n}_proj" for n in ("gate", "up", "down"))),
    )


def layer_weights(cfg: ModelConfig, state: State, layer: int) -> LayerWeights:
    """One decoder layer."""
    at = f"model.layers.{layer}"
    attn = (kda_weights if cfg.is_kda(layer) else mla_weights)(cfg, state, f"{at}.self_attn")
    if cfg.is_dense(layer):
        ffn: FfnWeights | MoeWeights = ffn_weights(state, *(f"{at}.mlp.{n}_proj" for n in ("gate", "up", "down")))
    else:
        ffn = moe_weights(cfg, state, f"{at}.block_sparse_moe")
    return LayerWeights(
        attn_norm=fit(f"{at}.input_layernorm", state[f"{at}.input_layernorm.weight"], CONST),
        mlp_norm=fit(f"{at}.post_attention_layernorm", state[f"{at}.post_attention_layernorm.weight"], CONST),
        attn_mix=mix_vector(state, f"{at}.self_attention_res"),
        mlp_mix=mix_vector(state, f"{at}.mlp_res"),
        attn=attn,
        ffn=ffn,
    )


def chip_weights(cfg: ModelConfig, state: State) -> ChipWeights:
    """Everything the image holds; raises ConfigError by tensor name for what the formats cannot hold."""
    return ChipWeights(
        embed=matrix(state, "model.embed_tokens.weight"),
        layers=[layer_weights(cfg, state, i) for i in range(cfg.num_hidden_layers)],
        out_mix=mix_vector(state, "model.output_attn_res"),
        final_norm=fit("model.norm", state["model.norm.weight"], CONST),
        head=matrix(state, "lm_head.weight"),
    )
