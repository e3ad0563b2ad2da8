"""Derived, validated parameters of one chip: model shapes + hardware choices -> every size the RTL needs.

Units of latency are clock cycles.  A preset outside the stated bounds is
refused with the reason.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from golden.config import ConfigError, ModelConfig, load_preset
from golden.fixed.numbers import CONST, VEC

BLOCK = 32  # elements of one MX block, and columns of the matmul array
HEAD = 32  # key, value and latent width of every head
SLOTS = 8  # MX operand slots in front of the array, one block each
T_REGS = 4  # vector registers the array writes
LANE_CONSTS = 4  # constants of one array row in a lane-constant word


@dataclass(frozen=True)
class Params:
    """One chip.  ``model`` gives shapes, the other fields are the preset's ``hardware`` section."""

    model: ModelConfig
    array_rows: int = 16
    mla_positions: int = 4

    def __post_init__(self) -> None:
        reason = _refusal(self)
        if reason:
            raise ConfigError(f"{self.model.name}: no chip can be generated: {reason}")

    # --- vectors ---
    @cached_property
    def lanes(self) -> int:
        """Elements of a vector register: 32 or 64."""
        m = self.model
        return max(m.hidden_size, HEAD * m.kda_num_heads, HEAD * m.num_attention_heads)

    @property
    def segments(self) -> int:
        """32-wide segments of a vector register."""
        return self.lanes // BLOCK

    @property
    def groups(self) -> int:
        """Row groups (one array result) of a vector register."""
        return self.lanes // self.array_rows

    @property
    def hidden_blocks(self) -> int:
        """MX blocks of the hidden state."""
        return self.model.hidden_size // BLOCK

    @property
    def snapshots(self) -> int:
        """Block snapshots of the attention residual."""
        return len(self.model.block_starts())

    @property
    def candidates(self) -> int:
        """Most candidates of one residual mix."""
        return self.snapshots + 1

    # --- memories ---
    @property
    def weight_width(self) -> int:
        """Bits of a weight word: per row 32 E2M1 codes, then per row one E8M0 code."""
        return self.array_rows * (BLOCK * 4 + 8)

    @property
    def cache_width(self) -> int:
        """Bits of one cached position: latent and shared key."""
        return 16 * (self.model.kv_lora_rank + self.model.qk_rope_head_dim)

    @property
    def kda_layers(self) -> int:
        """Number of KDA layers."""
        return len(self.model.kda_layers)

    @property
    def mla_layers(self) -> int:
        """Number of MLA layers."""
        return len(self.model.full_attn_layers)

    @property
    def moe_layers(self) -> int:
        """Number of layers with routed experts."""
        return self.model.num_hidden_layers - min(self.model.first_k_dense_replace, self.model.num_hidden_layers)

    @property
    def lane_const_width(self) -> int:
        """Bits of a lane-constant word: four 16-bit constants per array row."""
        return self.array_rows * LANE_CONSTS * CONST.width

    @property
    def history_width(self) -> int:
        """Bits of a conv-history word: three VEC values per array row."""
        return self.array_rows * 3 * VEC.width

    @property
    def expert_words(self) -> int:
        """Weight words of one routed expert (gate/up pairs, then down)."""
        return 3 * (HEAD // self.array_rows)

    @property
    def position_bits(self) -> int:
        """Bits that hold a position."""
        return (self.model.max_positions - 1).bit_length()

    @property
    def token_bits(self) -> int:
        """Bits that hold a token."""
        return (self.model.vocab_size - 1).bit_length()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for manifests and hashes."""
        d = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "model"}
        return {"model": self.model.to_dict(), **d}


def from_preset(name_or_path: str | Path) -> Params:
    """Parameters of a preset; raises ConfigError with one line."""
    model, hardware = load_preset(name_or_path)
    known = {f.name for f in dataclasses.fields(Params)} - {"model"}
    for key, value in hardware.items():
        if key not in known:
            raise ConfigError(f"{model.name}: unknown hardware key {key!r}: use {', '.join(sorted(known))}")
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigError(f"{model.name}: hardware key {key!r} must be an integer, not {value!r}")
    return Params(model, **hardware)


def _refusal(p: Params) -> str | None:
    """The first bound that a preset breaks, in words; None when a chip can be made."""
    m = p.model
    fixed = {
        "kda_head_dim": HEAD, "q_lora_rank": HEAD, "kv_lora_rank": HEAD, "qk_nope_head_dim": HEAD,
        "v_head_dim": HEAD, "routed_expert_hidden_size": HEAD, "moe_intermediate_size": HEAD,
        "short_conv_kernel_size": 4, "activation": "situ", "activation_situ_beta": 4.0,
        "kda_gate_rank": None, "mla_output_gate": True, "norm_offset": False, "renormalize": True,
        "weight_format": "mxfp4",
    }  # fmt: skip
    for key, value in fixed.items():
        if getattr(m, key) != value:
            return f"{key} must be {value}, not {getattr(m, key)}"
    ranges = {
        "hidden_size": (32, 64), "kda_num_heads": (1, 2), "num_attention_heads": (1, 2),
        "qk_rope_head_dim": (16,), "num_experts_per_token": (1, 2),
        "activation_situ_linear_beta": range(1, 32), "num_experts": range(2, 33),
    }  # fmt: skip
    for key, allowed in ranges.items():
        if getattr(m, key) not in allowed:
            return f"{key} must be one of {list(allowed)}, not {getattr(m, key)}"
    checks = (
        (1 <= m.num_hidden_layers <= 8, "num_hidden_layers must be 1 to 8"),
        (m.attn_res_block_size is not None, "attn_res_block_size must be given"),
        (p.array_rows in (8, 16, 32), "array_rows must be 8, 16 or 32"),
        (p.array_rows <= p.lanes // 2, "array_rows must be at most half the vector lanes"),
        (bool(m.kda_layers) and bool(m.full_attn_layers), "at least one KDA and one MLA layer are needed"),
        (p.mla_positions in (1, 2, 4, 8), "mla_positions must be 1, 2, 4 or 8"),
        (m.max_positions % p.mla_positions == 0, "max_positions must be a multiple of mla_positions"),
        (8 <= m.max_positions <= 256, "max_positions must be 8 to 256"),
        (m.intermediate_size in (32, 64, 96, 128), "intermediate_size must be 32, 64, 96 or 128"),
        (m.shared_intermediate_size in (32, 64), "the fused shared experts must be 32 or 64 wide"),
        (32 <= m.vocab_size <= 1024 and m.vocab_size % 32 == 0, "vocab_size must be a multiple of 32, 32 to 1024"),
        (m.vocab_size // p.array_rows < 128, "vocab_size must be below 128 times array_rows"),
        (0 < m.routed_scaling_factor < 4, "routed_scaling_factor must be above 0 and below 4"),
        (m.gate_lower_bound in (-5.0,), "gate_lower_bound must be -5.0"),
        (0 <= m.first_k_dense_replace <= m.num_hidden_layers, "first_k_dense_replace must be within the layers"),
    )
    for ok, reason in checks:
        if not ok:
            return reason
    if p.snapshots + 1 > 5:
        return "at most 4 block snapshots (raise attn_res_block_size)"
    if max(m.shared_intermediate_size, m.intermediate_size // 2) > p.lanes:
        return f"shared experts must fit {p.lanes} lanes and the dense FFN two vector registers"
    return None
