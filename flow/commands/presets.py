"""``nanok3 presets``: what ships, and whether a chip can be generated."""

from __future__ import annotations

from golden.checkpoint import CHECKPOINTS, CONFIG
from golden.config import ConfigError, load_preset, preset_names
from hw.params import from_preset


def show() -> None:
    """One line a preset."""
    for name in preset_names():
        cfg, _ = load_preset(name)
        try:
            p = from_preset(name)
            chip = f"chip with {p.array_rows} array rows, {p.mla_positions} cached positions a cycle"
        except ConfigError as e:
            chip = str(e).split(": ", 1)[1]
        weights = "checkpoint" if (CHECKPOINTS / name / CONFIG).is_file() else "random weights"
        shape = f"d {cfg.hidden_size}, {cfg.num_hidden_layers} layers, {cfg.num_experts} experts"
        print(f"{name:10s} {shape}, {cfg.max_positions} positions; {weights}; {chip}")
