"""The whole model: both forms agree, causality, residual stream, names, quantisation points, taps."""

import numpy as np
import pytest
import torch

from golden.config import load_preset, preset_names
from golden.formats import E2M1, mx_round
from golden.model import Residual, build_model
from golden.taps import DENSE_INNER, GLOBAL, KDA_INNER, MLA_INNER, MOE_INNER, OUTER, Recorder, first_divergence

F64 = torch.float64


def tokens(batch: int, steps: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 512, (batch, steps), generator=torch.Generator().manual_seed(seed))


def shaken(name: str):
    """A random model whose biases, mixing and decay vectors are not at their start values either."""
    model = build_model(load_preset(name)[0], seed=3, dtype=F64)
    gen = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for key, p in model.state_dict().items():
            if p.ndim == 1 or "res_proj" in key:
                p += 0.3 * torch.randn(p.shape, generator=gen, dtype=F64)
    return model


@torch.no_grad()
def run_steps(model, ids, quantise=False):
    num, state, out = model.numerics(quantise), model.init_state(len(ids)), []
    for i in range(ids.shape[1]):
        logits, state = model.step(ids[:, i], state, num)
        out.append(logits)
    return torch.stack(out, 1)


@pytest.mark.parametrize("quantise", [False, True])
@pytest.mark.parametrize("name", preset_names())
def test_parallel_equals_recurrent(name, quantise):
    """Unquantised, this is also naive MLA against absorbed MLA."""
    model, ids = shaken(name), tokens(2, 37)
    with torch.no_grad():
        got = model(ids, model.numerics(quantise))
    want = run_steps(model, ids, quantise)
    gap = (got - want).abs()
    if quantise and model.cfg.weight_format == "mxfp4":
        assert gap.median() < 1e-10  # a rounding boundary may flip one element; most positions agree exactly
        assert gap.max() < 0.2
    else:
        assert gap.max() < 1e-10


@pytest.mark.parametrize("quantise", [False, True])
@pytest.mark.parametrize("name", ["micro-k3", "nano-kpu"])
def test_last_token_does_not_change_earlier_outputs(name, quantise):
    model, ids = build_model(load_preset(name)[0], seed=1), tokens(1, 33)
    other = ids.clone()
    other[0, -1] = (other[0, -1] + 7) % 512
    with torch.no_grad():
        a, b = model(ids, model.numerics(quantise)), model(other, model.numerics(quantise))
    assert torch.equal(a[:, :-1], b[:, :-1]) and not torch.equal(a[:, -1], b[:, -1])
    assert torch.equal(run_steps(model, ids)[:, :-1], run_steps(model, other)[:, :-1])


def test_state_is_carried_explicitly_and_not_changed():
    model = shaken("micro-k3")
    ids = tokens(1, 6)
    with torch.no_grad():
        state = model.init_state()
        for i in range(5):
            _, state = model.step(ids[:, i], state)
        kept = [{k: v.clone() for k, v in s.items()} for s in state]
        first, _ = model.step(ids[:, 5], state)
        again, _ = model.step(ids[:, 5], state)
    assert torch.equal(first, again)
    assert all(torch.equal(a[k], b[k]) for a, b in zip(state, kept, strict=True) for k in a)


def test_residual_stream_follows_the_pseudocode():
    """B = 2: snapshots at layers 0, 2, 4; the running sum restarts there; snapshots are raw and stay."""
    cfg = load_preset("nano-k3")[0]
    stream = Residual(cfg, torch.tensor([1.0]))
    snapshots = []
    for layer in range(5):
        stream.start_layer(layer)
        snapshots.append([b.item() for b in stream.blocks])
        stream.add(torch.tensor([10.0 ** (layer + 1)]))
        stream.add(torch.tensor([2 * 10.0 ** (layer + 1)]))
    assert snapshots == [[1.0], [1.0], [1.0, 330.0], [1.0, 330.0], [1.0, 330.0, 33000.0]]
    assert stream.prefix.item() == 300000.0


def test_first_layer_takes_the_embedding_itself():
    model, rec = shaken("micro-k3"), Recorder()
    with torch.no_grad():
        model.step(tokens(1, 1)[:, 0], model.init_state(), model.numerics(tap=rec))
    np.testing.assert_array_equal(rec.values["layer.0.attn_in"], rec.values["embedding"])
    np.testing.assert_array_equal(rec.values["layer.0.prefix_attn"], rec.values["layer.0.attn_out"])


def test_parameter_counts():
    count = {n: sum(p.numel() for p in build_model(load_preset(n)[0]).state_dict().values()) for n in preset_names()}
    # the released layout pads A_log from 2 heads to head_dim in each of the 3 KDA layers
    assert count["nano-k3"] + 3 * (32 - 2) == 476_544
    matrices = sum(
        p.numel()
        for k, p in build_model(load_preset("nano-k3")[0]).state_dict().items()
        if p.ndim == 2 and "res_proj" not in k
    )
    assert matrices == 471_424


def test_state_keys_are_the_released_names():
    keys = set(build_model(load_preset("nano-k3")[0]).state_dict())
    for key in (
        "model.embed_tokens.weight",
        "model.output_attn_res_norm.weight",
        "model.output_attn_res_proj.weight",
        "model.norm.weight",
        "lm_head.weight",
        "model.layers.4.self_attention_res_norm.weight",
        "model.layers.0.self_attention_res_proj.weight",
        "model.layers.3.mlp_res_proj.weight",
        "model.layers.0.self_attn.A_log",
        "model.layers.0.self_attn.dt_bias",
        "model.layers.0.self_attn.o_norm.weight",
        "model.layers.0.self_attn.q_conv1d.weight",
        "model.layers.2.self_attn.f_a_proj.weight",
        "model.layers.3.self_attn.kv_a_proj_with_mqa.weight",
        "model.layers.3.self_attn.q_a_layernorm.weight",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.1.block_sparse_moe.gate.weight",
        "model.layers.1.block_sparse_moe.gate.e_score_correction_bias",
        "model.layers.1.block_sparse_moe.routed_expert_norm.weight",
        "model.layers.1.block_sparse_moe.shared_experts.down_proj.weight",
        "model.layers.1.block_sparse_moe.experts.15.w3.weight",
    ):
        assert key in keys, key


def test_quantised_matrices_and_inputs_are_on_the_mx_grid():
    """Rounding already rounded weights changes nothing: the switch only puts values on the grid once."""
    model, ids = build_model(load_preset("micro-k3")[0], seed=2), tokens(1, 9)
    with torch.no_grad():
        before = model(ids, model.numerics(True))
        for key, p in model.named_parameters():
            if p.ndim == 2 and "res_proj" not in key:
                p.copy_(mx_round(p, E2M1))
        after = model(ids, model.numerics(True))
    assert torch.equal(before, after)


def test_gradients_reach_every_parameter_in_quantised_training():
    model = build_model(load_preset("micro-k3")[0], seed=2)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "res_proj" in key:  # zero at the start, which stops the gradient of their norms
                p.fill_(0.1)
    ids = tokens(8, 65)
    logits = model(ids[:, :-1], model.numerics(True))
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
    unused = {"model.layers.0.self_attention_res_norm.weight", "model.layers.0.self_attention_res_proj.weight"}
    for key, p in model.named_parameters():
        assert key in unused or (p.grad is not None and p.grad.isfinite().all() and p.grad.abs().sum() > 0), key


def test_seeds_repeat_and_differ():
    cfg = load_preset("micro-k3")[0]
    a, b, c = (build_model(cfg, seed=s).state_dict() for s in (5, 5, 6))
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert not torch.equal(a["lm_head.weight"], c["lm_head.weight"])


def record(model, ids, quantise):
    rec = Recorder()
    with torch.no_grad():
        model.step(ids, model.init_state(len(ids)), model.numerics(quantise, rec))
    return rec.values


def test_every_declared_tap_is_recorded():
    model = build_model(load_preset("micro-k3")[0], seed=2)
    values = record(model, tokens(1, 1)[:, 0], True)
    want = set(GLOBAL)
    for i in range(5):
        inner = KDA_INNER if model.cfg.is_kda(i) else MLA_INNER
        inner = inner + (DENSE_INNER if model.cfg.is_dense(i) else MOE_INNER)
        want |= {f"layer.{i}.{n}" for n in (*OUTER, *inner)}
    assert want == set(values)


def test_first_divergence_names_the_earliest_tap():
    model, ids = build_model(load_preset("micro-k3")[0], seed=2), tokens(1, 1)[:, 0]
    a = record(model, ids, True)
    assert first_divergence(a, record(model, ids, True)) is None
    with torch.no_grad():
        model.model.layers[2].self_attn.A_log += 1.0
    found = first_divergence(a, record(model, ids, True))
    assert found.name == "layer.2.alpha" and found.largest > 0
    b = dict(a)
    b["layer.1.mlp_norm"] = a["layer.1.mlp_norm"].copy()
    b["layer.1.mlp_norm"][0, 5] = np.nan
    found = first_divergence(a, b, tolerance=lambda name: 1e-3)
    assert (found.name, found.index) == ("layer.1.mlp_norm", (0, 5))


def test_divergence_refuses_what_cannot_be_compared():
    with pytest.raises(ValueError, match="share no tap"):
        first_divergence({"a": np.zeros(2)}, {"b": np.zeros(2)})
    with pytest.raises(ValueError, match="shapes"):
        first_divergence({"a": np.zeros(2)}, {"a": np.zeros(3)})
    rec = Recorder()
    rec("a", np.zeros(1))
    with pytest.raises(ValueError, match="twice"):
        rec("a", np.zeros(1))
