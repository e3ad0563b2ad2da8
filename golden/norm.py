"""Root-mean-square norm and L2 normalisation (model.md, "One token")."""

from __future__ import annotations

import torch
from torch import nn


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; x [..., n], weight [n]."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def l2_normalise(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(sum(x^2) + eps) over the last axis (eps inside the root)."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


class RmsNorm(nn.Module):
    """RMS norm with a weight [n]; with ``offset`` the stored weight w means 1 + w."""

    def __init__(self, size: int, eps: float, offset: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size) if offset else torch.ones(size))
        self.eps = eps
        self.offset = offset

    def gain(self) -> torch.Tensor:
        """The factor that multiplies the normalised vector, [n]."""
        return 1 + self.weight if self.offset else self.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., n] -> [..., n]."""
        return rms(x, self.gain(), self.eps)
