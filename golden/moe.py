"""Stable LatentMoE and the dense FFN: router, routed experts on a latent, shared experts."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from golden.config import ModelConfig
from golden.norm import RmsNorm
from golden.numerics import Numerics
from golden.situ import gated_activation


def pick_experts(biased: torch.Tensor, top_k: int) -> torch.Tensor:
    """Indices [..., k] of the largest biased scores [..., E], best first, ties to the lowest index.

    k rounds of first-maximum, a picked expert masked out: what the comparison tree does.
    """
    left = biased.detach().clone()
    picked = []
    for _ in range(top_k):
        best = left.argmax(-1, keepdim=True)  # the first of equal maxima
        picked.append(best)
        left.scatter_(-1, best, float("-inf"))
    return torch.cat(picked, -1)


def route(
    logits: torch.Tensor, bias: torch.Tensor, top_k: int, scale: float = 1.0, renormalise: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """logits [..., E], bias [E] -> (experts [..., k], weights [..., k], scores [..., E]).

    The bias takes part in the picking only; the weights are the unbiased sigmoids of the picked.
    """
    scores = torch.sigmoid(logits)
    experts = pick_experts(scores + bias, top_k)
    weights = scores.gather(-1, experts)
    if renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return experts, weights * scale, scores


def quantile_bias(scores: torch.Tensor, bias: torch.Tensor, top_k: int, rate: float) -> torch.Tensor:
    """Quantile Balancing: the router bias after one batch; scores [N, E], bias [E] -> [E].

    alpha = the (k+1)-th largest biased score of a token; c_e = the (1 - k/E) quantile over tokens of the
    margin s + b - alpha: the shift that would give expert e its fair share.
    """
    biased = scores + bias
    alpha = biased.topk(top_k + 1, -1).values[:, -1:]
    shift = torch.quantile(biased - alpha, 1 - top_k / scores.shape[-1], dim=0)
    bias = bias - rate * shift
    return bias - bias.mean()


class _Dispatch(torch.autograd.Function):
    """Rows of z [N, d] into expert slots [S, d]; backward gathers instead of scattering with additions."""

    @staticmethod
    def forward(ctx: Any, z: torch.Tensor, token_of_slot: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(slots)
        return z.index_select(0, token_of_slot)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (slots,) = ctx.saved_tensors  # [N, k]
        parts = grads[0].index_select(0, slots.flatten()).view(*slots.shape, -1)
        return parts.sum(1), None, None


class _Collect(torch.autograd.Function):
    """Slots [S, d] back to [N, k, d]; every used slot is used once, so backward is a plain copy."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(slots)
        ctx.size = y.shape[0]
        return y.index_select(0, slots.flatten()).view(*slots.shape, -1)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (slots,) = ctx.saved_tensors
        out = grads[0].new_zeros(ctx.size, grads[0].shape[-1])
        out[slots.flatten()] = grads[0].flatten(0, 1)
        return out, None


def _slots(experts: torch.Tensor, num_experts: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Place N*k picks in [E, capacity] slots -> (token of each slot [E*cap], slot of each pick [N, k], cap).

    No pick is ever dropped: the capacity is the fullest expert's count; unused slots hold token 0.
    """
    flat = experts.flatten()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=num_experts)
    capacity = int(counts.max())
    sorted_experts = flat[order]
    rank = torch.arange(len(flat)) - (counts.cumsum(0) - counts)[sorted_experts]
    slot_sorted = sorted_experts * capacity + rank
    token_of_slot = torch.zeros(num_experts * capacity, dtype=torch.long)
    token_of_slot[slot_sorted] = order // experts.shape[1]
    slots = torch.empty_like(flat)
    slots[order] = slot_sorted
    return token_of_slot, slots.view_as(experts), capacity


class Expert(nn.Module):
    """One routed expert's matrices: w1 (gate) and w3 (up) [width, latent], w2 [latent, width]."""

    def __init__(self, latent: int, width: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(latent, width, bias=False)
        self.w2 = nn.Linear(width, latent, bias=False)
        self.w3 = nn.Linear(latent, width, bias=False)


class GatedFfn(nn.Module):
    """down(act(gate x, up x)): the dense FFN, and the fused shared experts."""

    def __init__(self, cfg: ModelConfig, width: int) -> None:
        super().__init__()
        self.cfg = cfg
        self.gate_proj = nn.Linear(cfg.hidden_size, width, bias=False)
        self.up_proj = nn.Linear(cfg.hidden_size, width, bias=False)
        self.down_proj = nn.Linear(width, cfg.hidden_size, bias=False)

    def forward(self, x: torch.Tensor, num: Numerics, scope: str) -> torch.Tensor:
        """x [..., d], already rounded by ``num.act`` -> [..., d]."""
        wide = x @ torch.cat([num.weight(self.gate_proj.weight), num.weight(self.up_proj.weight)]).T
        gate, up = wide.chunk(2, -1)
        hidden = gated_activation(self.cfg, gate, up)
        num.record(f"{scope}.hidden", hidden)
        return num.matmul(num.act(hidden), self.down_proj.weight)


class Router(nn.Module):
    """Router matrix [E, d] and the balancing bias [E] (a buffer: no gradient flows into it)."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(cfg.num_experts, cfg.hidden_size))
        self.e_score_correction_bias: torch.Tensor
        self.register_buffer("e_score_correction_bias", torch.zeros(cfg.num_experts))


class LatentMoe(nn.Module):
    """Routed experts on a latent (or on the hidden state when the preset has none) plus shared experts."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.gate = Router(cfg)
        if cfg.routed_expert_hidden_size is not None:
            self.routed_expert_down_proj = nn.Linear(cfg.hidden_size, cfg.latent_size, bias=False)
            self.routed_expert_up_proj = nn.Linear(cfg.latent_size, cfg.hidden_size, bias=False)
            self.routed_expert_norm = RmsNorm(cfg.latent_size, cfg.rms_norm_eps, cfg.norm_offset)
        self.experts = nn.ModuleList(Expert(cfg.latent_size, cfg.moe_intermediate_size) for _ in range(cfg.num_experts))
        if cfg.num_shared_experts:
            self.shared_experts = GatedFfn(cfg, cfg.shared_intermediate_size)
        self.last_scores: torch.Tensor | None = None  # training reads these for balancing

    def _stacked(self, num: Numerics) -> tuple[torch.Tensor, torch.Tensor]:
        """All experts' matrices, rounded: [w1; w3] as [E, 2 width, latent] and w2 as [E, latent, width]."""
        experts: list[Expert] = list(self.experts)  # type: ignore[arg-type]
        gate_up = torch.stack([w for e in experts for w in (e.w1.weight, e.w3.weight)])
        gate_up = gate_up.view(self.cfg.num_experts, 2 * self.cfg.moe_intermediate_size, -1)
        down = torch.stack([e.w2.weight for e in experts])
        return num.rounded(gate_up), num.rounded(down)

    def _experts(self, z: torch.Tensor, experts: torch.Tensor, num: Numerics) -> torch.Tensor:
        """Each token's picked experts: z [N, latent] (rounded), experts [N, k] -> [N, k, latent]."""
        gate_up, down = self._stacked(num)
        token_of_slot, slots, capacity = _slots(experts, self.cfg.num_experts)
        grouped: torch.Tensor = _Dispatch.apply(z, token_of_slot, slots)  # type: ignore[no-untyped-call]
        wide = torch.bmm(grouped.view(-1, capacity, z.shape[-1]), gate_up.mT)
        hidden = gated_activation(self.cfg, *wide.chunk(2, -1))
        y = torch.bmm(num.act(hidden), down.mT)
        out: torch.Tensor = _Collect.apply(y.flatten(0, 1), slots)  # type: ignore[no-untyped-call]
        return out

    def _experts_naive(self, z: torch.Tensor, experts: torch.Tensor, num: Numerics) -> torch.Tensor:
        """The same, one token and one expert at a time: z [B, latent], experts [B, k] -> [B, k, latent]."""
        rows = []
        for row, picks in zip(z, experts.tolist(), strict=True):
            outs = []
            for e in picks:
                expert: Expert = self.experts[e]  # type: ignore[assignment]
                hidden = gated_activation(
                    self.cfg, num.matmul(row, expert.w1.weight), num.matmul(row, expert.w3.weight)
                )
                outs.append(num.matmul(num.act(hidden), expert.w2.weight))
            rows.append(torch.stack(outs))
        return torch.stack(rows)

    def forward(self, x: torch.Tensor, num: Numerics, scope: str, naive: bool = False) -> torch.Tensor:
        """x [..., d], already rounded -> [..., d]; ``naive`` computes experts token by token."""
        cfg = self.cfg
        flat = x.reshape(-1, x.shape[-1])
        logits = num.matmul(flat, self.gate.weight)
        experts, weights, scores = route(
            logits,
            self.gate.e_score_correction_bias,
            cfg.num_experts_per_token,
            cfg.routed_scaling_factor,
            cfg.renormalize,
        )
        self.last_scores = scores.detach()
        lead = x.shape[:-1]
        for name, value in (("router", scores), ("experts", experts), ("expert_weights", weights)):
            num.record(f"{scope}.{name}", value.view(*lead, -1))
        z = flat
        if cfg.routed_expert_hidden_size is not None:
            z = num.matmul(flat, self.routed_expert_down_proj.weight)
            num.record(f"{scope}.z", z.view(*lead, -1))
            z = num.act(z)
        outs = self._experts_naive(z, experts, num) if naive else self._experts(z, experts, num)
        num.record(f"{scope}.expert_out", outs.view(*lead, *outs.shape[1:]))
        u = (outs * weights.unsqueeze(-1)).sum(1)
        num.record(f"{scope}.routed", u.view(*lead, -1))
        if cfg.routed_expert_hidden_size is not None:
            u = num.matmul(num.act(self.routed_expert_norm(u)), self.routed_expert_up_proj.weight)
        u = u.view(*lead, -1)
        if cfg.num_shared_experts:
            shared = self.shared_experts(x, num, f"{scope}.shared")
            num.record(f"{scope}.shared_out", shared)
            u = u + shared
        return u
