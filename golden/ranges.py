"""Value ranges of every tap on real text: what the fixed-point formats must hold.

Runs the recurrent form over windows of the training text and keeps, per tap, the
largest magnitude and a high quantile, so that a format's head-room can be stated.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from golden.config import load_preset
from golden.data import encode, load_corpus, load_tokenizer
from golden.model import NanoK3, build_model


@dataclass
class RangeTap:
    """A tap that keeps, per name, the largest |value| and the mean over calls of its root mean square."""

    largest: dict[str, float] = field(default_factory=dict)
    square: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    def __call__(self, name: str, value: torch.Tensor) -> None:
        """Take one tensor in."""
        value = value.double()
        self.largest[name] = max(self.largest.get(name, 0.0), float(value.abs().max()))
        self.square[name] = self.square.get(name, 0.0) + float(value.square().mean())
        self.calls[name] = self.calls.get(name, 0) + 1

    def rows(self) -> list[tuple[str, float, float]]:
        """(tap, largest magnitude, root mean square), in order of computation."""
        return [(n, m, float(np.sqrt(self.square[n] / self.calls[n]))) for n, m in self.largest.items()]


@torch.no_grad()
def measure(model: NanoK3, windows: np.ndarray, quantise: bool = True) -> RangeTap:
    """Ranges over token windows [W, T], all windows side by side, one token at a time."""
    tap = RangeTap()
    num, state = model.numerics(quantise, tap), model.init_state(len(windows))
    for tokens in torch.from_numpy(windows).T:
        _, state = model.step(tokens, state, num)
    return tap


def main() -> None:
    """Print the ranges of a weights file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path, nargs="?", default=Path("build/train/latest.safetensors"))
    parser.add_argument("--preset", default="nano-k3")
    parser.add_argument("--windows", type=int, default=32)
    args = parser.parse_args()
    torch.set_num_threads(1)
    cfg, _ = load_preset(args.preset)
    model = build_model(cfg, load_file(str(args.weights)))
    tokens = encode(load_tokenizer(), load_corpus().train)
    starts = np.linspace(0, len(tokens) - cfg.max_positions, args.windows).astype(int)
    tap = measure(model, np.stack([tokens[s : s + cfg.max_positions] for s in starts]))
    for name, largest, rms in tap.rows():
        print(f"{name:28s} max {largest:12.5f}  rms {rms:10.5f}")
    for name, p in model.named_parameters():
        if p.ndim != 2 or "res_proj" in name:
            print(f"{name:60s} max {float(p.detach().abs().max()):10.5f}")


if __name__ == "__main__":
    main()
