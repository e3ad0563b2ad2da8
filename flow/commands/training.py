"""``nanok3 train``, ``export`` and ``eval``: the checkpoint made, written and measured."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flow.commands import common
from flow.commands.common import CommandError, console

if TYPE_CHECKING:
    from golden.checkpoint import LoadedModel
    from golden.config import ModelConfig

TWIN_BAR = 0.01  # share of quantised float's bits per byte that the twin may be apart
CHOICE_BAR = 0.98  # positions at which twin and quantised float choose the same token
CHOICE_POSITIONS = 10_000


def train(arguments: Sequence[str]) -> None:
    """Hand over to golden.train's own command line (its options, its progress, its resume)."""
    from golden import train as trainer

    trainer.main(list(arguments), prog="nanok3 train")


def export(weights: Path, folder: Path, config: str, tokenizer: Path | None) -> None:
    """A trainer's weights as a checkpoint folder that the chip can hold."""
    from golden.checkpoint import export as write
    from golden.checkpoint import load_checkpoint, load_tokenizer
    from golden.config import load_preset
    from golden.data import TOKENIZER_PATH
    from golden.fixed.weights import chip_weights

    if tokenizer is None and load_tokenizer(TOKENIZER_PATH, load_preset(config)[0]) is not None:
        tokenizer = TOKENIZER_PATH
    write(weights, folder, config, tokenizer)
    cfg, state = load_checkpoint(folder)
    chip_weights(cfg, state)  # refuses, by tensor, what the chip's formats cannot hold
    size = sum(file.stat().st_size for file in folder.iterdir())
    console.print(f"{folder}: {cfg.name}, {size / 1e6:.2f} MB, fits the chip's formats")


class Choices:
    """A scorer (see golden.eval) of logits by ``run``, which also keeps each position's choice."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.best: list[np.ndarray] = []

    def __call__(self, windows: np.ndarray) -> np.ndarray:
        """Nats of each scored token, [W, T-1]."""
        parts = []
        for logits, tokens in self.run(windows):  # logits [B, T-1, V] of tokens [B, T]
            self.best.append(logits.argmax(-1))
            top = logits.max(-1, keepdims=True)
            total = np.log(np.exp(logits - top).sum(-1)) + top[..., 0]
            parts.append(total - np.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0])
        return np.concatenate(parts)

    def choices(self) -> np.ndarray:
        """The largest logit's index at every scored position, [W, T-1]."""
        return np.concatenate(self.best)


def float_run(cfg: ModelConfig, loaded: LoadedModel, quantise: bool, batch: int = 16) -> Any:
    """Logits of the float model (parallel form), batch by batch."""
    import torch

    from golden.model import build_model

    model = build_model(cfg, loaded.state)

    @torch.no_grad()
    def run(windows: np.ndarray) -> Any:
        num = model.numerics(quantise)
        for at in range(0, len(windows), batch):
            tokens = windows[at : at + batch]
            yield model(torch.from_numpy(tokens[:, :-1]), num).double().numpy(), tokens

    return run


def twin_run(cfg: ModelConfig, loaded: LoadedModel, batch: int = 64) -> Any:
    """Logits of the twin, batch by batch, with progress."""
    from rich.progress import Progress

    from golden.fixed.numbers import VEC, to_float
    from golden.fixed.twin import Twin
    from golden.fixed.weights import chip_weights

    twin = Twin(cfg, chip_weights(cfg, loaded.state))

    def run(windows: np.ndarray) -> Any:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("twin", total=windows[:, 1:].size)
            for at in range(0, len(windows), batch):
                tokens = windows[at : at + batch]
                state, logits = twin.init_state(len(tokens)), []
                for i in range(tokens.shape[1] - 1):
                    logits.append(to_float(twin.step(tokens[:, i], state), VEC))
                    progress.advance(task, len(tokens))
                yield np.stack(logits, 1), tokens

    return run


def evaluate(config: str | None, checkpoint: Path | None, windows: int | None, as_json: bool) -> int:
    """Bits per byte of every level beside the references, agreement and saturation; returns 1 when a bar is missed."""
    import torch

    from golden.data import encode, load_corpus, token_bytes
    from golden.eval import WINDOW, WittenBell, bits_per_byte, held_out_windows, xz_bits_per_byte
    from golden.fixed.numbers import FORMATS, SATURATIONS

    torch.set_num_threads(1)
    loaded = common.load(config, checkpoint)
    cfg = common.on_chip(loaded)
    if loaded.tokenizer is None:
        raise CommandError(f"{cfg.name} has no tokenizer.json: text cannot be scored")
    if cfg.max_positions < WINDOW:
        raise CommandError(f"{cfg.name} has a context of {cfg.max_positions}: the windows have {WINDOW} tokens")
    common.announce(loaded)
    corpus = load_corpus()
    held = held_out_windows(encode(loaded.tokenizer, corpus.held_out), token_bytes(loaded.tokenizer), limit=windows)
    levels = {
        "float": Choices(float_run(cfg, loaded, False)),
        "quantised": Choices(float_run(cfg, loaded, True)),
        "twin": Choices(twin_run(cfg, loaded)),
    }
    SATURATIONS.clear()
    bits = {}
    for name, level in levels.items():
        begin = time.monotonic()
        bits[name] = bits_per_byte(level, held)
        console.print(f"{name}: {bits[name]:.4f} bits/byte, {time.monotonic() - begin:.0f} s", style="dim")
    bits["witten-bell 3 bytes"] = WittenBell(corpus.train).bits_per_byte(held)
    bits["xz"] = xz_bits_per_byte(held)
    same = levels["twin"].choices() == levels["quantised"].choices()
    result = {
        "bits_per_byte": bits,
        "windows": len(held.windows),
        "bytes": held.scored_bytes,
        "same_choice": {"share": float(same.mean()), "positions": int(same.size)},
        "saturations": {name: SATURATIONS[name] for name in FORMATS},
    }
    missed = _missed(result)
    if as_json:
        print(json.dumps({**result, "missed": missed}))
    else:
        _show(result, missed)
    return 1 if missed else 0


def _missed(result: dict[str, Any]) -> list[str]:
    """One line for each bar that is missed."""
    from golden.eval import verdict

    bits, same = result["bits_per_byte"], result["same_choice"]
    missed = verdict(bits)
    apart = abs(bits["twin"] / bits["quantised"] - 1)
    checks = (
        (apart <= TWIN_BAR, f"the twin is {apart:.2%} from quantised float, more than {TWIN_BAR:.0%}"),
        (same["share"] >= CHOICE_BAR, f"the twin chooses the same token at {same['share']:.2%} of positions only"),
        (bits["twin"] < bits["witten-bell 3 bytes"], "the twin does not beat the 3-byte model"),
        (not any(result["saturations"].values()), "a format of the twin saturated"),
        (math.isfinite(bits["twin"]), "the twin's score is not finite"),
    )
    missed += [text for met, text in checks if not met]
    if same["positions"] < CHOICE_POSITIONS:
        missed.append(f"agreement needs {CHOICE_POSITIONS:,} positions, not {same['positions']:,}: score more windows")
    return missed


def _show(result: dict[str, Any], missed: list[str]) -> None:
    for name, value in result["bits_per_byte"].items():
        print(f"{name:22s} {value:.4f} bits/byte")
    same = result["same_choice"]
    print(f"twin and quantised float choose the same token at {same['share']:.2%} of {same['positions']:,} positions")
    counts = {name: count for name, count in result["saturations"].items() if count}
    print(f"saturated values in the twin: {counts or 'none in any format'}")
    print("\n".join(missed) if missed else "bars met")
