"""How one forward pass rounds and what it records: passed to every mechanism.

``Numerics()`` is exact float; ``Numerics(quantise=True)`` puts the values that
a stored matrix and the vector multiplying it can take at exactly the points
where the integer twin and the hardware round.  Float and quantised float are
therefore one code path with one switch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from golden.formats import int4_quantise, mx_quantise

Tap = Callable[[str, torch.Tensor], None]


class Numerics:
    """Rounding points (``act``, ``weight``) and named taps of one run.

    Quantised weights are kept for the object's life when no gradient is
    recorded, so make a new object after changing parameters.
    """

    def __init__(self, quantise: bool = False, weight_format: str = "mxfp4", tap: Tap | None = None) -> None:
        self.quantise = quantise
        self.weight_format = weight_format
        self.tap = tap
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def mx(self) -> bool:
        """True when matmul inputs are MXFP8 and weights MXFP4 (int4 models keep float activations)."""
        return self.quantise and self.weight_format == "mxfp4"

    def act(self, x: torch.Tensor) -> torch.Tensor:
        """A vector about to enter a matmul: MXFP8 in blocks of 32 along the last axis."""
        return mx_quantise(x, "mxfp8") if self.mx else x

    def weight(self, w: torch.Tensor) -> torch.Tensor:
        """A stored matrix [out, fan-in]: MXFP4 (or int4) along the fan-in."""
        if not self.quantise or (torch.is_grad_enabled() and w.requires_grad):
            return self.rounded(w)
        if id(w) not in self._kept:
            self._kept[id(w)] = (w, self.rounded(w))  # holding w keeps its id from being reused
        return self._kept[id(w)][1]

    def rounded(self, w: torch.Tensor) -> torch.Tensor:
        """Like ``weight``, for a matrix put together for this call only (never kept)."""
        if not self.quantise:
            return w
        return mx_quantise(w, "mxfp4") if self.weight_format == "mxfp4" else int4_quantise(w)

    def matmul(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """x W^T for an input already rounded by ``act``; x [..., n], w [m, n] -> [..., m]."""
        return x @ self.weight(w).T

    def record(self, name: str, value: torch.Tensor) -> None:
        """Show a stage boundary to the tap, if there is one."""
        if self.tap is not None:
            self.tap(name, value.detach())
