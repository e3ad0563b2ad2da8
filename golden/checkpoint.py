"""Checkpoints in the released Kimi K3 layout, read and written.

A folder holds ``config.json``, ``model.safetensors`` (or shards with
``model.safetensors.index.json``) and, when the model has one, ``tokenizer.json``.

Names, shapes and types are those of moonshotai/Kimi-K3: routed experts packed as
``experts.E.{w1,w2,w3}.{weight_packed,weight_scale}`` (uint8: two E2M1 codes a
byte, the even column low; E8M0 codes), every other matrix and the layer norms
bf16, convolutions, ``A_log`` (zero-padded to a multiple of head_dim), ``dt_bias``,
``o_norm`` and the router's bias float32.  A prefix ``language_model.`` is allowed,
the vision tower is skipped, ``config.json`` may be the text model's own or nested
under ``text_config``.  K3's key ``max_position_embeddings`` is the context; keys
that K3 does not have are in one optional section ``nanok3``: ``name``,
``mla_norm_eps`` and ``l2_norm_eps`` (constants in K3's code).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from golden import mla
from golden.config import PRESET_DIR, ConfigError, ModelConfig, load_preset, model_from_dict
from golden.files import replaced_folder
from golden.fixed.numbers import BIAS, CONST, DTB, RATE, Fixed, to_float
from golden.fixed.weights import fit
from golden.formats import E2M1, E8M0_NAN, INT4_GROUP, MX_BLOCK, mx_decode, mx_encode, pack_e2m1, unpack_e2m1
from golden.model import NanoK3, build_model

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CHECKPOINTS = PRESET_DIR.parent / "checkpoints"
CONFIG, WEIGHTS, INDEX, TOKENIZER = "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"
PREFIX = "language_model."
SKIPPED = ("vision_tower.", "mm_projector.")

State = dict[str, torch.Tensor]


class CheckpointError(ConfigError):
    """A checkpoint that cannot be used or written; one line that names the tensor, key or file."""


# ---------------------------------------------------------------- config.json

#: ModelConfig field -> key of config.json, a dot for a nested section; all are required
KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "kda_layers": "linear_attn_config.kda_layers",
    "full_attn_layers": "linear_attn_config.full_attn_layers",
    "kda_num_heads": "linear_attn_config.num_heads",
    "kda_head_dim": "linear_attn_config.head_dim",
    "short_conv_kernel_size": "linear_attn_config.short_conv_kernel_size",
    "gate_lower_bound": "linear_attn_config.gate_lower_bound",
    "num_attention_heads": "num_attention_heads",
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_nope_head_dim": "qk_nope_head_dim",
    "qk_rope_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
    "mla_output_gate": "mla_use_output_gate",
    "intermediate_size": "intermediate_size",
    "first_k_dense_replace": "first_k_dense_replace",
    "num_experts": "num_experts",
    "num_experts_per_token": "num_experts_per_token",
    "num_shared_experts": "num_shared_experts",
    "moe_intermediate_size": "moe_intermediate_size",
    "routed_expert_hidden_size": "routed_expert_hidden_size",
    "routed_scaling_factor": "routed_scaling_factor",
    "renormalize": "moe_renormalize",
    "attn_res_block_size": "attn_res_block_size",
    "activation": "hidden_act",
    "activation_situ_beta": "activation_situ_beta",
    "activation_situ_linear_beta": "activation_situ_linear_beta",
    "rms_norm_eps": "rms_norm_eps",
    "max_positions": "max_position_embeddings",
}
#: keys of K3's config whose other values this model does not compute; written always, checked when present
FIXED = {
    "linear_attn_config.use_full_rank_gate": True,
    "mla_use_nope": True,
    "latent_moe_use_norm": True,
    "moe_router_activation_func": "sigmoid",
    "moe_layer_freq": 1,
    "num_expert_group": 1,
    "topk_group": 1,
    "num_nextn_predict_layers": 0,
    "tie_word_embeddings": False,
}
OWN_SECTION = "nanok3"
OWN_KEYS = ("name", "mla_norm_eps", "l2_norm_eps")
ACTIVATIONS = {"situ": "situ", "swiglu": "silu"}  # ours -> hidden_act
NOT_QUANTISED = ("self_attn", "shared_experts", r"mlp\.(gate|up|gate_up|down)_proj", "lm_head", *SKIPPED)


def _put(data: dict[str, Any], key: str, value: Any) -> None:
    *sections, leaf = key.split(".")
    for section in sections:
        data = data.setdefault(section, {})
    data[leaf] = value


def _get(data: Mapping[str, Any], key: str) -> Any:
    """Value at a dotted key; KeyError when any part is missing."""
    value: Any = data
    for part in key.split("."):
        if not isinstance(value, Mapping):
            raise KeyError(key)
        value = value[part]
    return value


def config_to_json(cfg: ModelConfig) -> dict[str, Any]:
    """config.json of a model; ones that K3's layout cannot hold are refused."""
    if cfg.norm_offset or cfg.kda_gate_rank is not None or cfg.weight_format != "mxfp4":
        raise CheckpointError(
            f"{cfg.name}: norm offsets, a low-rank KDA gate and int4 weights have no place in the K3 layout"
        )
    data: dict[str, Any] = {"architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear"}
    values = cfg.to_dict() | {"activation": ACTIVATIONS[cfg.activation]}
    for field, key in KEYS.items():
        value = values[field]
        _put(data, key, list(value) if isinstance(value, tuple) else value)
    for key, value in FIXED.items():
        _put(data, key, value)
    data["num_key_value_heads"] = cfg.num_attention_heads
    data["dtype"] = "bfloat16"
    data["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "mxfp4-pack-quantized",
        "quantization_status": "compressed",
        "ignore": [f"re:.*{name.rstrip('.')}.*" for name in NOT_QUANTISED],
        "config_groups": {
            "group_0": {
                "format": "mxfp4-pack-quantized",
                "targets": ["Linear"],
                "input_activations": None,
                "output_activations": None,
                "weights": {
                    "num_bits": 4, "type": "float", "strategy": "group", "group_size": MX_BLOCK, "symmetric": True,
                    "dynamic": False, "scale_dtype": "torch.uint8",
                },
            }
        },
    }  # fmt: skip
    data[OWN_SECTION] = {key: values[key] for key in OWN_KEYS}
    return data


def config_from_json(data: Any, where: Path) -> ModelConfig:
    """ModelConfig of a config.json, nested under ``text_config`` or not; ``where`` is named in refusals."""
    if isinstance(data, dict) and isinstance(data.get("text_config"), dict):
        data = data["text_config"]
    if not isinstance(data, dict):
        raise CheckpointError(f"{where}: not a JSON object")
    section: dict[str, Any] = {}
    for field, key in KEYS.items():
        try:
            section[field] = _get(data, key)
        except KeyError:
            raise CheckpointError(f"{where}: key {key!r} is missing") from None
    for key, only in {**FIXED, "num_key_value_heads": section["num_attention_heads"]}.items():
        try:
            value = _get(data, key)
        except KeyError:
            continue
        if value != only:
            raise CheckpointError(f"{where}: {key} must be {json.dumps(only)}, not {json.dumps(value)}")
    if section["activation"] not in ACTIVATIONS.values():
        raise CheckpointError(f"{where}: hidden_act must be situ or silu, not {section['activation']!r}")
    section["activation"] = {k3: ours for ours, k3 in ACTIVATIONS.items()}[section["activation"]]
    own = data.get(OWN_SECTION, {})
    if not isinstance(own, dict) or set(own) - set(OWN_KEYS):
        raise CheckpointError(f"{where}: section {OWN_SECTION!r} may hold only {', '.join(OWN_KEYS)}")
    name = str(own.get("name", where.parent.name))
    section |= {key: own[key] for key in OWN_KEYS if key != "name" and key in own}
    try:
        cfg = model_from_dict(section, name)
    except ConfigError as e:
        raise CheckpointError(f"{where}: {e}") from None
    for field in ("latent_size", "moe_intermediate_size"):
        if getattr(cfg, field) % MX_BLOCK:
            raise CheckpointError(f"{where}: packed experts need {field} to be a multiple of {MX_BLOCK}")
    return cfg


# ---------------------------------------------------------------- tensors


@dataclass(frozen=True)
class Stored:
    """How a tensor of the model lies in the file."""

    shape: tuple[int, ...]
    packed: bool = False  # a routed expert's matrix: weight_packed and weight_scale
    dtype: torch.dtype = torch.bfloat16


FLOAT32 = ("_conv1d.weight", ".A_log", ".dt_bias", ".o_norm.weight", ".e_score_correction_bias")


def is_matrix(name: str, shape: tuple[int, ...] | torch.Size) -> bool:
    """True for what the chip stores as MXFP4: every matrix but the residual-mix projections, which are vectors."""
    return len(shape) == 2 and not name.endswith("_res_proj.weight")


def stored_tensors(cfg: ModelConfig) -> dict[str, Stored]:
    """Every tensor of a model, by the model's names, as the file holds it."""
    with torch.device("meta"):
        shapes = {name: tuple(t.shape) for name, t in NanoK3(cfg).state_dict().items()}
    out = {}
    for name, shape in shapes.items():
        if name.endswith(".A_log"):
            shape = (-(-cfg.kda_num_heads // cfg.kda_head_dim) * cfg.kda_head_dim,)
        dtype = torch.float32 if name.endswith(FLOAT32) else torch.bfloat16
        out[name] = Stored(shape, ".experts." in name, dtype)
    return out


def file_tensors(stored: Mapping[str, Stored]) -> dict[str, tuple[int, ...]]:
    """Names and shapes in the file."""
    out: dict[str, tuple[int, ...]] = {}
    for name, s in stored.items():
        if s.packed:
            rows, columns = s.shape
            out[f"{name}_packed"] = (rows, columns // 2)
            out[f"{name}_scale"] = (rows, columns // MX_BLOCK)
        else:
            out[name] = s.shape
    return out


def check_blocks(cfg: ModelConfig) -> None:
    """Refuse a model with matrices whose rows are no whole number of its weight format's blocks."""
    for name, s in stored_tensors(cfg).items():
        if is_matrix(name, s.shape):
            size = s.shape[-1]
            block = MX_BLOCK if cfg.weight_format == "mxfp4" else min(INT4_GROUP, size)
            if size % block:
                rows = f"{name} has rows of {size} values"
                raise ConfigError(f"{cfg.name}: {rows}, and {cfg.weight_format} takes them in blocks of {block}")


def check_quantisable(cfg: ModelConfig) -> None:
    """Refuse a model that quantised float cannot compute: vectors come in blocks too, most as rows of matrices do."""
    check_blocks(cfg)
    if cfg.weight_format == "mxfp4" and cfg.full_attn_layers:
        mla.check_quantisable(cfg)


def snap(cfg: ModelConfig, state: Mapping[str, torch.Tensor]) -> State:
    """Parameters as the chip and the file can both hold them, so that float, quantised float and twin see the same.

    Matrices become MXFP4 values; norm weights and convolution taps CONST; dt_bias DTB; router bias BIAS; A_log the
    float32 logarithm of a RATE; all rounded to their type in the file.  Residual-mix projections keep that type only:
    the chip stores their product with the norm weight.  Snapping twice changes nothing.
    """
    if set(state) != set(stored_tensors(cfg)):
        different = sorted(set(state) ^ set(stored_tensors(cfg)))
        raise CheckpointError(f"{cfg.name}: tensor {different[0]} is missing or not part of the model")
    return {name: _snap(name, t.detach()).contiguous() for name, t in state.items()}


def _snap(name: str, t: torch.Tensor) -> torch.Tensor:
    values = t.double().numpy()
    if not np.isfinite(values).all():
        raise CheckpointError(f"{name} holds a value that is not finite")
    if is_matrix(name, t.shape):
        codes, scales = mx_encode(values, E2M1)
        return torch.from_numpy(mx_decode(codes, scales, E2M1)).float()
    if name.endswith(".A_log"):
        rate = np.clip(np.floor(np.exp(values) / RATE.ulp + 0.5), 1, RATE.max)
        return torch.from_numpy(np.log(rate * RATE.ulp)).float()
    if not name.endswith("_res_proj.weight"):
        grid: Fixed = DTB if name.endswith(".dt_bias") else BIAS if name.endswith("_bias") else CONST
        values = to_float(fit(name, values, grid), grid)
    rounded = torch.from_numpy(values).float()
    # eight leading bits of a multiple of the grid are a multiple of it too
    return rounded if name.endswith(FLOAT32) else rounded.bfloat16().float()


def _to_file(cfg: ModelConfig, state: State) -> State:
    """Snapped parameters as the file's tensors."""
    out: State = {}
    for name, s in stored_tensors(cfg).items():
        t = state[name]
        if s.packed:
            codes, scales = mx_encode(t.double().numpy(), E2M1)
            out[f"{name}_packed"], out[f"{name}_scale"] = torch.from_numpy(pack_e2m1(codes)), torch.from_numpy(scales)
        elif name.endswith(".A_log"):
            out[name] = torch.nn.functional.pad(t, (0, s.shape[0] - len(t)))
        else:
            out[name] = t.to(s.dtype)
    return out


# ---------------------------------------------------------------- writing


def save_checkpoint(
    folder: Path | str, cfg: ModelConfig, state: Mapping[str, torch.Tensor], tokenizer: Path | str | None = None
) -> None:
    """Write a checkpoint, snapped (see ``snap``); the folder appears, or is replaced, as a whole.

    A folder that holds anything but a checkpoint is refused.
    """
    folder = Path(folder)
    config = config_to_json(cfg)
    tensors = _to_file(cfg, snap(cfg, state))
    text = None if tokenizer is None else _read(Path(tokenizer))
    with replaced_folder(folder, _ours) as work:
        save_file(tensors, str(work / WEIGHTS), metadata={"format": "pt"})
        (work / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        if text is not None:
            (work / TOKENIZER).write_bytes(text)


def _ours(file: Path) -> bool:
    """True for the files of a checkpoint."""
    return file.name in (CONFIG, INDEX, TOKENIZER) or (file.name.startswith("model") and file.suffix == ".safetensors")


# ---------------------------------------------------------------- reading


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as e:
        raise CheckpointError(f"cannot read {file}: {e.strerror}") from None


def _read_json(file: Path) -> Any:
    try:
        return json.loads(_read(file))
    except ValueError as e:
        raise CheckpointError(f"{file} is not valid JSON: {e}") from None
    except RecursionError:
        raise CheckpointError(f"{file} is not a checkpoint's: it is nested too deep") from None


def load_config(folder: Path | str) -> ModelConfig:
    """The model of a checkpoint's config.json."""
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such checkpoint folder")
    if not (folder / CONFIG).is_file():
        raise CheckpointError(
            f"{folder} has no {CONFIG}: give the folder of a checkpoint, as 'nanok3 export' writes it"
        )
    return config_from_json(_read_json(folder / CONFIG), folder / CONFIG)


def _weight_files(folder: Path) -> dict[Path, list[str] | None]:
    """Weight files and, with an index, the tensors that it expects in each."""
    if not (folder / INDEX).exists():
        return {folder / WEIGHTS: None}
    index = _read_json(folder / INDEX)
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict) or not all(isinstance(f, str) and Path(f).name == f for f in names.values()):
        raise CheckpointError(f"{folder / INDEX}: 'weight_map' must give a file name for each tensor")
    out: dict[Path, list[str] | None] = {}
    for name, file in names.items():
        listed = out.setdefault(folder / file, [])
        assert listed is not None
        listed.append(name)
    return out


def _plain_name(name: str) -> str | None:
    """A file's tensor name without the prefix; None for the vision tower."""
    name = name.removeprefix(PREFIX)
    return None if name.startswith(SKIPPED) else name


def _read_tensors(file: Path, listed: list[str] | None, wanted: Mapping[str, tuple[int, ...]]) -> State:
    """The language model's tensors of one file, shapes and types checked before anything is read."""
    if not file.is_file():
        raise CheckpointError(f"{file} is missing")
    out: State = {}
    try:
        with safe_open(str(file), framework="pt") as opened:
            names = list(opened.keys())
            for name in sorted(set(listed or ()) - set(names)):
                raise CheckpointError(f"{file}: tensor {name} is missing, though {INDEX} lists it")
            for name in names:
                plain = _plain_name(name)
                if plain is None:
                    continue
                if plain not in wanted:
                    raise CheckpointError(f"{file}: tensor {name} is not part of the model that {CONFIG} describes")
                if plain in out:
                    raise CheckpointError(f"{file}: tensor {plain} is there twice, with and without {PREFIX!r}")
                part = opened.get_slice(name)
                shape, dtype = tuple(part.get_shape()), str(part.get_dtype())
                if shape != wanted[plain]:
                    raise CheckpointError(f"{file}: tensor {name} has shape {shape}, not {wanted[plain]}")
                types = ("U8",) if plain.endswith(("_packed", "_scale")) else ("BF16", "F16", "F32", "F64")
                if dtype not in types:
                    raise CheckpointError(f"{file}: tensor {name} has type {dtype}, not {' or '.join(types)}")
                out[plain] = opened.get_tensor(name)
    except (SafetensorError, OSError) as e:
        raise CheckpointError(f"{file} is not a whole safetensors file: {str(e).splitlines()[0]}") from None
    return out


def load_checkpoint(folder: Path | str) -> tuple[ModelConfig, State]:
    """A checkpoint as (its model, float32 parameters under golden.model's names); refuses by name, CheckpointError."""
    folder = Path(folder)
    cfg = load_config(folder)
    stored = stored_tensors(cfg)
    wanted = file_tensors(stored)
    tensors: State = {}
    for file, listed in _weight_files(folder).items():
        found = _read_tensors(file, listed, wanted)
        for name in set(found) & set(tensors):
            raise CheckpointError(f"{file}: tensor {name} is in another file too")
        tensors |= found
    for name in wanted:
        if name not in tensors:
            raise CheckpointError(f"{folder}: tensor {name} is missing")
    return cfg, {name: _from_file(name, s, tensors, cfg) for name, s in stored.items()}


def _from_file(name: str, s: Stored, tensors: State, cfg: ModelConfig) -> torch.Tensor:
    """One parameter from the file's tensors."""
    if s.packed:
        scales = tensors[f"{name}_scale"].numpy()
        if (scales == E8M0_NAN).any():
            raise CheckpointError(f"{name}_scale holds NaN (code {E8M0_NAN})")
        t = torch.from_numpy(mx_decode(unpack_e2m1(tensors[f"{name}_packed"].numpy()), scales, E2M1)).float()
    else:
        t = tensors[name].float()
    if not t.isfinite().all():
        raise CheckpointError(f"{name} holds a value that is not finite")
    if name.endswith(".A_log"):
        t, tail = t.split([cfg.kda_num_heads, len(t) - cfg.kda_num_heads])
        if tail.any():
            raise CheckpointError(f"{name} must be zero beyond its first {cfg.kda_num_heads} values, one per head")
    return t.contiguous()


# ---------------------------------------------------------------- presets with their weights


@dataclass(frozen=True)
class LoadedModel:
    """What a command works on; ``source`` says where the weights come from."""

    cfg: ModelConfig
    hardware: dict[str, Any]
    state: State
    tokenizer: Tokenizer | None
    source: str


def load_tokenizer(file: Path, cfg: ModelConfig) -> Tokenizer | None:
    """A tokenizer.json, None when there is none or it knows more tokens than the model."""
    if not file.is_file():
        return None
    tokenizer = _read_tokenizer(file)
    return tokenizer if _last_token(tokenizer) < cfg.vocab_size else None


def _read_tokenizer(file: Path) -> Tokenizer:
    """A tokenizer.json; refused when it is none."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(_read(file).decode())
    except CheckpointError:
        raise
    except Exception as e:  # the library raises bare Exception
        raise CheckpointError(f"{file} is not a tokenizer: {str(e).splitlines()[0]}") from None


def _last_token(tokenizer: Tokenizer) -> int:
    """The largest token id; -1 when there is no token."""
    return max(tokenizer.get_vocab().values(), default=-1)


def check_tokenizer(file: Path, cfg: ModelConfig) -> None:
    """Refuse a file that is no tokenizer, or whose tokens are none or not all the model's."""
    last = _last_token(_read_tokenizer(file))
    if not 0 <= last < cfg.vocab_size:
        held = f"has tokens up to {last}" if last >= 0 else "has no tokens"
        raise CheckpointError(f"{file} {held}, and {cfg.name} takes 0 to {cfg.vocab_size - 1}")


def _difference(preset: ModelConfig, found: ModelConfig) -> str | None:
    """The first key in which a checkpoint's model is another one than the preset's (context length apart)."""
    ours, theirs = asdict(preset), asdict(found)
    for key in [*KEYS, "mla_norm_eps", "l2_norm_eps"]:
        if key != "max_positions" and ours[key] != theirs[key]:
            return f"{key} is {theirs[key]}, not {ours[key]}"
    return None


def load_preset_model(
    name_or_path: str | Path | None = None, checkpoint: Path | str | None = None, seed: int = 0
) -> LoadedModel:
    """A preset with its weights: of ``checkpoint``, else the committed one of its name, else seeded random.

    Without a preset the checkpoint alone describes the model.  Random MXFP4 weights are snapped like stored ones.
    """
    cfg, hardware = (None, {}) if name_or_path is None else load_preset(name_or_path)
    if cfg is None and checkpoint is None:
        raise CheckpointError("give a preset or a checkpoint folder")
    folder = Path(checkpoint) if checkpoint is not None else None
    why = ""
    if folder is None:
        assert cfg is not None
        committed = CHECKPOINTS / cfg.name
        if not (committed / CONFIG).is_file():
            why = f"preset {cfg.name} has no checkpoint"
        elif different := _difference(cfg, load_config(committed)):
            why = f"the checkpoint of {cfg.name} is of another model: {different}"
        else:
            folder = committed
    if folder is None:
        assert cfg is not None
        if cfg.weight_format == "mxfp4":
            check_blocks(cfg)
        state = build_model(cfg, seed=seed).state_dict()
        state = snap(cfg, state) if cfg.weight_format == "mxfp4" else state
        tokenizer = load_tokenizer(CHECKPOINTS / "nano-k3" / TOKENIZER, cfg)
        return LoadedModel(cfg, hardware, state, tokenizer, f"seeded random weights (seed {seed}): {why}")
    found, state = load_checkpoint(folder)
    if cfg is not None and (different := _difference(cfg, found)):
        raise CheckpointError(f"{folder} is not a checkpoint of preset {cfg.name}: {different}")
    cfg = cfg or found
    return LoadedModel(cfg, hardware, state, load_tokenizer(folder / TOKENIZER, cfg), f"checkpoint {folder.name}")


def export(weights: Path | str, folder: Path | str, preset: str | Path, tokenizer: Path | str | None = None) -> None:
    """A trainer's safetensors file (golden.model's names) as a checkpoint folder; a tokenizer must be the model's."""
    cfg, _ = load_preset(preset)
    if tokenizer is not None:
        check_tokenizer(Path(tokenizer), cfg)
    check_blocks(cfg)
    file = Path(weights)
    expected = {n: tuple(t.shape) for n, t in build_model(cfg).state_dict().items()}
    try:
        with safe_open(str(file), framework="pt") as opened:
            state = {name: opened.get_tensor(name) for name in opened.keys()}
    except (SafetensorError, OSError) as e:
        raise CheckpointError(f"cannot read {file}: {str(e).splitlines()[0]}") from None
    for name, t in state.items():
        if expected.get(name) not in (None, tuple(t.shape)):
            raise CheckpointError(f"{file}: tensor {name} has shape {tuple(t.shape)}, not {expected[name]}")
    save_checkpoint(folder, cfg, state, tokenizer)
