"""Shared by the commands: refusals, the model a command works on, token lists."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

if TYPE_CHECKING:
    from golden.checkpoint import LoadedModel
    from golden.config import ModelConfig

console = Console(stderr=True, highlight=False)
CHIP_POSITIONS = 256  # the longest context any chip has
SEED = 0
DEFAULT = "nano-k3"


class CommandError(Exception):
    """Ends a command with one line on stderr; ``code`` 2 is bad input, 1 a failure."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


def load(config: str | None, checkpoint: Path | None) -> LoadedModel:
    """The model of ``--config`` and ``--checkpoint``; nano-k3 when neither is given."""
    from golden.checkpoint import load_preset_model

    if config is None and checkpoint is None:
        config = DEFAULT
    return load_preset_model(config, checkpoint, SEED)


def announce(loaded: LoadedModel) -> None:
    """Say where the weights are from, once the input has been found good."""
    console.print(f"{loaded.cfg.name}: {loaded.source}", style="dim")


def at_level(loaded: LoadedModel, level: str) -> ModelConfig:
    """The model as a level decodes it (float, quantised, twin or rtl), refused where that level cannot."""
    from golden.checkpoint import check_quantisable

    if level == "quantised":
        check_quantisable(loaded.cfg)
    return on_chip(loaded) if level in ("twin", "rtl") else loaded.cfg


def on_chip(loaded: LoadedModel) -> ModelConfig:
    """The model as the twin decodes it: refused when no chip can be made of it, at most the chip's context."""
    from hw.params import Params

    cfg = dataclasses.replace(loaded.cfg, max_positions=min(loaded.cfg.max_positions, CHIP_POSITIONS))
    Params(cfg, array_rows=8, mla_positions=1)  # the least demanding hardware
    return cfg


@contextmanager
def simulation() -> Iterator[None]:
    """What cannot be compiled or fails in simulation ends the command in one line."""
    from sim.verilator import BenchFailed, BuildFailed

    try:
        yield
    except (BenchFailed, BuildFailed) as e:
        first, *more = str(e).splitlines()
        raise CommandError(f"{first} ({more[-1]})" if more else first, 1) from None


def encoded(tokenizer: Any, prompt: str) -> list[int]:
    """Token ids of a prompt; bytes that are no UTF-8 reach Python as lone surrogates and are refused."""
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise CommandError("the prompt is not UTF-8 text") from None
    return list(tokenizer.encode(prompt).ids)


def check_tokens(tokens: list[int], cfg: ModelConfig, count: int = 1) -> list[int]:
    """Refuse an empty list, ids that are not in the vocabulary, and a run to ``count`` tokens beyond the context."""
    from golden.config import positions_of

    if not tokens:
        raise CommandError("give at least one token")
    for token in tokens:
        if not 0 <= token < cfg.vocab_size:
            raise CommandError(f"token {token} is not in the vocabulary, 0 to {cfg.vocab_size - 1}")
    if positions_of(len(tokens), count) > cfg.max_positions:
        more = f" and {count} to make" if count > 1 else ""
        raise CommandError(f"{len(tokens)} tokens{more} do not fit the context of {cfg.max_positions}")
    return tokens


def parse_tokens(text: str, cfg: ModelConfig) -> list[int]:
    """Token ids of a comma-separated list."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"-?[0-9]{1,9}", part) for part in parts):
        raise CommandError(f"--tokens takes numbers with commas between, such as 5,17,300, not {text!r}")
    return check_tokens([int(part) for part in parts], cfg)
