"""Gated multi-head latent attention without positional encoding.

What is cached per position is the latent c and the shared key part k_r.  The
unquantised recurrent form expands k and v from c (the judge); the quantised and
the parallel forms multiply q by W_kvb's transpose once per token (absorbed),
which is the order the hardware computes in and rounds at.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from golden.config import ConfigError, ModelConfig
from golden.formats import E2M1, MX_BLOCK, mx_binade
from golden.norm import RmsNorm
from golden.numerics import Numerics

MlaState = dict[str, torch.Tensor]


def check_quantisable(cfg: ModelConfig) -> None:
    """Refuse shapes whose absorbed query does not come in MX blocks: one of the latent, whole ones of q_nope."""
    if cfg.kv_lora_rank != MX_BLOCK:
        raise ConfigError(f"{cfg.name}: quantised MLA needs kv_lora_rank {MX_BLOCK}, not {cfg.kv_lora_rank}")
    if cfg.qk_nope_head_dim % MX_BLOCK:
        needs = f"qk_nope_head_dim to be a multiple of {MX_BLOCK}"
        raise ConfigError(f"{cfg.name}: quantised MLA needs {needs}, not {cfg.qk_nope_head_dim}")


class MultiHeadLatentAttention(nn.Module):
    """One MLA layer; parameter names are those of the released checkpoint."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
        d, h = cfg.hidden_size, cfg.num_attention_heads
        self.heads, self.nope, self.rope, self.vdim = h, cfg.qk_nope_head_dim, cfg.qk_rope_head_dim, cfg.v_head_dim
        self.scale = (self.nope + self.rope) ** -0.5

        def linear(m: int, n: int) -> nn.Linear:
            return nn.Linear(n, m, bias=False)

        if cfg.q_lora_rank is None:
            self.q_proj = linear(h * (self.nope + self.rope), d)
        else:
            self.q_a_proj = linear(cfg.q_lora_rank, d)
            self.q_a_layernorm = RmsNorm(cfg.q_lora_rank, cfg.mla_norm_eps, cfg.norm_offset)
            self.q_b_proj = linear(h * (self.nope + self.rope), cfg.q_lora_rank)
        self.kv_a_proj_with_mqa = linear(cfg.kv_lora_rank + self.rope, d)
        self.kv_a_layernorm = RmsNorm(cfg.kv_lora_rank, cfg.mla_norm_eps, cfg.norm_offset)
        self.kv_b_proj = linear(h * (self.nope + self.vdim), cfg.kv_lora_rank)
        if cfg.mla_output_gate:
            self.g_proj = linear(h * self.vdim, d)
        self.o_proj = linear(d, h * self.vdim)

    def init_state(self, batch: int, dtype: torch.dtype) -> MlaState:
        """Empty cache: c [B, 0, kv_lora] and k_r [B, 0, rope]; both grow by one position per token."""
        lora = self.cfg.kv_lora_rank
        return {"c": torch.zeros(batch, 0, lora, dtype=dtype), "k_r": torch.zeros(batch, 0, self.rope, dtype=dtype)}

    def _query(self, x: torch.Tensor, num: Numerics) -> tuple[torch.Tensor, torch.Tensor]:
        """x [..., d] (rounded) -> q_nope [..., H, nope], q_rope [..., H, rope]."""
        if self.cfg.q_lora_rank is None:
            q = num.matmul(x, self.q_proj.weight)
        else:
            q_a = self.q_a_layernorm(num.matmul(x, self.q_a_proj.weight))
            q = num.matmul(num.act(q_a), self.q_b_proj.weight)
        q_nope, q_rope = q.unflatten(-1, (self.heads, -1)).split([self.nope, self.rope], -1)
        return q_nope, q_rope

    def _latent(self, x: torch.Tensor, num: Numerics) -> tuple[torch.Tensor, torch.Tensor]:
        """x [..., d] (rounded) -> cached c [..., kv_lora] (normalised) and k_r [..., rope]."""
        c, k_r = num.matmul(x, self.kv_a_proj_with_mqa.weight).split([self.cfg.kv_lora_rank, self.rope], -1)
        return self.kv_a_layernorm(c), k_r

    def kv_b(self, num: Numerics) -> tuple[torch.Tensor, torch.Tensor]:
        """kv_b_proj's rows per head, (rounded): W_k [H, nope, kv_lora], W_v [H, v, kv_lora]."""
        w = num.weight(self.kv_b_proj.weight).unflatten(0, (self.heads, -1))
        w_k, w_v = w.split([self.nope, self.vdim], 1)
        return w_k, w_v

    def row_exponents(self) -> torch.Tensor:
        """2^e_r [H, nope], e_r = s_r - max over the head's rows of s_r, from W_k's block scales 2^s_r.

        The transposed product sums over rows r, across MX blocks; moving each row's scale (relative to the
        head's largest) into q leaves exact E2M1 elements and one common scale for the matmul.
        """
        w_k = self.kv_b_proj.weight.detach().unflatten(0, (self.heads, -1))[:, : self.nope]
        top = mx_binade(w_k, E2M1)[..., 0]
        return top / top.amax(-1, keepdim=True)

    def absorbed_query(self, q_nope: torch.Tensor, w_k: torch.Tensor, num: Numerics) -> torch.Tensor:
        """q' = W_k^T q per head: q_nope [..., H, nope] -> [..., H, kv_lora].

        Quantised: qs_r = q_r 2^e_r is rounded to MXFP8 and multiplies the elements times the common scale.
        """
        if num.mx:
            check_quantisable(self.cfg)
            factor = self.row_exponents()
            q_nope = num.act(q_nope * factor)
            w_k = w_k / factor.unsqueeze(-1)  # exact: powers of two
        flat = q_nope.movedim(-2, 0)
        out = torch.bmm(flat.reshape(self.heads, -1, self.nope), w_k)
        return out.view(*flat.shape[:-1], -1).movedim(0, -2)

    def _output(self, value: torch.Tensor, x: torch.Tensor, num: Numerics, scope: str) -> torch.Tensor:
        """Heads' values [..., H*v] -> gated and projected [..., d]."""
        num.record(f"{scope}.o", value)
        if self.cfg.mla_output_gate:
            gate = torch.sigmoid(num.matmul(x, self.g_proj.weight))
            num.record(f"{scope}.gate", gate)
            value = value * gate
        num.record(f"{scope}.gated", value)
        return num.matmul(num.act(value), self.o_proj.weight)

    def step(self, x: torch.Tensor, state: MlaState, num: Numerics, scope: str) -> tuple[torch.Tensor, MlaState]:
        """One token: x [B, d], already rounded -> (output [B, d], cache longer by one position)."""
        q_nope, q_rope = self._query(x, num)
        c, k_r = self._latent(x, num)
        new = {"c": torch.cat([state["c"], c.unsqueeze(1)], 1), "k_r": torch.cat([state["k_r"], k_r.unsqueeze(1)], 1)}
        for name, value in (("q_nope", q_nope), ("q_rope", q_rope), ("c", c), ("k_r", k_r)):
            num.record(f"{scope}.{name}", value)
        w_k, w_v = self.kv_b(num)
        attend = self._attend_absorbed if num.quantise else self._attend_naive
        return self._output(attend(q_nope, q_rope, new, w_k, w_v, num, scope).flatten(-2), x, num, scope), new

    def _attend_naive(
        self,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        cache: MlaState,
        w_k: torch.Tensor,
        w_v: torch.Tensor,
        num: Numerics,
        scope: str,
    ) -> torch.Tensor:
        """Expand k and v of every cached position, then softmax attention -> [B, H, v]."""
        k = torch.einsum("btc,hnc->bhtn", cache["c"], w_k)
        v = torch.einsum("btc,hvc->bhtv", cache["c"], w_v)
        scores = torch.einsum("bhn,bhtn->bht", q_nope, k) + torch.einsum("bhr,btr->bht", q_rope, cache["k_r"])
        weights = torch.softmax(scores * self.scale, -1)
        num.record(f"{scope}.scores", scores * self.scale)
        return torch.einsum("bht,bhtv->bhv", weights, v)

    def _attend_absorbed(
        self,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        cache: MlaState,
        w_k: torch.Tensor,
        w_v: torch.Tensor,
        num: Numerics,
        scope: str,
    ) -> torch.Tensor:
        """Attend over c itself, then multiply the context by W_v -> [B, H, v]."""
        q_abs = self.absorbed_query(q_nope, w_k, num)
        scores = torch.einsum("bhc,btc->bht", q_abs, cache["c"]) + torch.einsum("bhr,btr->bht", q_rope, cache["k_r"])
        weights = torch.softmax(scores * self.scale, -1)
        context = torch.einsum("bht,btc->bhc", weights, cache["c"])
        for name, value in (("q_abs", q_abs), ("scores", scores * self.scale), ("context", context)):
            num.record(f"{scope}.{name}", value)
        return torch.einsum("bhc,hvc->bhv", num.act(context), w_v)

    def parallel(self, x: torch.Tensor, num: Numerics, scope: str) -> torch.Tensor:
        """Whole windows, causal, absorbed: x [B, T, d] (rounded) -> [B, T, d]."""
        b, t, _ = x.shape
        q_nope, q_rope = self._query(x, num)
        c, k_r = self._latent(x, num)
        w_k, w_v = self.kv_b(num)
        q = torch.cat([self.absorbed_query(q_nope, w_k, num), q_rope], -1).transpose(1, 2)  # [B, H, T, lora+rope]
        keys = torch.cat([c, k_r], -1).unsqueeze(1).expand(-1, self.heads, -1, -1)
        # values are the keys too, so that all head sizes agree; the rope part of the result is dropped
        attended = F.scaled_dot_product_attention(q, keys, keys, is_causal=True, scale=self.scale)
        context, _ = attended.split([self.cfg.kv_lora_rank, self.rope], -1)
        value = (num.act(context) @ w_v.mT).transpose(1, 2).flatten(-2)
        return self._output(value, x, num, scope)
