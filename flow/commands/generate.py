"""``nanok3 generate``: greedy text from a prompt, by the float model, the twin or the chip in RTL simulation."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from flow.commands import common
from flow.commands.common import CommandError, console


def run(
    prompt: str, count: int, level: str, config: str | None, checkpoint: Path | None, quantise: bool, as_json: bool
) -> None:
    """Print the continuation (or the JSON record) on stdout; everything else goes to stderr."""
    loaded = common.load(config, checkpoint)
    if loaded.tokenizer is None:
        raise CommandError(f"{loaded.cfg.name} has no tokenizer.json: give token ids to 'nanok3 logits' instead")
    cfg = loaded.cfg if level == "float" else common.on_chip(loaded)
    if not prompt:
        raise CommandError("the prompt is empty: give at least one character")
    ids: list[int] = loaded.tokenizer.encode(prompt).ids
    common.check_tokens(ids, cfg, count)
    common.announce(loaded)
    record: dict[str, Any] = {"cycles_per_token": None, "tokens_per_second": None, "counters": None}
    made = _model_tokens(level, loaded, cfg, ids, count, quantise, show=not as_json)
    text = loaded.tokenizer.decode(made)
    if as_json:
        print(json.dumps({"text": text, "token_ids": made, **record}))


def _model_tokens(
    level: str, loaded: Any, cfg: Any, ids: list[int], count: int, quantise: bool, show: bool
) -> list[int]:
    """Tokens of the float model or the twin, shown as they come."""
    from golden.compare import greedy, stepper

    name = "quantised" if level == "float" and quantise else level
    made: list[int] = []
    shown = ""
    with console.status(f"{len(ids)} prompt tokens, {count} to make ({name})") as status:
        for token in greedy(stepper(name, cfg, loaded.state), ids, count):
            made.append(token)
            text = loaded.tokenizer.decode(made)
            if show and not text.endswith("\N{REPLACEMENT CHARACTER}"):  # half a character waits for the rest
                if not shown:
                    status.stop()
                sys.stdout.write(text[len(shown) :])
                sys.stdout.flush()
                shown = text
    if show:
        print(loaded.tokenizer.decode(made)[len(shown) :])
    return made
