"""Attention residual: a softmax mixture over block snapshots and the running prefix."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def mix_scores(
    candidates: Sequence[torch.Tensor], weight: torch.Tensor, proj: torch.Tensor, eps: float
) -> torch.Tensor:
    """s_i = p . rms(v_i, w) for candidates [..., d], weight [d], proj [d] -> [..., n].

    Written as (v_i . (p w)) / sqrt(mean(v_i^2) + eps): the normalised vector is never formed.
    """
    direction = weight * proj
    scores = [(v @ direction) * torch.rsqrt(v.square().mean(-1) + eps) for v in candidates]
    return torch.stack(scores, dim=-1)


def mix(candidates: Sequence[torch.Tensor], weight: torch.Tensor, proj: torch.Tensor, eps: float) -> torch.Tensor:
    """softmax(s)-weighted sum of the *raw* candidates, oldest first, the running prefix last; [..., d]."""
    a = torch.softmax(mix_scores(candidates, weight, proj, eps), dim=-1).split(1, -1)
    out = a[0] * candidates[0]
    for a_i, v in zip(a[1:], candidates[1:], strict=True):
        out = torch.addcmul(out, a_i, v)
    return out
