"""Held-out bits per byte of the model, beside two byte-level references.

Windows of 256 tokens that do not overlap, state reset at each, the first token
of a window unscored.  Float and quantised float run as given callables, so the
integer twin can join the same table.  References: an interpolated Witten-Bell
model of three bytes of context, estimated on the training text and scored on
the same bytes (its context may reach back over a window's edge), and xz of
those bytes.
"""

from __future__ import annotations

import argparse
import lzma
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from golden.config import load_preset
from golden.data import encode, load_corpus, load_tokenizer, token_bytes
from golden.model import NanoK3, build_model

WINDOW = 256
QUANTISATION_BAR = 0.1  # bits per byte that quantised may lose to float

#: tokens int64 [W, T] -> nats per scored token [W, T-1]
Scorer = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class HeldOut:
    """Scoring windows of the held-out text and the bytes they cover."""

    windows: np.ndarray  # token ids [W, 256]
    text: bytes  # the windows' text, in order
    scored: np.ndarray  # bool [len(text)]: bytes of tokens that are scored

    @property
    def scored_bytes(self) -> int:
        """Denominator of every bits-per-byte figure."""
        return int(self.scored.sum())


def held_out_windows(
    tokens: np.ndarray, pieces: Sequence[bytes], window: int = WINDOW, limit: int | None = None
) -> HeldOut:
    """Cut tokens into whole windows; ``limit`` keeps that many, spread evenly over the text."""
    count = len(tokens) // window
    if count == 0:
        raise ValueError(f"the held-out text has {len(tokens)} tokens: less than one window of {window}")
    windows = tokens[: count * window].reshape(count, window)
    if limit is not None and limit < count:
        windows = windows[np.linspace(0, count - 1, limit).astype(int)]
    mask = np.ones(windows.shape, dtype=bool)
    mask[:, 0] = False
    text = b"".join(pieces[t] for t in windows.flat)
    lengths = np.array([len(pieces[t]) for t in windows.flat])
    return HeldOut(windows, text, np.repeat(mask.flatten(), lengths))


def model_scorer(model: NanoK3, quantise: bool, batch: int = 16) -> Scorer:
    """The float model (parallel form) as a scorer."""

    @torch.no_grad()
    def score(windows: np.ndarray) -> np.ndarray:
        num = model.numerics(quantise)
        parts = []
        for at in range(0, len(windows), batch):
            tokens = torch.from_numpy(windows[at : at + batch])
            logits = model(tokens, num)[:, :-1]
            picked = logits.gather(-1, tokens[:, 1:, None])[..., 0]
            parts.append((logits.logsumexp(-1) - picked).double().numpy())
        return np.concatenate(parts)

    return score


def bits_per_byte(scorer: Scorer, held: HeldOut) -> float:
    """Total bits of the scored tokens over their bytes."""
    return float(scorer(held.windows).sum() / math.log(2) / held.scored_bytes)


class WittenBell:
    """Interpolated Witten-Bell byte model: P_n = (c(h,b) + T(h) P_{n-1}(b)) / (c(h) + T(h)).

    T(h) counts the distinct bytes seen after h; the order below zero is uniform over 256.
    """

    def __init__(self, text: bytes, order: int = 3) -> None:
        self.order = order
        data = np.frombuffer(text, dtype=np.uint8).astype(np.int64)
        self.tables: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        for n in range(order + 1):
            keys = self._grams(data, n)  # context and byte in one number, the byte last
            grams, counts = np.unique(keys, return_counts=True)
            contexts, first = np.unique(grams >> 8, return_index=True)
            totals = np.add.reduceat(counts, first)
            distinct = np.diff(np.append(first, len(grams)))
            self.tables.append((grams, counts, contexts, totals, distinct))

    @staticmethod
    def _grams(data: np.ndarray, n: int) -> np.ndarray:
        """Every run of n+1 bytes as a number, [len - n]."""
        keys = np.zeros(len(data) - n, dtype=np.int64)
        for i in range(n + 1):
            keys = (keys << 8) | data[i : len(data) - n + i]
        return keys

    @staticmethod
    def _look_up(sorted_keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        at = np.minimum(np.searchsorted(sorted_keys, wanted), len(sorted_keys) - 1)
        return np.where(sorted_keys[at] == wanted, values[at], 0)

    def probabilities(self, text: bytes) -> np.ndarray:
        """P of each byte given up to ``order`` bytes before it, float64 [len(text)]."""
        data = np.frombuffer(text, dtype=np.uint8).astype(np.int64)
        p = np.full(len(data), 1 / 256)
        for n, (grams, counts, contexts, totals, distinct) in enumerate(self.tables):
            if len(data) <= n:
                break
            keys = self._grams(data, n)
            count = self._look_up(grams, counts, keys)
            total = self._look_up(contexts, totals, keys >> 8)
            kinds = self._look_up(contexts, distinct, keys >> 8)
            seen = total > 0  # an unseen context leaves the lower order as it is
            mixed = (count + kinds * p[n:]) / np.maximum(total + kinds, 1)
            p[n:] = np.where(seen, mixed, p[n:])
        return p

    def bits_per_byte(self, held: HeldOut) -> float:
        """On the scored bytes only, with the running text as context."""
        bits = -np.log2(self.probabilities(held.text))
        return float(bits[held.scored].mean())


def xz_bits_per_byte(held: HeldOut) -> float:
    """xz -9e of the scored bytes, as one stream."""
    data = np.frombuffer(held.text, dtype=np.uint8)[held.scored].tobytes()
    return 8 * len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)) / len(data)


def evaluate(scorers: dict[str, Scorer], limit: int | None = None) -> dict[str, float]:
    """Bits per byte of every scorer and both references on the held-out text, by name."""
    corpus, tokenizer = load_corpus(), load_tokenizer()
    held = held_out_windows(encode(tokenizer, corpus.held_out), token_bytes(tokenizer), limit=limit)
    table = {name: bits_per_byte(scorer, held) for name, scorer in scorers.items()}
    table["witten-bell 3 bytes"] = WittenBell(corpus.train).bits_per_byte(held)
    table["xz"] = xz_bits_per_byte(held)
    return table


def verdict(table: dict[str, float]) -> list[str]:
    """One line per bar that is missed; empty when all are met."""
    missed = []
    loss = table["quantised"] - table["float"]
    if not loss <= QUANTISATION_BAR:
        missed.append(f"quantisation costs {loss:.4f} bits per byte, more than {QUANTISATION_BAR}")
    if not table["quantised"] < table["witten-bell 3 bytes"]:
        missed.append("the quantised model does not beat the 3-byte model")
    return missed


def main() -> None:
    """Evaluate a weights file and print the table; exit code 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path, nargs="?", default=Path("build/train/latest.safetensors"))
    parser.add_argument("--preset", default="nano-k3")
    parser.add_argument("--windows", type=int, help="score this many windows, spread over the text (default: all)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = build_model(load_preset(args.preset)[0], load_file(str(args.weights)))
    table = evaluate({"float": model_scorer(model, False), "quantised": model_scorer(model, True)}, args.windows)
    for name, value in table.items():
        print(f"{name:22s} {value:.4f} bits/byte")
    missed = verdict(table)
    print("\n".join(missed) if missed else "bars met")
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
