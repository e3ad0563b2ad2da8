"""The float model: embeddings, layers, residual mixing and head (the judge of the integer twin).

``step`` takes one token with explicit state (recurrent, naive); ``forward``
takes whole windows from a zero state (parallel, for training and evaluation).
Both run in float32 or float64, and quantised through :class:`Numerics`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from golden.attn_res import mix
from golden.config import ModelConfig
from golden.kda import KimiDeltaAttention, ShortConv
from golden.mla import MultiHeadLatentAttention
from golden.moe import GatedFfn, LatentMoe, Router
from golden.norm import RmsNorm
from golden.numerics import Numerics

State = list[dict[str, torch.Tensor]]


class DecoderLayer(nn.Module):
    """Attention (KDA or MLA), feed-forward (dense or MoE), their norms and residual-mix vectors."""

    def __init__(self, cfg: ModelConfig, index: int) -> None:
        super().__init__()
        d, eps, offset = cfg.hidden_size, cfg.rms_norm_eps, cfg.norm_offset
        self.input_layernorm = RmsNorm(d, eps, offset)
        self.post_attention_layernorm = RmsNorm(d, eps, offset)
        self.self_attn: KimiDeltaAttention | MultiHeadLatentAttention = (
            KimiDeltaAttention(cfg) if cfg.is_kda(index) else MultiHeadLatentAttention(cfg)
        )
        if cfg.is_dense(index):
            self.mlp = GatedFfn(cfg, cfg.intermediate_size)
        else:
            self.block_sparse_moe = LatentMoe(cfg)
        if cfg.attn_res_block_size is not None:
            self.self_attention_res_norm = RmsNorm(d, eps, offset)
            self.self_attention_res_proj = nn.Linear(d, 1, bias=False)
            self.mlp_res_norm = RmsNorm(d, eps, offset)
            self.mlp_res_proj = nn.Linear(d, 1, bias=False)

    def feed_forward(self, x: torch.Tensor, num: Numerics, scope: str, naive: bool) -> torch.Tensor:
        """The layer's FFN of a rounded input [..., d]."""
        if hasattr(self, "mlp"):
            dense: torch.Tensor = self.mlp(x, num, f"{scope}.dense")
            return dense
        out: torch.Tensor = self.block_sparse_moe(x, num, scope, naive)
        return out


class Backbone(nn.Module):
    """Everything below the LM head (the ``model.`` part of released names)."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(cfg, i) for i in range(cfg.num_hidden_layers))
        if cfg.attn_res_block_size is not None:
            self.output_attn_res_norm = RmsNorm(cfg.hidden_size, cfg.rms_norm_eps, cfg.norm_offset)
            self.output_attn_res_proj = nn.Linear(cfg.hidden_size, 1, bias=False)
        self.norm = RmsNorm(cfg.hidden_size, cfg.rms_norm_eps, cfg.norm_offset)


class Residual:
    """The residual stream of one pass: block snapshots, the running prefix and their mixtures.

    ``blocks`` holds the snapshots oldest first; without AttnRes every mixture is the prefix itself.
    """

    def __init__(self, cfg: ModelConfig, embedding: torch.Tensor) -> None:
        self.eps = cfg.rms_norm_eps
        self.starts = set(cfg.block_starts())
        self.mixing = cfg.attn_res_block_size is not None
        self.blocks: list[torch.Tensor] = []
        self.prefix: torch.Tensor | None = embedding

    def mixture(self, owner: nn.Module, which: str) -> torch.Tensor:
        """mix(blocks + [prefix]) with the owner's ``{which}_norm`` and ``{which}_proj``."""
        assert self.prefix is not None
        if not self.mixing or not self.blocks:
            return self.prefix
        norm: RmsNorm = getattr(owner, f"{which}_norm")
        proj: nn.Linear = getattr(owner, f"{which}_proj")
        return mix([*self.blocks, self.prefix], norm.gain(), proj.weight[0], self.eps)

    def start_layer(self, layer: int) -> None:
        """Snapshot the prefix and restart the running sum where a block begins."""
        if layer in self.starts:
            assert self.prefix is not None
            self.blocks.append(self.prefix)
            self.prefix = None

    def add(self, out: torch.Tensor) -> torch.Tensor:
        """Add a sub-layer's output to the running sum; returns the new prefix."""
        self.prefix = out if self.prefix is None else self.prefix + out
        return self.prefix


class NanoK3(nn.Module):
    """The whole model; state_dict keys are the released names (experts unpacked as ``.weight``)."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.model = Backbone(cfg)
        self.lm_head = nn.Linear(cfg.hidden_size, cfg.vocab_size, bias=False)

    def numerics(self, quantise: bool = False, tap: Any = None) -> Numerics:
        """A Numerics with this preset's weight format."""
        return Numerics(quantise, self.cfg.weight_format, tap)

    def init_state(self, batch: int = 1) -> State:
        """Zero state of every layer, in the parameters' dtype."""
        dtype = self.lm_head.weight.dtype
        return [layer.self_attn.init_state(batch, dtype) for layer in self._layers()]

    def _layers(self) -> list[DecoderLayer]:
        return list(self.model.layers)  # type: ignore[arg-type]

    def step(self, tokens: torch.Tensor, state: State, num: Numerics | None = None) -> tuple[torch.Tensor, State]:
        """One token per sequence: tokens [B] -> (logits [B, vocab], new state); ``state`` is not changed."""
        num = num or self.numerics()
        new_state: State = []

        def attend(i: int, layer: DecoderLayer, x: torch.Tensor, scope: str) -> torch.Tensor:
            out, new = layer.self_attn.step(x, state[i], num, scope)
            new_state.append(new)
            return out

        return self._run(tokens, num, attend, naive=True), new_state

    def forward(self, tokens: torch.Tensor, num: Numerics | None = None) -> torch.Tensor:
        """Whole windows from a zero state: tokens [B, T] -> logits [B, T, vocab]."""
        num = num or self.numerics()

        def attend(i: int, layer: DecoderLayer, x: torch.Tensor, scope: str) -> torch.Tensor:
            return layer.self_attn.parallel(x, num, scope)

        return self._run(tokens, num, attend, naive=False)

    def _run(self, tokens: torch.Tensor, num: Numerics, attend: Any, naive: bool) -> torch.Tensor:
        """model.md's "One token", shared by both forms; they differ in ``attend`` and the experts' loop."""
        embedding = nn.functional.embedding(tokens, num.weight(self.model.embed_tokens.weight))
        num.record("embedding", embedding)
        stream = Residual(self.cfg, embedding)
        for i, layer in enumerate(self._layers()):
            scope = f"layer.{i}"
            x = stream.mixture(layer, "self_attention_res")
            num.record(f"{scope}.attn_in", x)
            stream.start_layer(i)
            x = layer.input_layernorm(x)
            num.record(f"{scope}.attn_norm", x)
            out = attend(i, layer, num.act(x), scope)
            num.record(f"{scope}.attn_out", out)
            num.record(f"{scope}.prefix_attn", stream.add(out))
            h = stream.mixture(layer, "mlp_res")
            num.record(f"{scope}.mlp_in", h)
            h = layer.post_attention_layernorm(h)
            num.record(f"{scope}.mlp_norm", h)
            out = layer.feed_forward(num.act(h), num, scope, naive)
            num.record(f"{scope}.ffn_out", out)
            num.record(f"{scope}.prefix", stream.add(out))
        x = stream.mixture(self.model, "output_attn_res")
        num.record("final_in", x)
        x = self.model.norm(x)
        num.record("final_norm", x)
        logits = num.matmul(num.act(x), self.lm_head.weight)
        num.record("logits", logits)
        return logits


def init_weights(model: NanoK3, seed: int) -> NanoK3:
    """Seeded start values, in place: matrices normal with 1/sqrt(fan-in), decays spread over time scales."""
    gen = torch.Generator().manual_seed(seed)

    def normal(p: torch.Tensor, std: float) -> None:
        p.copy_(torch.randn(p.shape, generator=gen, dtype=torch.float64).to(p.dtype) * std)

    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear | Router):
                # mixing vectors start at zero (an even mixture), outputs small (a quiet residual stream)
                quiet = name.endswith(("o_proj", "down_proj", "up_proj")) and "routed_expert_down" not in name
                gain = 0.5 if quiet and not name.endswith("mlp.up_proj") and "shared_experts.up" not in name else 1.0
                normal(module.weight, 0.0 if "res_proj" in name else gain * module.weight.shape[1] ** -0.5)
            elif isinstance(module, nn.Embedding):
                normal(module.weight, 1.0)
            elif isinstance(module, ShortConv):
                normal(module.weight, 0.3)
                module.weight[:, :, -1] += 0.5  # near the identity: the newest input dominates
            elif isinstance(module, KimiDeltaAttention):
                spread = torch.rand(module.dt_bias.shape, generator=gen, dtype=torch.float64)
                module.dt_bias.copy_(-6.0 + 5.0 * spread)
    return model


def build_model(
    cfg: ModelConfig, state: dict[str, torch.Tensor] | None = None, seed: int = 0, dtype: torch.dtype = torch.float32
) -> NanoK3:
    """A model with the given state_dict, or with seeded random weights when there is none."""
    model = NanoK3(cfg)
    if state is None:
        init_weights(model, seed)
    else:
        model.load_state_dict(state)
    return model.to(dtype)
