"""The levels of truth behind one interface, token by token, and where two of them part.

Levels: ``float`` (the judge), ``quantised`` (float with MXFP4 matrices and MXFP8
inputs) and ``twin`` (the chip's integers).  Each takes one token at a time,
gives logits as real values and shows its taps (:mod:`golden.taps`).  A run of the
chip itself is made as a whole (sim.taps) and shown by :class:`RecordedStepper`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from golden.config import ConfigError, ModelConfig
from golden.fixed.lanes import argmax
from golden.fixed.numbers import VEC, ints, to_float
from golden.fixed.twin import Twin
from golden.fixed.weights import chip_weights
from golden.model import build_model
from golden.taps import Divergence, Recorder, first_divergence

LEVELS = ("float", "quantised", "twin")

Tap = Callable[[str, Any], None]


class Stepper(Protocol):
    """One sequence decoded by one level."""

    def step(self, token: int, tap: Tap | None = None) -> np.ndarray:
        """Take a token; returns the logits [vocab] (float32 or float64)."""


class FloatStepper:
    """The float model in its recurrent form, quantised or not."""

    def __init__(
        self, cfg: ModelConfig, state: dict[str, torch.Tensor], quantise: bool, dtype: torch.dtype = torch.float32
    ) -> None:
        self.model = build_model(cfg, state, dtype=dtype)
        self.numerics = self.model.numerics(quantise)
        self.state = self.model.init_state()

    @torch.no_grad()
    def step(self, token: int, tap: Tap | None = None) -> np.ndarray:
        """Take a token."""
        self.numerics.tap = tap
        logits, self.state = self.model.step(torch.tensor([token]), self.state, self.numerics)
        return logits[0].numpy()


class TwinStepper:
    """The integer twin."""

    def __init__(self, cfg: ModelConfig, state: dict[str, torch.Tensor]) -> None:
        self.twin = Twin(cfg, chip_weights(cfg, state))
        self.state = self.twin.init_state()

    def step(self, token: int, tap: Tap | None = None) -> np.ndarray:
        """Take a token."""
        self.twin.tap = tap
        return to_float(self.twin.step(ints([token]), self.state)[0], VEC)


class RecordedStepper:
    """A run that was made before, shown again: its tokens, and the taps of each position, logits [1, vocab] too."""

    def __init__(self, tokens: Sequence[int], positions: Sequence[Mapping[str, np.ndarray]]) -> None:
        self.rest = list(zip(tokens, positions, strict=True))[::-1]

    def step(self, token: int, tap: Tap | None = None) -> np.ndarray:
        """Take a token; raises ValueError when the run did not take it here."""
        recorded, taps = self.rest.pop() if self.rest else (None, {})
        if recorded != token:
            raise ValueError(f"the recorded run has token {recorded} here, not {token}")
        for name, value in taps.items():
            if tap is not None:
                tap(name, value)
        return taps["logits"][0]


def stepper(
    level: str, cfg: ModelConfig, state: dict[str, torch.Tensor], dtype: torch.dtype = torch.float32
) -> Stepper:
    """A fresh sequence at a level; ``dtype`` is for the float levels."""
    if level == "twin":
        return TwinStepper(cfg, state)
    if level not in LEVELS:
        raise ConfigError(f"unknown level {level!r}: use one of {', '.join(LEVELS)}")
    return FloatStepper(cfg, state, level == "quantised", dtype)


def greedy(level: Stepper, prompt: Sequence[int], count: int) -> Iterator[int]:
    """``count`` tokens after a prompt of one or more; each is the lowest index of the largest logit."""
    if not prompt:
        raise ConfigError("the prompt has no token")
    logits = [level.step(token) for token in prompt][-1]
    for i in range(count):
        token = int(argmax(logits))
        yield token
        if i + 1 < count:
            logits = level.step(token)


def trace(level: Stepper, tokens: Sequence[int], layers: int) -> tuple[np.ndarray, np.ndarray]:
    """(logits [T, vocab], running prefix after each layer [T, layers, d]) of a teacher-forced run."""
    logits, prefixes = [], []
    for token in tokens:
        taps = Recorder()
        logits.append(level.step(token, taps))
        prefixes.append(np.stack([taps.values[f"layer.{i}.prefix"][0] for i in range(layers)]))
    return np.stack(logits), np.stack(prefixes)


@dataclass(frozen=True)
class TapGap:
    """How far one tap of two levels is apart, over all positions of a run."""

    name: str
    largest: float  # absolute difference
    scale: float  # root mean square of the left level's values


@dataclass(frozen=True)
class Comparison:
    """Two levels on the same tokens: where they first part, and how far every common tap is apart."""

    position: int | None  # of the first divergence
    divergence: Divergence | None
    gaps: tuple[TapGap, ...]
    same_choice: int  # positions with the same largest logit
    positions: int


def compare(left: Stepper, right: Stepper, tokens: Sequence[int], tolerance: float = 0.0) -> Comparison:
    """Run both on ``tokens``; a tap parts when a difference exceeds ``tolerance`` times the left tap's RMS there.

    Taps of one level only are skipped; picked experts are compared as they are, whatever the tolerance.
    """
    first: tuple[int, Divergence] | None = None
    gaps: dict[str, list[tuple[float, float]]] = {}
    same = 0
    for position, token in enumerate(tokens):
        a, b = Recorder(), Recorder()
        same += int(argmax(left.step(token, a)) == argmax(right.step(token, b)))
        rms = {name: float(np.sqrt(np.mean(np.square(value, dtype=np.float64)))) for name, value in a.values.items()}

        def allowed(name: str, rms: dict[str, float] = rms) -> float:
            return 0.0 if name.endswith(".experts") else tolerance * rms[name]

        if first is None and (found := first_divergence(a.values, b.values, allowed)) is not None:
            first = position, found
        for name in a.values:
            if name in b.values:
                gap = np.abs(a.values[name].astype(np.float64) - b.values[name].astype(np.float64)).max()
                gaps.setdefault(name, []).append((float(gap), rms[name]))
    table = tuple(
        TapGap(n, max(g for g, _ in rows), float(np.sqrt(np.mean([r * r for _, r in rows]))))
        for n, rows in gaps.items()
    )
    return Comparison(first[0] if first else None, first[1] if first else None, table, same, len(tokens))
