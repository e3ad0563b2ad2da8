"""``nanok3 logits`` and ``nanok3 compare``: one teacher-forced run, written; two of them, compared."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from flow.commands import common
from flow.commands.common import CommandError, console


def write(
    tokens: str, out: Path, level: str, config: str | None, checkpoint: Path | None, dtype: str, quantise: bool
) -> None:
    """Write ``logits`` [T, V] and ``trace`` [T, L, d] of a run over ``tokens`` to an .npz file."""
    import numpy as np
    import torch

    from golden.compare import stepper, trace
    from golden.files import replaced_file

    if out.suffix != ".npz":
        raise CommandError(f"-o {out}: the file is an .npz, name it so")
    if level == "twin" and (quantise or dtype != "float32"):
        raise CommandError("--quantise and --dtype are for --on float: the twin has its own formats")
    loaded = common.load(config, checkpoint)
    cfg = common.on_chip(loaded) if level == "twin" else loaded.cfg
    ids = common.parse_tokens(tokens, cfg)
    name = "quantised" if quantise else level
    with replaced_file(out) as file:  # first: a folder that cannot be written to is not found after a long run
        common.announce(loaded)
        run = stepper(name, cfg, loaded.state, getattr(torch, dtype))
        logits, prefixes = trace(run, ids, cfg.num_hidden_layers)
        np.savez(file, logits=logits, trace=prefixes)
    console.print(f"{out}: logits {logits.shape}, trace {prefixes.shape}, {name}, {logits.dtype}")


def compare(
    left: str, right: str, tokens: str, config: str | None, checkpoint: Path | None, tolerance: float, show_all: bool
) -> int:
    """Print where two levels first part, on stdout; returns 1 when they do."""
    from golden.compare import compare as run
    from golden.compare import stepper

    loaded = common.load(config, checkpoint)
    cfg = common.on_chip(loaded) if "twin" in (left, right) else loaded.cfg
    ids = common.parse_tokens(tokens, cfg)
    common.announce(loaded)
    result = run(stepper(left, cfg, loaded.state), stepper(right, cfg, loaded.state), ids, tolerance)
    if show_all:
        table = Table(
            "stage", "largest difference", f"RMS of {left}", title=f"{left} and {right}, {len(ids)} positions"
        )
        for gap in result.gaps:
            table.add_row(gap.name, f"{gap.largest:.6g}", f"{gap.scale:.6g}")
        console.print(table)
    print(f"same largest logit at {result.same_choice} of {result.positions} positions")
    if result.divergence is None:
        print(f"{left} and {right} agree within {tolerance:g} at all {len(result.gaps)} stages of {len(ids)} positions")
        return 0
    d = result.divergence
    print(
        f"first difference: position {result.position}, stage {d.name}, element {list(d.index)}:"
        f" {left} {d.left:.9g}, {right} {d.right:.9g}, apart by {d.largest:.3g}"
    )
    return 1
