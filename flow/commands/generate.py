"""``nanok3 generate``: greedy text from a prompt, by the float model, the twin or the chip in RTL simulation."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from flow.commands import common
from flow.commands.common import CommandError, console


def run(
    prompt: str,
    count: int,
    level: str,
    config: str | None,
    checkpoint: Path | None,
    quantise: bool,
    as_json: bool,
    record: Path | None,
) -> None:
    """Print the continuation (or the JSON record) on stdout; everything else goes to stderr."""
    if quantise and level != "float":
        raise CommandError("--quantise is for --on float: the twin and the chip always are")
    if record is not None and level != "rtl":
        raise CommandError("--record is for --on rtl: only the chip has cycles")
    level = "quantised" if quantise else level
    loaded = common.load(config, checkpoint)
    if loaded.tokenizer is None:
        raise CommandError(f"{loaded.cfg.name} has no tokenizer.json: give token ids to 'nanok3 logits' instead")
    cfg = common.at_level(loaded, level)
    if not prompt:
        raise CommandError("the prompt is empty: give at least one character")
    ids: list[int] = common.encoded(loaded.tokenizer, prompt)
    common.check_tokens(ids, cfg, count)
    show = Shown(loaded.tokenizer) if not as_json else None
    result: dict[str, Any] = {"cycles_per_token": None, "tokens_per_second": None, "counters": None}
    if level == "rtl":
        made, result = chip_tokens(config, checkpoint, loaded, ids, count, show, record)
    else:
        common.announce(loaded)
        made = _model_tokens(level, loaded, cfg, ids, count, show)
    if show is None:
        print(json.dumps({"text": loaded.tokenizer.decode(made), "token_ids": made, **result}))
        return
    show.end()
    if level == "rtl" and result["cycles_per_token"]:
        per_token = result["cycles_per_token"]
        at = "".join(f", {cycles:,} at context {context}" for context, cycles in per_token["at_context"].items())
        console.print(f"cycles per token: {per_token['mean']:,.0f} on average{at}")
        console.print(f"tokens per second at 100 MHz: {result['tokens_per_second']:,.0f}")


class Shown:
    """Text on stdout as its tokens come; half a character waits for the rest."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.tokens: list[int] = []
        self.shown = ""

    def __call__(self, token: int) -> None:
        """One more token."""
        self.tokens.append(token)
        text = self.tokenizer.decode(self.tokens)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            self._write(text)

    def end(self) -> None:
        """The rest, whatever it is, and the end of the line."""
        self._write(self.tokenizer.decode(self.tokens) + "\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(text[len(self.shown) :])
        sys.stdout.flush()
        self.shown = text


def _model_tokens(level: str, loaded: Any, cfg: Any, ids: list[int], count: int, show: Shown | None) -> list[int]:
    """Tokens of the float model or the twin."""
    from golden.compare import greedy, stepper

    made = []
    with console.status(f"{len(ids)} prompt tokens, {count} to make ({level})") as status:
        for token in greedy(stepper(level, cfg, loaded.state), ids, count):
            made.append(token)
            if show is not None:
                status.stop()
                show(token)
    return made


def chip_tokens(
    config: str | None,
    checkpoint: Path | None,
    loaded: Any,
    ids: list[int],
    count: int,
    show: Shown | None,
    record: Path | None,
) -> tuple[list[int], dict[str, Any]]:
    """Tokens of the chip in RTL simulation, and its cycles and counters."""
    from tempfile import TemporaryDirectory

    from flow import rtl
    from hw import image
    from sim.decode import decode

    chip = rtl.make(rtl.parameters(config, checkpoint, loaded))
    words = rtl.image_words(chip, loaded)
    common.announce(loaded)
    folder = rtl.emitted(chip)
    with common.simulation():
        with console.status("compiling the simulation (some minutes, once)"):
            made = rtl.compiled(chip)
        with (
            TemporaryDirectory() as scratch,
            console.status(f"{len(ids)} prompt tokens, {count} to make (rtl)") as status,
        ):
            image.save(Path(scratch) / rtl.IMAGE, words)

            def on_token(token: int) -> None:
                if show is not None:
                    status.stop()
                    show(token)

            run = decode(made, Path(scratch) / rtl.IMAGE, ids, count, on_token=on_token)
    result = {
        "cycles_per_token": run.cycles_per_token(),
        "tokens_per_second": run.tokens_per_second(),
        "counters": run.counters,
    }
    if record is not None:
        rtl.record(
            record, rtl.sha256(folder / rtl.VERILOG), decode={"prompt_tokens": len(ids), "tokens": count, **result}
        )
        console.print(f"recorded in {record}")
    return run.tokens, result
