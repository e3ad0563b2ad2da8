"""Model shapes, read from a YAML preset (imports without torch).

A preset has two sections: ``model`` (read here, K3's own config names) and
``hardware`` (read by :mod:`hw.params`).  Everything that differs between the
K3 family and the simplified peer model is a value here, not a fork of code.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

PRESET_DIR = Path(__file__).parent / "presets"
LARGEST = {  # sizes that are 1 or more, and at most what K3 itself is within
    "num_hidden_layers": 1024,
    "short_conv_kernel_size": 64,
    **dict.fromkeys(("kda_num_heads", "kda_head_dim", "num_attention_heads", "num_experts"), 1 << 16),
    **dict.fromkeys(("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 1 << 16),
    **dict.fromkeys(("q_lora_rank", "kda_gate_rank"), 1 << 16),  # where they are given
    **dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size"), 1 << 20),
    "routed_expert_hidden_size": 1 << 20,  # where it is given
    "max_positions": 1 << 24,
    "num_shared_experts": 1 << 16,
}
MAY_BE_ZERO = ("num_shared_experts",)


class ConfigError(ValueError):
    """A preset that cannot be used; the message is one line that says what to do."""


@dataclass(frozen=True)
class ModelConfig:
    """Shapes and choices of one model (source: config.json of Kimi K3, names kept).

    ``kda_layers`` and ``full_attn_layers`` are 1-based, as released.
    ``q_lora_rank: null`` projects q directly; ``routed_expert_hidden_size: null``
    lets the experts work on the hidden state (no latent, no routed norm).
    """

    name: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    kda_layers: tuple[int, ...]
    full_attn_layers: tuple[int, ...]
    kda_num_heads: int
    kda_head_dim: int
    num_attention_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    intermediate_size: int
    num_experts: int
    num_experts_per_token: int
    num_shared_experts: int
    moe_intermediate_size: int
    max_positions: int
    q_lora_rank: int | None = None
    routed_expert_hidden_size: int | None = None
    first_k_dense_replace: int = 1
    attn_res_block_size: int | None = None  # null: plain residual stream
    short_conv_kernel_size: int = 4
    gate_lower_bound: float = -5.0
    kda_gate_rank: int | None = None  # null: K3's full-rank output gate W_g
    mla_output_gate: bool = True
    activation: str = "situ"  # or "swiglu"
    activation_situ_beta: float = 4.0
    activation_situ_linear_beta: float = 25.0
    routed_scaling_factor: float = 1.0
    renormalize: bool = True
    norm_offset: bool = False  # True: a stored norm weight w means 1 + w
    rms_norm_eps: float = 1e-5
    mla_norm_eps: float = 1e-6
    l2_norm_eps: float = 1e-6
    weight_format: str = "mxfp4"  # or "int4_g128"
    extra: dict[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        self._check_numbers()
        layers = set(self.kda_layers) | set(self.full_attn_layers)
        named = len(self.kda_layers) + len(self.full_attn_layers)
        if named != len(layers) or layers != set(range(1, self.num_hidden_layers + 1)):
            raise ConfigError(
                f"{self.name}: kda_layers and full_attn_layers must name each of the"
                f" {self.num_hidden_layers} layers once (1-based)"
            )
        if self.activation not in ("situ", "swiglu"):
            raise ConfigError(f"{self.name}: activation must be situ or swiglu, not {self.activation!r}")
        if self.weight_format not in ("mxfp4", "int4_g128"):
            raise ConfigError(f"{self.name}: weight_format must be mxfp4 or int4_g128, not {self.weight_format!r}")
        if not 1 <= self.num_experts_per_token <= self.num_experts:
            raise ConfigError(f"{self.name}: num_experts_per_token must be 1..{self.num_experts}")

    def _check_numbers(self) -> None:
        """Refuse numbers that no model has, before anything is made from them."""
        for key, most in LARGEST.items():
            value = getattr(self, key)
            least = 0 if key in MAY_BE_ZERO else 1
            if value is not None and not least <= value <= most:
                allowed = f"{least} or more" if value < least else f"at most {most}"
                raise ConfigError(f"{self.name}: {key} must be {allowed}, not {value}")
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"{self.name}: {item.name} must be a finite number, not {value}")
        for key in ("rms_norm_eps", "mla_norm_eps", "l2_norm_eps"):
            if getattr(self, key) < 0:
                raise ConfigError(f"{self.name}: {key} must not be negative")

    def is_kda(self, layer: int) -> bool:
        """True when 0-based ``layer`` is a KDA layer (else gated MLA)."""
        return layer + 1 in self.kda_layers

    def is_dense(self, layer: int) -> bool:
        """True when 0-based ``layer`` has the dense FFN in place of the MoE."""
        return layer < self.first_k_dense_replace

    @property
    def latent_size(self) -> int:
        """Width the routed experts work on."""
        return self.routed_expert_hidden_size or self.hidden_size

    @property
    def shared_intermediate_size(self) -> int:
        """Width of the fused shared experts."""
        return self.moe_intermediate_size * self.num_shared_experts

    def block_starts(self) -> list[int]:
        """0-based layers at which the running prefix is snapshotted (AttnRes)."""
        if self.attn_res_block_size is None:
            return []
        return list(range(0, self.num_hidden_layers, self.attn_res_block_size))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for hashing and for JSON."""
        d = dataclasses.asdict(self)
        d.pop("extra")
        return d


def positions_of(prompt: int, count: int) -> int:
    """Positions that a run takes from ``prompt`` tokens to ``count`` made: the last one made is never taken in again.

    At every level a run fits a model when these are at most its ``max_positions``.
    """
    return prompt + count - 1


def preset_names() -> list[str]:
    """Names of the presets that ship with the project."""
    return sorted(p.stem for p in PRESET_DIR.glob("*.yaml"))


def load_preset(name_or_path: str | Path) -> tuple[ModelConfig, dict[str, Any]]:
    """Read a preset by name or path; returns the model and the raw hardware section.

    Raises ConfigError with one line when it is unknown, unreadable or inconsistent.
    """
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        path = PRESET_DIR / f"{name_or_path}.yaml"
        if not path.is_file():
            known = ", ".join(preset_names())
            raise ConfigError(f"unknown preset {str(name_or_path)!r}: use one of {known} or a .yaml path")
    try:
        data = yaml.safe_load(path.read_text())
    except OSError as e:
        raise ConfigError(f"cannot read preset {path}: {e.strerror}") from e
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} is not valid YAML: {str(e).splitlines()[0]}") from e
    except RecursionError:
        raise ConfigError(f"{path} is no preset: it is nested too deep") from None
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        raise ConfigError(f"{path}: a preset needs a 'model' section")
    name, hardware = data.get("name", path.stem), data.get("hardware") or {}
    if not isinstance(name, str):
        raise ConfigError(f"{path}: 'name' must be text, not {name!r}")
    if not isinstance(hardware, dict):
        raise ConfigError(f"{path}: 'hardware' must be a section of keys and values")
    return model_from_dict(data["model"], name=name), hardware


def model_from_dict(section: dict[str, Any], name: str) -> ModelConfig:
    """Build a ModelConfig; unknown and missing keys are refused by name."""
    known = {f.name: f for f in dataclasses.fields(ModelConfig) if f.name not in ("name", "extra")}
    unknown = sorted(map(str, set(section) - set(known)))
    if unknown:
        raise ConfigError(f"{name}: unknown model key {unknown[0]!r}")
    missing = [
        k
        for k, f in known.items()
        if k not in section and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{name}: model key {missing[0]!r} is missing")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in section.items()}
    for key, value in values.items():
        _check_type(name, key, str(known[key].type), value)
    return ModelConfig(name=name, **values)


def _check_type(name: str, key: str, want: str, value: Any) -> None:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    ok = {
        "int": is_int and value >= 0,
        "int | None": value is None or (is_int and value > 0),
        "float": is_int or isinstance(value, float),
        "bool": isinstance(value, bool),
        "str": isinstance(value, str),
        "tuple[int, ...]": isinstance(value, tuple) and all(isinstance(v, int) for v in value),
    }[want]
    if not ok:
        raise ConfigError(f"{name}: model key {key!r} must be {want}, not {value!r}")
