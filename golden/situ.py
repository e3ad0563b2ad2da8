"""Gated activations: K3's SiTU-GLU, and SwiGLU for the simplified peer model."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from golden.config import ModelConfig


def situ_glu(g: torch.Tensor, u: torch.Tensor, beta: float = 4.0, linear_beta: float = 25.0) -> torch.Tensor:
    """beta tanh(g/beta) sigmoid(g) * linear_beta tanh(u/linear_beta): both branches are bounded."""
    gate = beta * torch.tanh(g / beta) * torch.sigmoid(g)
    return gate * (linear_beta * torch.tanh(u / linear_beta))


def swiglu(g: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """silu(g) * u, the up branch unbounded."""
    return F.silu(g) * u


def gated_activation(cfg: ModelConfig, g: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The preset's activation of a gate and an up vector of equal shape."""
    if cfg.activation == "situ":
        return situ_glu(g, u, cfg.activation_situ_beta, cfg.activation_situ_linear_beta)
    return swiglu(g, u)
