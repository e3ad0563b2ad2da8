"""Named taps: record every stage boundary of a run and find where two runs part.

Outer names, per layer N: ``layer.N.{attn_in, attn_norm, attn_out, prefix_attn,
mlp_in, mlp_norm, ffn_out, prefix}``; then ``embedding``, ``final_in``,
``final_norm``, ``logits``.  Inner names are listed below.  The float model, the
integer twin and the hardware bench use the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

OUTER = ("attn_in", "attn_norm", "attn_out", "prefix_attn", "mlp_in", "mlp_norm", "ffn_out", "prefix")
KDA_INNER = (
    "q_conv",
    "k_conv",
    "v_conv",
    "q",
    "k",
    "v",
    "alpha",
    "beta",
    "o",
    "gate",
    "gated",
    "state",
)
MLA_INNER = ("q_nope", "q_rope", "c", "k_r", "q_abs", "scores", "context", "o", "gate", "gated")
MOE_INNER = (
    "router",
    "experts",
    "expert_weights",
    "z",
    "expert_out",
    "routed",
    "shared.hidden",
    "shared_out",
)
DENSE_INNER = ("dense.hidden",)
GLOBAL = ("embedding", "final_in", "final_norm", "logits")


@dataclass
class Recorder:
    """A tap that keeps every value, in order of computation: call it with (name, array)."""

    values: dict[str, np.ndarray] = field(default_factory=dict)

    def __call__(self, name: str, value: Any) -> None:
        """Keep a copy; a name seen twice in one run is a mistake in the model."""
        if name in self.values:
            raise ValueError(f"tap {name!r} recorded twice")
        self.values[name] = np.asarray(value).copy()


@dataclass(frozen=True)
class Divergence:
    """The first tap at which two recordings differ by more than allowed."""

    name: str
    largest: float  # largest absolute difference, in the tap's own units
    index: tuple[int, ...]  # where it is
    left: float
    right: float


def first_divergence(
    left: Mapping[str, np.ndarray],
    right: Mapping[str, np.ndarray],
    tolerance: float | Callable[[str], float] = 0.0,
) -> Divergence | None:
    """The first tap of ``left`` (in its order) that differs from ``right``; taps of one side only are skipped.

    ``tolerance`` is an absolute difference, or a function of the tap's name.
    Refuses (ValueError) recordings that share no tap, and shapes that differ.
    """
    if not set(left) & set(right):
        raise ValueError("the two recordings share no tap")
    for name, a in left.items():
        if name not in right:
            continue
        b = np.asarray(right[name])
        if a.shape != b.shape:
            raise ValueError(f"tap {name!r}: shapes {a.shape} and {b.shape} differ")
        allowed = tolerance(name) if callable(tolerance) else tolerance
        gap = np.abs(a.astype(np.float64) - b.astype(np.float64))
        gap = np.where(np.isnan(gap), np.inf, gap)  # a NaN is always a difference
        if gap.size and gap.max() > allowed:
            where = tuple(int(i) for i in np.unravel_index(int(gap.argmax()), gap.shape))
            return Divergence(name, float(gap.max()), where, float(a[where]), float(b[where]))
    return None
