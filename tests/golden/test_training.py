"""Corpus, tokenizer, optimiser and evaluation: small, deterministic checks."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from golden import data, eval, train
from golden.config import load_preset
from golden.model import build_model

DOCUMENTS = [("a", "One.\n\nTwo  words."), ("b", "Two words.\n\nThree."), ("c", "One.")]


def test_repeated_paragraphs_are_dropped_across_documents():
    assert data.drop_repeated_paragraphs(DOCUMENTS) == [("a", "One.\n\nTwo  words."), ("b", "Three.")]


def test_docstrings_in_source_order():
    source = '"""M."""\nclass A:\n    """A."""\n    def f(self):\n        """F."""\nasync def g():\n    """G."""\n'
    assert data.docstrings(source) == ["M.", "A.", "F.", "G."]


def test_held_out_share_is_fixed_by_names():
    share = sum(data.is_held_out(f"file{i}.py") for i in range(5000)) / 5000
    assert 0.05 < share < 0.08


@pytest.fixture(scope="module")
def tokenizer():
    return data.load_tokenizer()


def test_tokenizer_has_512_tokens_and_every_byte(tokenizer):
    pieces = data.token_bytes(tokenizer)
    assert len(pieces) == 512 == len(set(pieces))
    assert {p for p in pieces if len(p) == 1} == {bytes([b]) for b in range(256)}


@pytest.mark.parametrize("text", ["def f(x):\n    return x\n", "", "é — 漢字 \U0001f600\t\x00", "  two  spaces "])
def test_tokens_stand_for_exactly_their_bytes(tokenizer, text):
    pieces = data.token_bytes(tokenizer)
    ids = data.encode(tokenizer, text.encode())
    assert b"".join(pieces[i] for i in ids) == text.encode()
    assert tokenizer.decode(ids.tolist()) == text


# ---------------------------------------------------------------- optimiser


def test_orthogonalise_makes_singular_values_near_one():
    g = torch.randn(3, 32, 64, generator=torch.Generator().manual_seed(0))
    for x in (train.orthogonalise(g), train.orthogonalise(g.mT)):
        values = torch.linalg.svdvals(x)
        assert values.min() > 0.3 and values.max() < 1.3


def test_attention_projections_are_cut_by_head():
    cfg = load_preset("nano-k3")[0]
    shapes = {k: tuple(v.shape) for k, v in build_model(cfg).state_dict().items()}
    want = {
        "model.layers.0.self_attn.q_proj.weight": (0, 2),
        "model.layers.0.self_attn.o_proj.weight": (1, 2),
        "model.layers.0.self_attn.f_b_proj.weight": (0, 2),
        "model.layers.0.self_attn.f_a_proj.weight": (0, 1),
        "model.layers.3.self_attn.kv_b_proj.weight": (0, 2),
        "model.layers.3.self_attn.q_a_proj.weight": (0, 1),
        "model.layers.1.block_sparse_moe.experts.0.w1.weight": (0, 1),
    }
    assert {k: train.head_slices(k, shapes[k], cfg) for k in want} == want


def test_a_head_does_not_influence_another_heads_update():
    cfg = load_preset("nano-k3")[0]
    name = "model.layers.0.self_attn.q_proj.weight"
    results = []
    for other in (1.0, 100.0):
        p = torch.nn.Parameter(torch.zeros(64, 64))
        grad = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
        grad[32:] *= other
        p.grad = grad
        train.Muon([(name, p)], cfg).step(0.1, 0.0)
        results.append(p.detach().clone())
    assert torch.equal(results[0][:32], results[1][:32])
    torch.testing.assert_close(results[0][32:], results[1][32:])  # scale does not matter either


def test_every_parameter_has_exactly_one_optimiser():
    model = build_model(load_preset("nano-k3")[0])
    muon, adam = train.split_parameters(model)
    ids = [id(p) for _, p in muon] + [id(p) for p in adam]
    assert len(ids) == len(set(ids)) == len(list(model.parameters()))
    assert not any("embed" in n or "lm_head" in n or "norm" in n for n, _ in muon)


def test_schedule_rises_stays_and_ends_at_zero():
    s = train.Settings(warmup=0.1, cooldown=0.5)
    assert [train.schedule(p, s) for p in (0.0, 0.05, 0.1, 0.5, 0.75, 1.0)] == [0.0, 0.5, 1.0, 1.0, 0.5, 0.0]


def test_interrupted_training_ends_with_the_same_weights(tmp_path):
    cfg = load_preset("micro-k3")[0]
    s = train.Settings(batch=2, window=32, float_share=0.5, settle=0.5)  # 6 steps and 3 of settling
    tokens = np.random.default_rng(0).integers(0, 512, 2000)

    def trainer(folder):
        folder.mkdir(exist_ok=True)
        return train.Trainer(cfg, s, tokens, 2.0, folder)

    assert trainer(tmp_path / "whole").run(None, 6)
    for stop in (3, 7):  # in the main part and while settling
        part = trainer(tmp_path / "parts")
        assert part.resume() == (stop > 3)

        def interrupted(batch, progress, part=part, stop=stop, update=part.update):
            if part.step == stop:
                raise KeyboardInterrupt
            return update(batch, progress)

        part.update = interrupted
        assert not part.run(None, 6)
    last = trainer(tmp_path / "parts")
    assert last.resume() and last.step == 7
    assert last.run(None, 6) and last.step == 9
    a, b = (load_file(str(tmp_path / n / "final.safetensors")) for n in ("whole", "parts"))
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    assert "interrupted at step 3" in (tmp_path / "parts" / "log.txt").read_text()


def test_resuming_with_other_settings_is_refused(tmp_path):
    cfg, tokens = load_preset("micro-k3")[0], np.zeros(100, dtype=np.int64)
    train.Trainer(cfg, train.Settings(), tokens, 2.0, tmp_path).save()
    with pytest.raises(SystemExit, match="other settings"):
        train.Trainer(cfg, train.Settings(seed=7), tokens, 2.0, tmp_path).resume()


def test_training_lowers_the_loss_of_a_pattern(tmp_path):
    s = train.Settings(batch=4, window=32, adam_rate=1e-2)
    trainer = train.Trainer(load_preset("micro-k3")[0], s, np.tile(np.arange(7), 300), 1.0, tmp_path)
    source = train.batches(trainer.tokens, s, 0)
    losses = [trainer.update(next(source), 0.1 + i / 60) for i in range(40)]
    assert losses[0] > 5.0 and losses[-1] < 1.0


# ---------------------------------------------------------------- settling


def test_progress_is_two_parts_in_steps_and_in_time(tmp_path):
    s = train.Settings(settle=0.25)
    trainer = train.Trainer(load_preset("micro-k3")[0], s, np.zeros(100, dtype=np.int64), 2.0, tmp_path)
    got = []
    for trainer.step in (0, 4, 8, 9, 10):
        got.append(trainer.progress(None, 8))
    assert got == [0.0, 0.5, 1.0, 1.5, 2.0]
    got = []
    for trainer.spent in (0.0, 120.0, 240.0, 270.0, 300.0):  # four minutes and one
        got.append(trainer.progress(5.0, None))
    assert got == [0.0, 0.5, 1.0, 1.5, 2.0]


def test_no_settling_ends_with_the_main_part(tmp_path):
    s = train.Settings(settle=0.0)
    trainer = train.Trainer(load_preset("micro-k3")[0], s, np.zeros(100, dtype=np.int64), 2.0, tmp_path)
    trainer.step, trainer.spent = 8, 60.0
    assert trainer.progress(None, 8) == trainer.progress(1.0, None) == 2.0


def test_settling_rate_rises_and_ends_at_zero():
    s = train.Settings(settle_rate=0.4)
    got = [train.settle_schedule(p, s) for p in (0.0, 0.025, 0.05, 0.525, 1.0)]
    assert got == pytest.approx([0.0, 0.2, 0.4, 0.2, 0.0])


def test_noise_is_seeded_and_as_wide_as_asked():
    x = torch.zeros(4, 64)
    a, b, c = (train.NoisyNumerics("mxfp4", 2.0**-4, seed).act(x) for seed in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)
    assert 0.4 * 2.0**-4 < a.abs().max() <= 2.0**-5
    quiet = train.NoisyNumerics("mxfp4", 0.0, 1)
    y = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(quiet.act(y), build_model(load_preset("micro-k3")[0]).numerics(True).act(y))


def test_divergence_and_missing_lead_by_hand():
    """Distributions (1/2, 1/2) and (3/4, 1/4): half of sum (p - q) ln(p/q) is ln(3) / 8."""
    a, b = torch.tensor([[0.0, 0.0]]), torch.tensor([[math.log(3.0), 0.0]])
    assert train.divergence(a, b).item() == pytest.approx(math.log(3.0) / 8)
    assert train.divergence(b, b).item() == 0.0
    logits = torch.tensor([[3.0, 2.5, 0.0], [0.0, 1.0, 0.5], [0.0, 9.0, 0.0]])
    best = torch.tensor([[0], [2], [1]])  # leads 0.5, -0.5 (another token is preferred) and 9
    assert train.missing_lead(logits, best, 1.0).item() == pytest.approx((0.5 + 1.5 + 0.0) / 3)
    assert train.missing_lead(logits, best, 2.0).item() == pytest.approx((1.5 + 2.5 + 0.0) / 6)


def test_settling_makes_noisy_copies_agree(tmp_path):
    cfg = load_preset("micro-k3")[0]
    s = train.Settings(batch=4, window=32, settle_noise=2.0**-6, agree=1000.0)
    tokens = np.random.default_rng(3).integers(0, 8, 600)
    trainer = train.Trainer(cfg, s, tokens, 1.0, tmp_path)
    source = train.batches(tokens, s, 0)
    for i in range(30):
        trainer.update(next(source), 0.1 + i / 60)

    @torch.no_grad()
    def measure():
        x = next(train.batches(tokens, s, 999))[:, :-1]
        a, b = (trainer.model(x, train.NoisyNumerics("mxfp4", 2.0**-6, seed)) for seed in (1, 2))
        return train.divergence(a, b).item(), train.missing_lead(a, a.argmax(-1, keepdim=True), s.lead).item()

    before = measure()
    for i in range(30):
        trainer.update(next(source), 1.0 + i / 30)
        trainer.step += 1
    after = measure()
    assert after[0] < 0.7 * before[0] and after[1] < before[1]


# ---------------------------------------------------------------- evaluation


def test_witten_bell_by_hand():
    """Text 'aab', order 1. Order 0: c(a)=2, c(b)=1, T=2: P0(a) = (2 + 2/256) / 5; after 'a' both a and b came once:
    P(a|a) = (1 + 2 P0(a)) / 4, P(b|a) = (1 + 2 P0(b)) / 4; 'b' was never a context: P0 stays."""
    model = eval.WittenBell(b"aab", order=1)
    a, b = (2 + 2 / 256) / 5, (1 + 2 / 256) / 5
    got = model.probabilities(b"aaba")
    np.testing.assert_allclose(got, [a, (1 + 2 * a) / 4, (1 + 2 * b) / 4, a], rtol=1e-14)


def test_witten_bell_probabilities_sum_to_one():
    model = eval.WittenBell(bytes(np.random.default_rng(1).integers(97, 102, 400, dtype=np.uint8)))
    for context in (b"abc", b"eda", b"zzz", b"az?"):
        total = sum(model.probabilities(context + bytes([b]))[-1] for b in range(256))
        assert total == pytest.approx(1.0, abs=1e-12)


def test_first_token_of_a_window_is_not_scored():
    pieces = [b"xyz", b"a", b"bb"]
    held = eval.held_out_windows(np.array([0, 1, 2, 2, 0, 1, 1]), pieces, window=3)
    assert held.windows.tolist() == [[0, 1, 2], [2, 0, 1]]
    assert held.text == b"xyzabbbbxyza"
    assert held.scored.tolist() == [False] * 3 + [True] * 3 + [False] * 2 + [True] * 4
    assert held.scored_bytes == 7


def test_uniform_model_scores_nine_bits_per_token():
    held = eval.held_out_windows(np.zeros(8, dtype=np.int64), [b"ab"], window=4)
    score = eval.bits_per_byte(lambda w: np.full((len(w), w.shape[1] - 1), math.log(512)), held)
    assert score == pytest.approx(4.5)


def test_scorer_matches_cross_entropy_and_shuffled_logits_are_worse():
    model = build_model(load_preset("micro-k3")[0], seed=1)
    windows = np.random.default_rng(2).integers(0, 512, (3, 20))
    got = eval.model_scorer(model, True, batch=2)(windows)
    ids = torch.from_numpy(windows)
    with torch.no_grad():
        logits = model(ids, model.numerics(True))[:, :-1]
    want = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    np.testing.assert_allclose(got.flatten(), want.numpy(), atol=1e-5)
    assert got.shape == (3, 19)


def test_verdict_names_each_missed_bar():
    good = {"float": 1.8, "quantised": 1.85, "witten-bell 3 bytes": 2.2, "xz": 2.9}
    assert eval.verdict(good) == []
    assert len(eval.verdict(good | {"quantised": 1.95})) == 1
    assert len(eval.verdict(good | {"quantised": 2.3})) == 2
    assert len(eval.verdict(good | {"quantised": float("nan")})) == 2


def test_ranges_cover_every_tap_and_keep_the_largest_value():
    from golden.ranges import RangeTap, measure

    tap = RangeTap()
    tap("x", torch.tensor([1.0, -3.0]))
    tap("x", torch.tensor([1.0, 1.0]))
    assert tap.rows() == [("x", 3.0, pytest.approx(math.sqrt(3.0)))]
    measured = measure(build_model(load_preset("micro-k3")[0], seed=1), np.arange(8).reshape(2, 4))
    assert measured.calls["logits"] == 4 and measured.largest["layer.0.alpha"] <= 1.0
