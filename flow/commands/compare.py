"""``nanok3 compare``: two levels on the same tokens, and the first stage at which they part."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rich.table import Table

from flow.commands import common
from flow.commands.common import CommandError, console

if TYPE_CHECKING:
    from golden.checkpoint import LoadedModel
    from golden.compare import Comparison, RecordedStepper, Stepper

TOKENS = "5,17,300,40,41,42,43,44"  # where neither tokens nor a prompt are given


def run(
    left: str,
    right: str,
    tokens: str | None,
    prompt: str | None,
    config: str | None,
    checkpoint: Path | None,
    tolerance: float,
    show_all: bool,
) -> int:
    """Print where two levels first part, on stdout; returns 1 when they do."""
    from golden.compare import compare, stepper

    if tokens is not None and prompt is not None:
        raise CommandError("--tokens and --prompt are two ways to say the same: leave one out")
    if not math.isfinite(tolerance):
        raise CommandError(f"--tolerance must be a finite number, not {tolerance}")
    loaded = common.load(config, checkpoint)
    cfg = min((common.at_level(loaded, level) for level in (left, right)), key=lambda cfg: cfg.max_positions)
    ids = common.parse_tokens(TOKENS if tokens is None else tokens, cfg) if prompt is None else _encoded(prompt, loaded)
    common.check_tokens(ids, cfg)
    common.announce(loaded)

    def level(name: str) -> Stepper:
        return chip_run(config, checkpoint, loaded, ids) if name == "rtl" else stepper(name, cfg, loaded.state)

    result = compare(level(left), level(right), ids, tolerance)
    if show_all:
        _show(result, left, right)
    return _report(result, left, right, tolerance)


def _encoded(prompt: str, loaded: LoadedModel) -> list[int]:
    """Token ids of a text."""
    if loaded.tokenizer is None:
        raise CommandError(f"{loaded.cfg.name} has no tokenizer.json: give token ids with --tokens")
    return common.encoded(loaded.tokenizer, prompt)


def chip_run(config: str | None, checkpoint: Path | None, loaded: LoadedModel, ids: list[int]) -> RecordedStepper:
    """The chip's RTL over ``ids``, in a simulation whose registers can be read."""
    from flow import rtl
    from golden.compare import RecordedStepper
    from hw import image
    from sim import taps

    chip = rtl.make(rtl.parameters(config, checkpoint, loaded))
    words = rtl.image_words(chip, loaded)
    with common.simulation():
        with console.status("compiling the simulation with readable registers (some minutes, once)"):
            made = taps.compiled(rtl.sources(rtl.emitted(chip)), rtl.TOP, rtl.SIMULATIONS)
        with TemporaryDirectory() as scratch, console.status(f"{len(ids)} tokens (rtl)"):
            image.save(Path(scratch) / rtl.IMAGE, words)
            recorded = taps.record(made, chip.p, chip.program, Path(scratch) / rtl.IMAGE, ids)
    return RecordedStepper(ids, recorded)


def _show(result: Comparison, left: str, right: str) -> None:
    """A table of all stages."""
    title = f"{left} and {right}, {result.positions} positions"
    table = Table("stage", "largest difference", f"RMS of {left}", title=title)
    for gap in result.gaps:
        table.add_row(gap.name, f"{gap.largest:.6g}", f"{gap.scale:.6g}")
    console.print(table)


def _report(result: Comparison, left: str, right: str, tolerance: float) -> int:
    """The verdict on stdout; returns the exit code."""
    print(f"same largest logit at {result.same_choice} of {result.positions} positions")
    if result.divergence is None:
        stages = f"{len(result.gaps)} stages of {result.positions} positions"
        print(f"{left} and {right} agree within {tolerance:g} at all {stages}")
        return 0
    d = result.divergence
    print(
        f"first difference: position {result.position}, stage {d.name}, element {list(d.index)}:"
        f" {left} {d.left:.9g}, {right} {d.right:.9g}, apart by {d.largest:.3g}"
    )
    return 1
