"""Checkpoints in the released layout: round trip, foreign files, and every refusal by name."""

import dataclasses
import json
import math
import os

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from golden import checkpoint as ck
from golden.checkpoint import CheckpointError, load_checkpoint, load_preset_model, save_checkpoint, snap
from golden.config import ConfigError, load_preset
from golden.data import TOKENIZER_PATH
from golden.fixed.numbers import RATE
from golden.fixed.weights import chip_weights
from golden.model import build_model

MOE = "model.layers.1.block_sparse_moe"
KDA = "model.layers.0.self_attn"


def shaken(cfg, seed=3):
    """Random parameters with no vector at its start value."""
    state = build_model(cfg, seed=seed).state_dict()
    gen = torch.Generator().manual_seed(seed)
    return {
        k: v if ck.is_matrix(k, v.shape) else v + 0.3 * torch.randn(v.shape, generator=gen) for k, v in state.items()
    }


@pytest.fixture
def micro():
    cfg = load_preset("micro-k3")[0]
    return cfg, shaken(cfg)


@pytest.fixture
def folder(micro, tmp_path):
    """A written checkpoint of micro-k3."""
    save_checkpoint(tmp_path / "ck", *micro, TOKENIZER_PATH)
    return tmp_path / "ck"


def change_weights(folder, change):
    """Rewrite model.safetensors through ``change(tensors)``."""
    tensors = load_file(folder / ck.WEIGHTS)
    change(tensors)
    save_file(tensors, folder / ck.WEIGHTS)


def change_config(folder, change):
    data = json.loads((folder / ck.CONFIG).read_text())
    change(data)
    (folder / ck.CONFIG).write_text(json.dumps(data))


# ---------------------------------------------------------------- round trip


def test_round_trip_gives_the_snapped_parameters(micro, folder):
    cfg, state = micro
    got_cfg, got = load_checkpoint(folder)
    assert got_cfg == cfg
    want = snap(cfg, state)
    assert set(got) == set(want)
    assert all(torch.equal(got[k], want[k]) for k in want)
    build_model(got_cfg, got)


def test_snapping_and_writing_again_change_nothing(folder, tmp_path):
    cfg, state = load_checkpoint(folder)
    again = snap(cfg, state)
    assert all(torch.equal(state[k], again[k]) for k in state)
    save_checkpoint(tmp_path / "second", cfg, state, folder / ck.TOKENIZER)
    for file in (ck.CONFIG, ck.WEIGHTS, ck.TOKENIZER):
        assert (tmp_path / "second" / file).read_bytes() == (folder / file).read_bytes()


def test_the_twin_holds_the_same_parameters_exactly(folder):
    """No vector of a loaded checkpoint is rounded on its way into the chip (mix vectors are products: model only)."""
    cfg, state = load_checkpoint(folder)
    chip = chip_weights(cfg, state)
    np.testing.assert_array_equal(chip.final_norm / 4096, state["model.norm.weight"].numpy())
    for layer, weights in enumerate(chip.layers[:3]):
        at = f"model.layers.{layer}.self_attn"
        np.testing.assert_array_equal(weights.attn.dt_bias / 2048, state[f"{at}.dt_bias"].numpy())
        for n in "qkv":
            np.testing.assert_array_equal(weights.attn.taps[n] / 4096, state[f"{at}.{n}_conv1d.weight"][:, 0].numpy())
        rate = np.exp(state[f"{at}.A_log"].double().numpy()) / RATE.ulp
        np.testing.assert_allclose(weights.attn.rate[::32], rate, rtol=1e-6)
        assert (np.abs(rate - weights.attn.rate[::32]) < 0.05).all()
    np.testing.assert_array_equal(chip.layers[1].ffn.bias / 16384, state[f"{MOE}.gate.e_score_correction_bias"].numpy())


def test_released_names_shapes_and_types(folder):
    tensors = load_file(folder / ck.WEIGHTS)
    want = {
        f"{MOE}.experts.3.w2.weight_packed": ((32, 16), torch.uint8),
        f"{MOE}.experts.3.w2.weight_scale": ((32, 1), torch.uint8),
        f"{MOE}.gate.weight": ((4, 32), torch.bfloat16),
        f"{MOE}.gate.e_score_correction_bias": ((4,), torch.float32),
        f"{MOE}.routed_expert_norm.weight": ((32,), torch.bfloat16),
        f"{KDA}.A_log": ((32,), torch.float32),
        f"{KDA}.dt_bias": ((32,), torch.float32),
        f"{KDA}.q_conv1d.weight": ((32, 1, 4), torch.float32),
        f"{KDA}.o_norm.weight": ((32,), torch.float32),
        f"{KDA}.q_proj.weight": ((32, 32), torch.bfloat16),
        "model.layers.0.self_attention_res_proj.weight": ((1, 32), torch.bfloat16),
        "model.layers.3.self_attn.kv_a_proj_with_mqa.weight": ((48, 32), torch.bfloat16),
        "model.layers.0.input_layernorm.weight": ((32,), torch.bfloat16),
    }
    assert {k: (tuple(tensors[k].shape), tensors[k].dtype) for k in want} == want
    assert not any(".experts." in k and k.endswith(".weight") for k in tensors)
    assert tensors[f"{KDA}.A_log"][1:].eq(0).all() and tensors[f"{KDA}.A_log"][0] != 0


def test_packed_bytes_are_decoded_as_ml_dtypes_does(folder):
    """Low nibble = even column; an independent decoder gives the loaded values."""
    tensors = load_file(folder / ck.WEIGHTS)
    name = f"{MOE}.experts.2.w1.weight"
    packed, scale = tensors[f"{name}_packed"].numpy(), tensors[f"{name}_scale"].numpy()
    values = np.empty((32, 32))
    values[:, 0::2] = (packed & 15).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    values[:, 1::2] = (packed >> 4).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    values *= scale.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    np.testing.assert_array_equal(load_checkpoint(folder)[1][name].numpy(), values)


def test_config_uses_k3s_keys(folder):
    data = json.loads((folder / ck.CONFIG).read_text())
    assert data["linear_attn_config"]["kda_layers"] == [1, 2, 3]
    assert data["linear_attn_config"]["full_attn_layers"] == [4, 5]
    assert data["linear_attn_config"]["num_heads"] == 1 and data["linear_attn_config"]["gate_lower_bound"] == -5.0
    assert data["hidden_act"] == "situ" and data["max_position_embeddings"] == 64
    assert data["quantization_config"]["format"] == "mxfp4-pack-quantized"
    assert set(data["nanok3"]) == {"name", "mla_norm_eps", "l2_norm_eps"}


# ---------------------------------------------------------------- files that others wrote


def foreign(tmp_path):
    """A checkpoint of other dimensions, written by hand: wrapper config, prefix, vision tower, two shards."""
    d, heads, dim, rank, latent, width, experts, vocab = 96, 3, 16, 24, 32, 64, 5, 50
    rng = np.random.default_rng(0)

    def bf16(*shape):
        return torch.from_numpy(rng.normal(size=shape) * 0.2).bfloat16()

    t = {
        "model.embed_tokens.weight": bf16(vocab, d), "lm_head.weight": bf16(vocab, d), "model.norm.weight": bf16(d),
        "model.output_attn_res_norm.weight": bf16(d), "model.output_attn_res_proj.weight": bf16(1, d),
    }  # fmt: skip
    for layer in range(2):
        at = f"model.layers.{layer}"
        for n in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm", "mlp_res_norm"):
            t[f"{at}.{n}.weight"] = bf16(d)
        for n in ("self_attention_res_proj", "mlp_res_proj"):
            t[f"{at}.{n}.weight"] = bf16(1, d)
    at = "model.layers.0.self_attn"
    for n in "qkv":
        t[f"{at}.{n}_proj.weight"], t[f"{at}.{n}_conv1d.weight"] = bf16(heads * dim, d), bf16(heads * dim, 1, 3).float()
    shapes = {"b": (heads, d), "f_a": (dim, d), "f_b": (heads * dim, dim), "g": (heads * dim, d), "o": (d, heads * dim)}
    t |= {f"{at}.{n}_proj.weight": bf16(*shape) for n, shape in shapes.items()}
    t[f"{at}.A_log"] = torch.tensor([0.5, -1.0, 2.0] + [0.0] * (dim - heads))
    t[f"{at}.dt_bias"], t[f"{at}.o_norm.weight"] = bf16(heads * dim).float(), bf16(dim).float()
    for n in ("gate", "up"):
        t[f"model.layers.0.mlp.{n}_proj.weight"] = bf16(40, d)
    t["model.layers.0.mlp.down_proj.weight"] = bf16(d, 40)
    at = "model.layers.1.self_attn"
    shapes = {
        "q_a_proj": (rank, d), "q_b_proj": (2 * (20 + 8), rank), "kv_a_proj_with_mqa": (12 + 8, d),
        "kv_b_proj": (2 * (20 + 10), 12), "g_proj": (2 * 10, d), "o_proj": (d, 2 * 10),
        "q_a_layernorm": (rank,), "kv_a_layernorm": (12,),
    }  # fmt: skip
    t |= {f"{at}.{n}.weight": bf16(*shape) for n, shape in shapes.items()}
    at = MOE
    t |= {f"{at}.gate.weight": bf16(experts, d), f"{at}.gate.e_score_correction_bias": bf16(experts).float()}
    t |= {
        f"{at}.routed_expert_down_proj.weight": bf16(latent, d),
        f"{at}.routed_expert_up_proj.weight": bf16(d, latent),
    }
    t[f"{at}.routed_expert_norm.weight"] = bf16(latent)
    t |= {f"{at}.shared_experts.{n}_proj.weight": bf16(2 * width, d) for n in ("gate", "up")}
    t[f"{at}.shared_experts.down_proj.weight"] = bf16(d, 2 * width)
    for e in range(experts):
        for w, (rows, columns) in {"w1": (width, latent), "w3": (width, latent), "w2": (latent, width)}.items():
            codes = rng.integers(0, 256, (rows, columns // 2), dtype=np.uint8)
            t[f"{at}.experts.{e}.{w}.weight_packed"] = torch.from_numpy(codes)
            scales = rng.integers(120, 126, (rows, columns // 32), dtype=np.uint8)
            t[f"{at}.experts.{e}.{w}.weight_scale"] = torch.from_numpy(scales)
    t = {f"language_model.{k}": v.contiguous() for k, v in t.items()}
    t["vision_tower.blocks.0.weight"], t["mm_projector.proj.weight"] = bf16(3, 3), bf16(2, 2)
    text = {
        "model_type": "kimi_linear", "vocab_size": vocab, "hidden_size": d, "num_hidden_layers": 2,
        "linear_attn_config": {
            "kda_layers": [1], "full_attn_layers": [2], "num_heads": heads, "head_dim": dim,
            "short_conv_kernel_size": 3, "gate_lower_bound": -5.0, "use_full_rank_gate": True,
        },
        "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": rank, "kv_lora_rank": 12,
        "qk_nope_head_dim": 20, "qk_rope_head_dim": 8, "v_head_dim": 10, "mla_use_nope": True,
        "mla_use_output_gate": True, "intermediate_size": 40, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "num_experts": experts, "num_experts_per_token": 3, "num_shared_experts": 2, "moe_intermediate_size": width,
        "routed_expert_hidden_size": latent, "latent_moe_use_norm": True, "moe_renormalize": True,
        "routed_scaling_factor": 1.5, "moe_router_activation_func": "sigmoid", "attn_res_block_size": 1,
        "hidden_act": "situ", "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096, "tie_word_embeddings": False,
    }  # fmt: skip
    folder = tmp_path / "foreign"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "kimi_k3", "text_config": text, "vision_config": {}}))
    names = sorted(t)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({n: t[n] for n in part}, folder / file)
    weight_map = {n: file for file, part in shards.items() for n in part}
    (folder / ck.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder, t


def test_a_checkpoint_of_other_dimensions_loads_and_runs(tmp_path):
    folder, t = foreign(tmp_path)
    cfg, state = load_checkpoint(folder)
    assert (cfg.name, cfg.hidden_size, cfg.kda_num_heads, cfg.short_conv_kernel_size) == ("foreign", 96, 3, 3)
    assert (cfg.num_experts_per_token, cfg.routed_scaling_factor, cfg.max_positions) == (3, 1.5, 4096)
    assert state[f"{KDA}.A_log"].tolist() == [0.5, -1.0, 2.0]
    for name in ("lm_head.weight", f"{KDA}.q_conv1d.weight", "model.layers.1.self_attn.kv_b_proj.weight"):
        assert torch.equal(state[name], t[f"language_model.{name}"].float())
    name = f"{MOE}.experts.4.w2.weight"
    code = int(t[f"language_model.{name}_packed"][7, 20]) >> 4  # column 41 is a high nibble, in the second block
    scale = int(t[f"language_model.{name}_scale"][7, 1])
    value = [0, 0.5, 1, 1.5, 2, 3, 4, 6][code & 7] * (-1 if code & 8 else 1) * 2.0 ** (scale - 127)
    assert state[name][7, 41].item() == value
    model = build_model(cfg, state, dtype=torch.float64)
    with torch.no_grad():
        logits = model(torch.tensor([[1, 7, 49]]))
    assert logits.shape == (1, 3, 50) and logits.isfinite().all()
    loaded = load_preset_model(None, folder)
    assert loaded.cfg == cfg and loaded.hardware == {} and loaded.tokenizer is None


# ---------------------------------------------------------------- refusals


def refuse(folder, pattern):
    with pytest.raises(CheckpointError, match=pattern) as caught:
        load_checkpoint(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["lm_head.weight", f"{KDA}.dt_bias", f"{MOE}.experts.0.w3.weight_packed", f"{MOE}.experts.0.w3.weight_scale",
     f"{MOE}.gate.e_score_correction_bias", "model.layers.0.self_attention_res_proj.weight"],
)  # fmt: skip
def test_a_missing_tensor_is_refused_by_name(folder, name):
    change_weights(folder, lambda t: t.pop(name))
    refuse(folder, f"tensor {name} is missing")


@pytest.mark.parametrize("name", ["model.layers.9.input_layernorm.weight", f"{MOE}.experts.0.w1.weight", "visual.x"])
def test_an_extra_tensor_is_refused_by_name(folder, name):
    change_weights(folder, lambda t: t.update({name: torch.zeros(32, 32)}))
    refuse(folder, f"tensor {name} is not part of the model")


@pytest.mark.parametrize(
    ("name", "shape"),
    [("model.norm.weight", (31,)), ("lm_head.weight", (32, 512)), (f"{MOE}.experts.1.w2.weight_scale", (32, 2)),
     (f"{KDA}.A_log", (33,)), (f"{KDA}.q_conv1d.weight", (32, 4))],
)  # fmt: skip
def test_a_mis_shaped_tensor_is_refused_by_name(folder, name, shape):
    change_weights(folder, lambda t: t.update({name: torch.zeros(shape, dtype=t[name].dtype)}))
    refuse(folder, rf"tensor {name} has shape \({', '.join(map(str, shape))},?\)")


def test_wrong_types_are_refused(folder):
    name = f"{MOE}.experts.1.w2.weight_scale"
    change_weights(folder, lambda t: t.update({name: t[name].to(torch.int32)}))
    refuse(folder, f"tensor {name} has type I32, not U8")


def test_a_log_tail_must_be_zero(folder):
    def change(t):
        t[f"{KDA}.A_log"][5] = 1e-3

    change_weights(folder, change)
    refuse(folder, f"{KDA}.A_log must be zero beyond its first 1 values")


def test_nan_scale_and_nan_values_are_refused(folder):
    name = f"{MOE}.experts.2.w1.weight_scale"
    kept = (folder / ck.WEIGHTS).read_bytes()
    change_weights(folder, lambda t: t[name].__setitem__((3, 0), 255))
    refuse(folder, f"{name} holds NaN")
    (folder / ck.WEIGHTS).write_bytes(kept)
    change_weights(folder, lambda t: t["model.norm.weight"].__setitem__(1, math.inf))
    refuse(folder, "model.norm.weight holds a value that is not finite")


def test_both_spellings_of_one_tensor_are_refused(folder):
    change_weights(folder, lambda t: t.update({"language_model.model.norm.weight": t["model.norm.weight"].clone()}))
    refuse(folder, "model.norm.weight is there twice")


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_truncated_file_is_refused(folder, keep):
    data = (folder / ck.WEIGHTS).read_bytes()
    (folder / ck.WEIGHTS).write_bytes(data[:keep])
    refuse(folder, r"model\.safetensors is not a whole safetensors file")


def test_missing_files_are_refused(folder, tmp_path):
    refuse(tmp_path / "nothing", "no such checkpoint folder")
    (folder / ck.WEIGHTS).unlink()
    refuse(folder, r"model\.safetensors is missing")
    (folder / ck.CONFIG).unlink()
    refuse(folder, r"ck has no config\.json: give the folder of a checkpoint")


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"text_config":' * 100_000])
@pytest.mark.parametrize("name", [ck.CONFIG, ck.INDEX])
def test_json_that_is_nested_too_deep_is_refused(folder, name, text):
    (folder / name).write_text(text)
    refuse(folder, rf"{name} is not (valid JSON|a checkpoint's: it is nested too deep)")


def test_shards_must_hold_what_the_index_lists(tmp_path):
    folder, _ = foreign(tmp_path)
    name = "language_model.model.norm.weight"
    shard = next(f for f in sorted(folder.glob("*.safetensors")) if name in load_file(f))
    tensors = load_file(shard)
    del tensors[name]
    save_file(tensors, shard)
    refuse(folder, f"tensor {name} is missing, though")
    shard.unlink()
    refuse(folder, f"{shard.name} is missing")
    (folder / ck.INDEX).write_text(json.dumps({"weight_map": {"x": "../elsewhere.safetensors"}}))
    refuse(folder, "weight_map")


@pytest.mark.parametrize("key", sorted(ck.KEYS.values()))
def test_a_missing_config_key_is_refused_by_name(folder, key):
    def change(data):
        *sections, leaf = key.split(".")
        for section in sections:
            data = data[section]
        del data[leaf]

    change_config(folder, change)
    refuse(folder, rf"config\.json: key '{key}' is missing")


@pytest.mark.parametrize(
    ("key", "value", "pattern"),
    [("hidden_size", "64", "hidden_size"), ("hidden_size", 0, "hidden_size must be 1 or more"),
     ("hidden_act", "gelu", "hidden_act must be situ or silu"), ("mla_use_nope", False, "mla_use_nope must be true"),
     ("num_expert_group", 4, "num_expert_group must be 1"), ("moe_intermediate_size", 48, "multiple of 32"),
     ("num_hidden_layers", 6, "must name each of the 6 layers"), ("num_experts_per_token", 9, "must be 1..4"),
     ("num_hidden_layers", 10**9, "num_hidden_layers must be at most 1024"), ("rms_norm_eps", math.nan, "finite"),
     ("num_key_value_heads", 7, "num_key_value_heads"), ("nanok3", {"other": 1}, "may hold only")],
)  # fmt: skip
def test_config_values_that_cannot_be_computed_are_refused(folder, key, value, pattern):
    change_config(folder, lambda data: data.update({key: value}))
    refuse(folder, pattern)


def test_config_that_is_not_json_is_refused(folder):
    (folder / ck.CONFIG).write_text("{")
    refuse(folder, r"config\.json is not valid JSON")
    (folder / ck.CONFIG).write_text("[1]")
    refuse(folder, "not a JSON object")


def test_writing_refuses_and_leaves_nothing_behind(micro, tmp_path):
    cfg, state = micro
    other = tmp_path / "mine"
    other.mkdir()
    (other / "notes.txt").write_text("keep me")
    with pytest.raises(ConfigError, match=r"holds notes\.txt"):
        save_checkpoint(other, cfg, state)
    with pytest.raises(CheckpointError, match="lm_head.weight holds a value that is not finite"):
        save_checkpoint(tmp_path / "new", cfg, state | {"lm_head.weight": state["lm_head.weight"] * math.nan})
    with pytest.raises(CheckpointError, match="tensor lm_head.weight is missing"):
        save_checkpoint(tmp_path / "new", cfg, {k: v for k, v in state.items() if k != "lm_head.weight"})
    with pytest.raises(ConfigError, match="model.norm.weight: 100 does not fit"):
        save_checkpoint(tmp_path / "new", cfg, state | {"model.norm.weight": torch.full((32,), 100.0)})
    with pytest.raises(CheckpointError, match="no place in the K3 layout"):
        save_checkpoint(tmp_path / "new", load_preset("nano-kpu")[0], {})
    with pytest.raises(CheckpointError, match=r"cannot read .*none\.json"):
        save_checkpoint(tmp_path / "new", cfg, state, tmp_path / "none.json")
    assert [p.name for p in tmp_path.iterdir()] == ["mine"] and [p.name for p in other.iterdir()] == ["notes.txt"]


def test_an_interrupted_write_leaves_the_old_checkpoint(micro, folder, monkeypatch):
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    cfg, state = micro
    replace = os.replace

    def fail(source, target):
        if str(target) == str(folder) and ".ck." in str(source) and not str(source).endswith("old"):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(folder, cfg, {k: v * 2 for k, v in state.items()})
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


# ---------------------------------------------------------------- presets with their weights


def test_a_preset_without_a_checkpoint_says_that_its_weights_are_random():
    loaded = load_preset_model("micro-k3")
    assert loaded.source.startswith("seeded random weights (seed 0)") and "micro-k3 has no checkpoint" in loaded.source
    assert loaded.hardware["array_rows"] == 16 and loaded.tokenizer is not None
    again = snap(loaded.cfg, loaded.state)
    assert all(torch.equal(loaded.state[k], again[k]) for k in again)
    assert "seeded random" in load_preset_model("nano-kpu").source


def test_a_checkpoint_must_be_of_the_preset(folder):
    assert load_preset_model("micro-k3", folder).source == "checkpoint ck"
    with pytest.raises(CheckpointError, match=r"not a checkpoint of preset nano-k3: hidden_size is 32|vocab"):
        load_preset_model("nano-k3", folder)
    with pytest.raises(CheckpointError, match="give a preset"):
        load_preset_model()


def test_a_committed_checkpoint_is_used_only_for_its_own_model(micro, tmp_path, monkeypatch):
    cfg, state = micro
    monkeypatch.setattr(ck, "CHECKPOINTS", tmp_path)
    save_checkpoint(tmp_path / "micro-k3", cfg, state)
    assert load_preset_model("micro-k3").source == "checkpoint micro-k3"
    other = dataclasses.replace(cfg, num_experts=8)
    monkeypatch.setattr(ck, "load_preset", lambda name: (other, {}))
    assert "another model: num_experts is 4, not 8" in load_preset_model("micro-k3").source


def test_trainer_files_are_exported(micro, tmp_path):
    cfg, state = micro
    save_file({k: v.contiguous() for k, v in state.items()}, tmp_path / "final.safetensors")
    ck.export(tmp_path / "final.safetensors", tmp_path / "out", "micro-k3", TOKENIZER_PATH)
    got = load_checkpoint(tmp_path / "out")[1]
    assert all(torch.equal(got[k], v) for k, v in snap(cfg, state).items())
    with pytest.raises(CheckpointError, match="has shape"):
        ck.export(tmp_path / "final.safetensors", tmp_path / "out2", "nano-k3")
    with pytest.raises(CheckpointError, match="cannot read"):
        ck.export(TOKENIZER_PATH, tmp_path / "out2", "nano-k3")
