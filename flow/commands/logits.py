"""``nanok3 logits``: one teacher-forced run, written."""

from __future__ import annotations

from pathlib import Path

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
    name = "quantised" if quantise else level
    cfg = common.at_level(loaded, name)
    ids = common.parse_tokens(tokens, cfg)
    with replaced_file(out) as file:  # first: a folder that cannot be written to is not found after a long run
        common.announce(loaded)
        run = stepper(name, cfg, loaded.state, getattr(torch, dtype))
        logits, prefixes = trace(run, ids, cfg.num_hidden_layers)
        np.savez(file, logits=logits, trace=prefixes)
    console.print(f"{out}: logits {logits.shape}, trace {prefixes.shape}, {name}, {logits.dtype}")
