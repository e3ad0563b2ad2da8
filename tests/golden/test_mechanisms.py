"""Each mechanism against hand-made values in float64, and the ways people get it wrong."""

import math

import numpy as np
import pytest
import torch

from golden import attn_res, formats, kda, mla, moe, norm, situ
from golden.config import ConfigError, load_preset, model_from_dict
from golden.numerics import Numerics
from tests import cases

F64 = torch.float64
TIGHT = dict(rtol=1e-12, atol=1e-12)


def t(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def close(a, b):
    torch.testing.assert_close(torch.as_tensor(a, dtype=F64), torch.as_tensor(b, dtype=F64), **TIGHT)


# ---------------------------------------------------------------- KDA


@pytest.mark.parametrize("case", cases.KDA_ALPHA)
def test_kda_alpha_cases(case):
    g = kda.log_decay(t([case.f]), t(float(case.a_log)), t([0.0]), -5.0)
    close(torch.exp(g)[0, 0], case.alpha)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_huge_a_log_gives_no_nan(dtype):
    """exp(A_log) overflows float32: with f + dt_bias = 0 that would be inf * 0."""
    f = torch.tensor([[-3.0, 0.0, 1e-30, 5.0]], dtype=dtype, requires_grad=True)
    g = kda.log_decay(f, torch.tensor([1e4], dtype=dtype), torch.zeros(1, 4, dtype=dtype), -5.0)
    assert g.isfinite().all() and g[0, 1] == -2.5
    g.sum().backward()
    assert f.grad.isfinite().all()


def test_kda_gate_is_not_the_softplus_form():
    """Kimi-Linear's -exp(A_log) softplus(f) is unbounded below; K3's never passes -5."""
    g = kda.log_decay(t([50.0]), t(0.0), t([0.0]), -5.0)
    assert g.item() == pytest.approx(-5.0, abs=1e-12)


def test_kda_step_cases():
    state = torch.zeros(2, 2, dtype=F64)
    for case in cases.KDA_STEPS:
        q, k, v, alpha = (t(*values) for values in (case.q, case.k, case.v, case.alpha))
        state, out = kda.kda_step(state, q, k, v, alpha, t(case.beta)[0])
        close(state, case.state)
        close(out, case.out)


def test_kda_delta_rule_stores_what_it_was_told():
    """With beta 1 and no decay, reading with the key just written returns its value exactly."""
    gen = torch.Generator().manual_seed(0)
    state = torch.randn(4, 3, generator=gen, dtype=F64)
    k = torch.nn.functional.normalize(torch.randn(4, generator=gen, dtype=F64), dim=0)
    v = torch.randn(3, generator=gen, dtype=F64)
    close(kda.kda_step(state, k, k, v, torch.ones(4, dtype=F64), t(1.0)[0])[1], v)


@pytest.mark.parametrize("decay", ["mixed", "strongest", "none"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-10), (torch.float32, 2e-4)])
def test_chunked_equals_recurrent(decay, dtype, tolerance):
    gen = torch.Generator().manual_seed(5)
    n, steps, dk, dv = 3, 64, 32, 8
    q, k = (norm.l2_normalise(torch.randn(n, steps, dk, generator=gen, dtype=F64), 1e-6) for _ in range(2))
    v = torch.randn(n, steps, dv, generator=gen, dtype=F64)
    beta = torch.rand(n, steps, generator=gen, dtype=F64)
    g = -5 * torch.rand(n, steps, dk, generator=gen, dtype=F64)
    g = {"mixed": g, "strongest": torch.full_like(g, -5.0), "none": torch.zeros_like(g)}[decay]
    state, want = torch.zeros(n, dk, dv, dtype=F64), []
    for i in range(steps):
        state, o = kda.kda_step(state, q[:, i], k[:, i], v[:, i], torch.exp(g[:, i]), beta[:, i])
        want.append(o)
    got = kda.kda_chunked(*(x.to(dtype) for x in (q, k, v, g, beta)))
    torch.testing.assert_close(got.double(), torch.stack(want, 1), rtol=0, atol=tolerance)


def test_chunked_gradients_are_finite_at_the_strongest_decay():
    args = [torch.full((1, 32, 32), 0.1, requires_grad=True) for _ in range(3)]
    g = torch.full((1, 32, 32), -5.0, requires_grad=True)
    beta = torch.full((1, 32), 0.5, requires_grad=True)
    kda.kda_chunked(*args, g, beta).square().sum().backward()
    assert all(x.grad.isfinite().all() for x in (*args, g, beta))


def test_convolution_newest_tap_is_the_last_weight():
    weight = torch.zeros(1, 4, dtype=F64)
    weight[0] = t(1000.0, 100.0, 10.0, 1.0)
    x = t(1.0, 2.0, 3.0, 4.0, 5.0).view(1, 5, 1)
    raw = t(1.0, 12.0, 123.0, 1234.0, 2345.0)
    close(kda.causal_conv_silu(x, weight).flatten(), torch.nn.functional.silu(raw))
    conv = kda.ShortConv(1, 4).double()
    conv.weight.data[0, 0] = weight[0]
    past, outs = torch.zeros(1, 3, 1, dtype=F64), []
    for i in range(5):
        y, past = conv.step(x[:, i], past)
        outs.append(y)
    close(torch.cat(outs).flatten(), torch.nn.functional.silu(raw))


# ---------------------------------------------------------------- norms, activations, residual mix


def test_l2_norm_has_eps_inside_the_root():
    close(norm.l2_normalise(t(0.0, 0.0), 1e-6), [0.0, 0.0])
    close(norm.l2_normalise(t(1e-3, 0.0), 1e-6), [math.sqrt(0.5), 0.0])


def test_norm_offset_means_one_plus_weight():
    """nano-kpu: x = [3, 4, 0, 0] has mean square 6.25; a stored weight of -0.5 halves the result."""
    plain, offset = norm.RmsNorm(4, 0.0).double(), norm.RmsNorm(4, 0.0, offset=True).double()
    x = t(3.0, 4.0, 0.0, 0.0)
    close(plain(x), [1.2, 1.6, 0.0, 0.0])
    close(offset(x), [1.2, 1.6, 0.0, 0.0])
    plain.weight.data.fill_(-0.5)
    offset.weight.data.fill_(-0.5)
    close(plain(x), [-0.6, -0.8, 0.0, 0.0])
    close(offset(x), [0.6, 0.8, 0.0, 0.0])


@pytest.mark.parametrize("case", cases.SITU_GLU)
def test_situ_glu_cases(case):
    close(situ.situ_glu(t(case.g), t(case.u))[0], case.y)


def test_activation_follows_the_preset():
    """silu(1) * 100 = 73.1058578630...; SiTU bounds the up branch at 25."""
    k3, kpu = load_preset("nano-k3")[0], load_preset("nano-kpu")[0]
    close(situ.gated_activation(kpu, t(1.0), t(100.0))[0], 100 / (1 + math.exp(-1)))
    want = 4 * math.tanh(0.25) / (1 + math.exp(-1)) * 25 * math.tanh(4.0)
    close(situ.gated_activation(k3, t(1.0), t(100.0))[0], want)


def test_attention_residual_case():
    case = cases.RESIDUAL_MIX
    candidates, projection = [t(*v) for v in case.candidates], t(*case.projection)
    ones = torch.ones(len(case.projection), dtype=F64)
    scores = attn_res.mix_scores(candidates, ones, projection, case.eps)
    close(scores, case.scores)
    close(torch.softmax(scores, -1), case.weights)
    close(attn_res.mix(candidates, ones, projection, case.eps), case.out)


def test_attention_residual_of_one_candidate_is_that_candidate():
    v = torch.randn(3, 8, dtype=F64) * 50
    close(attn_res.mix([v], torch.ones(8, dtype=F64), torch.ones(8, dtype=F64), 1e-5), v)


# ---------------------------------------------------------------- router and experts


@pytest.mark.parametrize("case", cases.ROUTER)
def test_router_cases(case):
    picked, got, _ = moe.route(t(*case.logits), t(*case.bias), cases.ROUTER_TOP_K, case.scale)
    order = picked.argsort()  # the cases list experts by index
    assert picked[order].tolist() == case.experts
    close(got[order], case.weights)


@pytest.mark.parametrize("count", [2, 3, 16])
def test_router_ties_go_to_the_lowest_index_without_repeats(count):
    picked = moe.pick_experts(torch.zeros(500, count), 2)
    assert picked.tolist() == [[0, 1]] * 500
    biased = torch.zeros(count)
    biased[-1] = 1.0
    assert moe.pick_experts(biased, 2).tolist() == [count - 1, 0]


def test_router_never_picks_an_expert_twice_however_low_the_rest():
    assert sorted(moe.pick_experts(t(1.0, -1e300, -1e308), 3).tolist()) == [0, 1, 2]


def test_routed_scaling_factor_of_the_peer():
    """Equal scores: 2.828 shared by two."""
    cfg = load_preset("nano-kpu")[0]
    _, weights, _ = moe.route(torch.zeros(8, dtype=F64), torch.zeros(8, dtype=F64), 2, cfg.routed_scaling_factor)
    close(weights, [1.414, 1.414])


def test_grouped_experts_equal_the_naive_loop_and_its_gradients():
    cfg = load_preset("nano-k3")[0]
    module = moe.LatentMoe(cfg).double()
    gen = torch.Generator().manual_seed(2)
    for p in module.parameters():
        p.data = torch.randn(p.shape, generator=gen, dtype=F64) * 0.3
    x = torch.randn(37, cfg.hidden_size, generator=gen, dtype=F64, requires_grad=True)
    grads, outs = [], []
    for naive in (False, True):
        out = module(x, Numerics(), "layer.1", naive=naive)
        grads.append(torch.autograd.grad(out.square().sum(), [x, *module.parameters()]))
        outs.append(out)
    close(outs[0], outs[1])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_quantile_balancing_evens_the_load():
    gen = torch.Generator().manual_seed(3)
    scores = torch.sigmoid(torch.randn(4000, 8, generator=gen) + torch.linspace(-2, 2, 8))
    bias = torch.zeros(8)
    for _ in range(200):
        bias = moe.quantile_bias(scores, bias, 2, 0.2)
    load = torch.bincount(moe.pick_experts(scores + bias, 2).flatten(), minlength=8) / 1000
    assert load.max() < 1.1 and load.min() > 0.9
    assert abs(bias.mean()) < 1e-6


# ---------------------------------------------------------------- MLA


def small_mla(name: str = "micro-k3") -> mla.MultiHeadLatentAttention:
    cfg = load_preset(name)[0]
    module = mla.MultiHeadLatentAttention(cfg).double()
    gen = torch.Generator().manual_seed(4)
    for n, p in module.named_parameters():
        if "norm" not in n:
            p.data = torch.randn(p.shape, generator=gen, dtype=F64) * 0.2
    return module


@pytest.mark.parametrize("quantise", [False, True])
def test_constant_keys_and_values_give_the_same_output_at_any_length(quantise):
    """The same input at 1 and at 64 positions: the softmax average of equal values is that value."""
    module, num = small_mla(), Numerics(quantise)
    x = num.act(torch.randn(1, 32, generator=torch.Generator().manual_seed(6), dtype=F64))
    state, first = module.init_state(1, F64), None
    with torch.no_grad():
        for _ in range(64):
            out, state = module.step(x, state, num, "layer.3")
            first = out if first is None else first
    torch.testing.assert_close(out, first, rtol=0, atol=1e-12)


def test_row_exponents_undo_w_kvb_scales():
    """Moving 2^e into q must leave E2M1 elements times one power of two per head."""
    module, num = small_mla(), Numerics(True)
    module.kv_b_proj.weight.data[:32] *= torch.exp2(torch.arange(32.0, dtype=F64) - 16).unsqueeze(1)
    w_k, _ = module.kv_b(num)
    factor = module.row_exponents()
    assert factor.max() == 1 and (torch.frexp(factor)[0] == 0.5).all()
    elements = w_k / factor.unsqueeze(-1)
    top = torch.exp2(torch.floor(torch.log2(elements.abs().max())) - 2)
    assert set((elements.abs() / top).unique().tolist()) <= {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0}


def test_quantised_absorbed_query_from_stored_codes():
    """The hardware's order, from the checkpoint's codes: row scales into q, MXFP8, elements, one common scale."""
    module, num = small_mla(), Numerics(True)
    rows = module.kv_b_proj.weight.detach().numpy()[:32]
    codes, scales = formats.mx_encode(rows, formats.E2M1)
    elements, exponent = formats.decode_element(codes, formats.E2M1), scales[:, 0].astype(int) - 127
    q = torch.randn(1, 1, 32, generator=torch.Generator().manual_seed(8), dtype=F64)
    qs = q[0, 0].numpy() * np.exp2(exponent - exponent.max())
    qs = formats.mx_decode(*formats.mx_encode(qs, formats.E4M3), formats.E4M3)
    want = np.exp2(exponent.max()) * (qs @ elements)
    got = module.absorbed_query(q, module.kv_b(num)[0], num)
    close(got[0, 0].detach(), want)


def test_unquantised_absorbed_query_is_the_plain_product():
    module, num = small_mla(), Numerics()
    q = torch.randn(3, 1, 32, generator=torch.Generator().manual_seed(8), dtype=F64)
    close(module.absorbed_query(q, module.kv_b(num)[0], num).detach(), (q @ module.kv_b_proj.weight[:32]).detach())


def test_ungated_mla_ignores_the_gate_and_direct_q_has_no_norm():
    module = small_mla("nano-kpu")
    names = {n.split(".")[0] for n, _ in module.named_parameters()}
    assert names == {"q_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj"}


def test_quantised_mla_refuses_other_latent_widths():
    cfg = load_preset("micro-k3")[0].to_dict()
    cfg.pop("name")
    cfg |= {"kv_lora_rank": 64}
    module = mla.MultiHeadLatentAttention(model_from_dict(cfg, "wide")).double()
    x = torch.zeros(1, 32, dtype=F64)
    with pytest.raises(ConfigError, match="kv_lora_rank 32"):
        module.step(x, module.init_state(1, F64), Numerics(True), "layer.3")


# ---------------------------------------------------------------- the peer's low-rank gate


def test_low_rank_gate_of_the_peer():
    """g = W_gb (W_ga x): with W_ga = 2 * first input and W_gb = 3 everywhere, the gate is sigmoid(6 x_0)."""
    cfg = load_preset("nano-kpu")[0]
    module = kda.KimiDeltaAttention(cfg).double()
    for p in module.parameters():
        p.data.zero_()
    module.g_a_proj.weight.data[0, 0] = 2.0
    module.g_b_proj.weight.data[:, 0] = 3.0
    seen = {}
    num = Numerics(tap=lambda name, value: seen.__setitem__(name, value))
    x = torch.zeros(1, 64, dtype=F64)
    x[0, 0] = 0.25
    module.step(x, module.init_state(1, F64), num, "layer.0")
    close(seen["layer.0.gate"], torch.full((1, 64), 1 / (1 + math.exp(-1.5)), dtype=F64))
    close(seen["layer.0.alpha"], torch.full((1, 2, 32), math.exp(-2.5), dtype=F64))
