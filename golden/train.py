"""Train nano-k3 with quantisation in the loop; seeded, resumable, one core.

``python -m golden.train`` takes 5,800 steps (23 M tokens; about half an hour on an
idle core, twice that on a busy machine) and writes, under the output folder:
``log.txt`` (progress), ``latest.safetensors`` (newest weights, replaced
atomically every few minutes), ``resume.pt`` (everything needed to go on) and
``final.safetensors``, and at the end ``checkpoint`` (released layout).  Steps do
not depend on the machine's speed; ``--minutes`` fits the schedule into a time
instead, so its result does.

Optimisers (model.md): Per-Head Muon takes the orthogonalised update on each
head's slice of an attention projection by itself, and on every other matrix as a
whole; AdamW takes embeddings, head, norms and vectors.  Quantile Balancing moves
the router biases; no gradient flows into them.

The run ends with a settling phase (``settle`` times as many steps again).  The chip
computes in fixed point, and a difference of 2**-14 before an MXFP8 rounding now and
then changes the rounded value by a whole step, so chip and quantised model differ
like two copies with independent rounding noise.  The phase makes the model's choice
of the next token stand that: every window is run twice with small noise before each
rounding, and the loss also asks that both copies predict the same distribution
(``agree``) and that the token they prefer leads by ``lead`` nats (``decide``).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import math
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from golden.checkpoint import check_quantisable, check_tokenizer, export
from golden.config import ConfigError, ModelConfig, load_preset
from golden.data import TOKENIZER_PATH, encode, load_corpus, load_tokenizer, token_bytes
from golden.files import WriteError
from golden.model import NanoK3, init_weights
from golden.moe import LatentMoe, quantile_bias
from golden.numerics import Numerics

FINAL = "final.safetensors"


@dataclass
class Settings:
    """One training run; rates are peak values, multiplied by the schedule."""

    seed: int = 1
    batch: int = 16  # windows per step
    window: int = 256  # tokens per window
    muon_rate: float = 0.02  # spectral size of one update
    adam_rate: float = 8e-3
    muon_decay: float = 0.05  # decoupled weight decay, times the rate
    adam_decay: float = 0.02
    warmup: float = 0.01  # share of the run
    float_share: float = 0.10  # share of the run before quantisation is switched on
    cooldown: float = 0.5  # share of the run over which the rate falls to zero
    balance_rate: float = 0.05
    clip: float = 1.0
    settle: float = 0.16  # steps of the settling phase, as a share of the others
    settle_rate: float = 0.3  # its peak factor on both rates
    settle_noise: float = 2.0**-13  # width of the uniform noise before each rounding
    agree: float = 300.0  # weight of the two copies' divergence
    decide: float = 1.0  # weight of the missing lead, as a share of ``lead``
    lead: float = 0.8  # nats between the preferred token and the next


def schedule(progress: float, s: Settings) -> float:
    """Warm up, stay, then fall to zero (WSD): the factor on both rates at ``progress`` in 0..1."""
    up = min(1.0, progress / s.warmup) if s.warmup else 1.0
    down = min(1.0, (1.0 - progress) / s.cooldown) if s.cooldown else 1.0
    return max(0.0, min(up, down))


def settle_schedule(progress: float, s: Settings) -> float:
    """The factor on both rates in the settling phase: a short rise, then linearly to zero."""
    return s.settle_rate * max(0.0, min(progress / 0.05, (1.0 - progress) / 0.95))


# ---------------------------------------------------------------- settling


class NoisyNumerics(Numerics):
    """Quantised, with seeded uniform noise of the given width added before every rounding of an input."""

    def __init__(self, weight_format: str, width: float, seed: int) -> None:
        super().__init__(True, weight_format)
        self.width = width
        self.source = torch.Generator().manual_seed(seed)

    def act(self, x: torch.Tensor) -> torch.Tensor:
        """As the base class, after the noise."""
        noise = torch.rand(x.shape, generator=self.source, dtype=x.dtype).sub_(0.5)
        return super().act(x + noise * self.width)


def divergence(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Symmetric Kullback-Leibler divergence of two sets of logits [..., vocab], mean over positions, nats."""
    p, q = a.log_softmax(-1), b.log_softmax(-1)
    return 0.5 * ((p.exp() - q.exp()) * (p - q)).sum(-1).mean()


def missing_lead(logits: torch.Tensor, best: torch.Tensor, lead: float) -> torch.Tensor:
    """By how much token ``best`` [..., 1] leads less than ``lead``, as a share of it, mean over positions."""
    others = logits.scatter(-1, best, float("-inf")).amax(-1, keepdim=True)
    return F.relu(lead - (logits.gather(-1, best) - others)).mean() / lead


# ---------------------------------------------------------------- Per-Head Muon


def head_slices(name: str, shape: tuple[int, ...], cfg: ModelConfig) -> tuple[int, int]:
    """(axis, count): how a matrix is cut into heads for Muon; count 1 means it is taken whole.

    Rows belong to heads in every projection that makes heads, columns in the output projection.
    """
    match = re.search(r"layers\.(\d+)\.self_attn\.(\w+)\.weight$", name)
    if not match:
        return 0, 1
    heads = cfg.kda_num_heads if cfg.is_kda(int(match[1])) else cfg.num_attention_heads
    if match[2] == "o_proj":
        return 1, heads
    per_head = ("q_proj", "k_proj", "v_proj", "g_proj", "f_b_proj", "g_b_proj", "q_b_proj", "kv_b_proj")
    return 0, heads if match[2] in per_head else 1


def orthogonalise(g: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Newton-Schulz towards U V^T for a stack [n, rows, cols] (quintic coefficients of Muon)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    wide = g.shape[-2] <= g.shape[-1]
    x = g if wide else g.mT
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.mT


class Muon:
    """Nesterov momentum, orthogonalised per slice; slices of equal shape are worked on as one stack."""

    def __init__(self, named: list[tuple[str, torch.nn.Parameter]], cfg: ModelConfig, momentum: float = 0.95) -> None:
        self.momentum = momentum
        groups: dict[tuple[int, int], list[tuple[torch.nn.Parameter, int, int]]] = defaultdict(list)
        for name, p in named:
            axis, count = head_slices(name, tuple(p.shape), cfg)
            rows, cols = p.shape
            shape = (rows // count, cols) if axis == 0 else (rows, cols // count)
            groups[shape].append((p, axis, count))
        self.groups = list(groups.values())
        self.buffers = [torch.zeros_like(self._stack(g, grad=False)) for g in self.groups]

    @staticmethod
    def _stack(group: list[tuple[torch.nn.Parameter, int, int]], grad: bool) -> torch.Tensor:
        parts: list[torch.Tensor] = []
        for p, axis, count in group:
            value = p.grad if grad else p.detach()
            assert value is not None
            parts.extend(value.chunk(count, axis))
        return torch.stack(parts)

    @torch.no_grad()
    def step(self, rate: float, decay: float) -> None:
        """One update: w -= rate * (sqrt(max(1, rows/cols)) * orthogonal + decay * w)."""
        for group, buffer in zip(self.groups, self.buffers, strict=True):
            g = self._stack(group, grad=True)
            buffer.lerp_(g, 1 - self.momentum)
            update = orthogonalise(g.lerp(buffer, self.momentum))
            update = update * max(1.0, update.shape[-2] / update.shape[-1]) ** 0.5
            at = 0
            for p, axis, count in group:
                p.mul_(1 - rate * decay)
                p.sub_(torch.cat(list(update[at : at + count]), axis), alpha=rate)
                at += count

    def state_dict(self) -> dict[str, Any]:
        """Momentum buffers, in group order."""
        return {"buffers": self.buffers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the momentum of an earlier run of the same model."""
        for mine, other in zip(self.buffers, state["buffers"], strict=True):
            mine.copy_(other)


def split_parameters(model: NanoK3) -> tuple[list[tuple[str, torch.nn.Parameter]], list[torch.nn.Parameter]]:
    """(matrices for Muon, by name; everything for AdamW: embeddings, head, router, norms, vectors)."""
    muon, adam = [], []
    for name, p in model.named_parameters():
        vector = p.ndim != 2 or min(p.shape) < 8  # norms, convolutions, mixing vectors, beta's few rows
        if vector or name.startswith(("model.embed_tokens", "lm_head")) or name.endswith("moe.gate.weight"):
            adam.append(p)
        else:
            muon.append((name, p))
    return muon, adam


# ---------------------------------------------------------------- the run


def batches(tokens: np.ndarray, s: Settings, start: int) -> Iterator[torch.Tensor]:
    """Endless [batch, window + 1] token windows at random offsets; step n's batch depends on seed and n only."""
    step = start
    while True:
        rng = np.random.default_rng([s.seed, step])
        at = rng.integers(0, len(tokens) - s.window - 1, s.batch)
        yield torch.from_numpy(np.stack([tokens[a : a + s.window + 1] for a in at]))
        step += 1


def save_state(model: NanoK3, path: Path, note: dict[str, str]) -> None:
    """Weights as float32 safetensors, replaced atomically so that a reader never sees half a file."""
    state = {k: v.detach().float().contiguous().clone() for k, v in model.state_dict().items()}
    temporary = path.with_suffix(".tmp")
    save_file(state, str(temporary), metadata=note)
    os.replace(temporary, path)


def keep_memory() -> None:
    """Ask glibc not to return big buffers to the system: fresh pages cost more than the arithmetic."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-3, 1 << 25)  # M_MMAP_THRESHOLD, at its allowed maximum
        libc.mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD


@contextlib.contextmanager
def flushed_subnormals() -> Iterator[None]:
    """Subnormal floats are zero inside: they are slow. A switch of the processor: set back for what follows."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


class Trainer:
    """Model, optimisers and progress of one run in one output folder."""

    def __init__(self, cfg: ModelConfig, s: Settings, tokens: np.ndarray, bytes_per_token: float, out: Path) -> None:
        self.s, self.tokens, self.bytes_per_token, self.out = s, tokens, bytes_per_token, out
        torch.manual_seed(s.seed)
        self.model = init_weights(NanoK3(cfg), s.seed)
        muon, adam = split_parameters(self.model)
        self.muon = Muon(muon, cfg)
        self.adam = torch.optim.AdamW(adam, lr=s.adam_rate, betas=(0.9, 0.95), weight_decay=s.adam_decay, foreach=True)
        self.moes = [m for m in self.model.modules() if isinstance(m, LatentMoe)]
        self.step = 0
        self.spent = 0.0  # seconds of training, over all sittings

    def update(self, batch: torch.Tensor, progress: float) -> float:
        """One optimiser step; returns the cross entropy in nats per token.

        ``progress`` is 0..1 in the main part and 1..2 in the settling phase.
        """
        s = self.s
        if progress < 1.0:
            factor = schedule(progress, s)
            logits = self.model(batch[:, :-1], self.model.numerics(progress >= s.float_share))
            entropy = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            entropy.backward()
        else:
            factor = settle_schedule(progress - 1.0, s)
            entropy = self.settle(batch[: max(1, len(batch) // 2)])
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), s.clip, foreach=True)
        self.muon.step(s.muon_rate * factor, s.muon_decay)
        for group in self.adam.param_groups:
            group["lr"] = s.adam_rate * factor
        self.adam.step()
        self.model.zero_grad(set_to_none=True)
        self.balance(factor)
        return entropy.item()

    def settle(self, batch: torch.Tensor) -> torch.Tensor:
        """Gradients of the settling loss on each window twice (so half as many windows); the cross entropy."""
        s = self.s
        twice = torch.cat([batch, batch])
        num = NoisyNumerics(self.model.cfg.weight_format, s.settle_noise, s.seed * 1_000_003 + self.step)
        logits = self.model(twice[:, :-1], num)
        entropy = F.cross_entropy(logits.flatten(0, 1), twice[:, 1:].flatten())
        a, b = logits.chunk(2)
        best = (a + b).detach().argmax(-1, keepdim=True)
        loss = entropy + s.agree * divergence(a, b)
        loss = loss + s.decide * missing_lead(logits, torch.cat([best, best]), s.lead)
        loss.backward()
        return entropy.detach()

    @torch.no_grad()
    def balance(self, factor: float) -> None:
        """Quantile Balancing of every router, on a fixed share of the batch's tokens (it is only a quantile)."""
        for moe in self.moes:
            assert moe.last_scores is not None
            bias = moe.gate.e_score_correction_bias
            top_k = moe.cfg.num_experts_per_token
            bias.copy_(quantile_bias(moe.last_scores[::4], bias, top_k, self.s.balance_rate * max(factor, 0.1)))

    def imbalance(self) -> float:
        """Largest expert load over the fair share, worst layer of the last batch."""
        worst = 0.0
        for moe in self.moes:
            assert moe.last_scores is not None
            biased = moe.last_scores + moe.gate.e_score_correction_bias
            picks = biased.topk(moe.cfg.num_experts_per_token, -1).indices
            load = torch.bincount(picks.flatten(), minlength=moe.cfg.num_experts).float()
            worst = max(worst, float(load.max() / load.mean()))
        return worst

    def progress_line(self, progress: float, loss: float, tokens_per_s: float) -> str:
        """Loss in nats per token, bits per byte of the training text, speed and time left."""
        bpb = loss / math.log(2) / self.bytes_per_token
        s = self.s
        mode = "settle" if progress >= 1.0 else "quant" if progress >= s.float_share else "float"
        factor = settle_schedule(progress - 1.0, s) if progress >= 1.0 else schedule(progress, s)
        done = (min(progress, 1.0) + s.settle * max(progress - 1.0, 0.0)) / (1.0 + s.settle)  # share of all steps
        left = self.spent / max(done, 1e-9) * (1 - done) / 60
        return (
            f"step {self.step} {done:6.1%} loss {loss:.4f} bpb {bpb:.4f} {mode}"
            f" rate x{factor:.3f} imbalance {self.imbalance():.2f}"
            f" {tokens_per_s:,.0f} tokens/s eta {left:.1f} min"
        )

    def note(self) -> dict[str, str]:
        """What a saved file says about itself."""
        return {"preset": self.model.cfg.name, "step": str(self.step), "settings": json.dumps(asdict(self.s))}

    def save(self) -> None:
        """Weights for readers and everything needed to resume."""
        save_state(self.model, self.out / "latest.safetensors", self.note())
        state = {
            "model": self.model.state_dict(),
            "muon": self.muon.state_dict(),
            "adam": self.adam.state_dict(),
            "step": self.step,
            "spent": self.spent,
            "settings": asdict(self.s),
        }
        temporary = self.out / "resume.tmp"
        torch.save(state, temporary)
        os.replace(temporary, self.out / "resume.pt")

    def resume(self) -> bool:
        """Go on from resume.pt if it is there; refuses one made with other settings."""
        path = self.out / "resume.pt"
        if not path.is_file():
            return False
        state = torch.load(path, weights_only=True)
        if state["settings"] != asdict(self.s):
            raise SystemExit(f"{path} was made with other settings: remove it or give another --out")
        self.model.load_state_dict(state["model"])
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])
        self.step, self.spent = state["step"], state["spent"]
        return True

    def progress(self, minutes: float | None, steps: int | None) -> float:
        """How far the run is: 0..1 in the main part, 1..2 in the settling phase, 2 at the end."""
        s = self.s
        if steps:
            main, settling, at = float(steps), float(round(s.settle * steps)), float(self.step)
        else:
            main = 60.0 * (minutes or 1.0) / (1.0 + s.settle)
            settling, at = s.settle * main, self.spent
        if at < main:
            return at / main
        return 1.0 + (at - main) / settling if at < main + settling else 2.0

    def run(self, minutes: float | None, steps: int | None, save_every: float = 120.0, log_every: int = 50) -> bool:
        """Train to the budget, True when it is spent; interruption (Ctrl-C) saves and stops."""
        log = (self.out / "log.txt").open("a")

        def say(line: str) -> None:
            print(line, flush=True)
            log.write(line + "\n")
            log.flush()

        started, before, saved = time.monotonic(), self.spent, time.monotonic()
        losses: list[float] = []
        mark, mark_step = time.monotonic(), self.step
        source = batches(self.tokens, self.s, self.step)
        try:
            while True:
                self.spent = before + time.monotonic() - started
                progress = self.progress(minutes, steps)
                if progress >= 2.0:
                    break
                losses.append(self.update(next(source), progress))
                self.step += 1
                if not math.isfinite(losses[-1]):
                    raise SystemExit(f"loss is not finite at step {self.step}: start again with lower rates")
                if self.step % log_every == 0:
                    now = time.monotonic()
                    rate = (self.step - mark_step) * self.s.batch * self.s.window / (now - mark)
                    say(self.progress_line(progress, sum(losses) / len(losses), rate))
                    losses, mark, mark_step = [], now, self.step
                if time.monotonic() - saved > save_every:
                    self.save()
                    saved = time.monotonic()
        except KeyboardInterrupt:
            self.save()
            say(f"interrupted at step {self.step}; run again with --resume")
            return False
        self.save()
        save_state(self.model, self.out / FINAL, self.note())
        say(f"done: {self.step} steps, {self.spent / 60:.1f} min")
        return True


def main(arguments: list[str] | None = None, prog: str | None = None) -> None:
    """Command line; every Settings field is an option.  A finished run is written as a checkpoint too."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=prog, description=__doc__, formatter_class=raw)
    parser.add_argument("--preset", default="nano-k3")
    parser.add_argument("--minutes", type=float, help="stop after this much training time")
    parser.add_argument("--steps", type=int, help="steps before the settling phase (default 5000)")
    parser.add_argument("--out", type=Path, default=Path("build/train"))
    parser.add_argument("--resume", action="store_true", help="go on from resume.pt in the output folder")
    parser.add_argument("--threads", type=int, default=1)
    for name, value in asdict(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    args = parser.parse_args(arguments)
    check_options(args)
    keep_memory()
    torch.set_num_threads(args.threads)
    with flushed_subnormals():
        train(args)


def check_options(args: argparse.Namespace) -> None:
    """Refuse numbers that no run has; raises ConfigError."""
    least = {"steps": 1, "batch": 1, "window": 1, "threads": 1, "seed": 0}
    for name, value in vars(args).items():
        option = f"--{name.replace('_', '-')}"
        if name in least and value is not None and value < least[name]:
            raise ConfigError(f"{option} must be {least[name]} or more, not {value}")
        if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{option} must be a number of 0 or more, not {value}")


def train(args: argparse.Namespace) -> None:
    """One sitting of a run, by the command line's options."""
    cfg, _ = load_preset(args.preset)
    check_tokenizer(TOKENIZER_PATH, cfg)
    check_quantisable(cfg)
    tokenizer = load_tokenizer(TOKENIZER_PATH)
    tokens = encode(tokenizer, load_corpus().train)
    lengths = np.array([len(b) for b in token_bytes(tokenizer)])
    if len(tokens) <= args.window + 1:
        raise ConfigError(f"--window {args.window} does not fit the training text of {len(tokens)} tokens")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise WriteError(f"cannot write {args.out}: {e.strerror}") from None
    settings = Settings(**{k: getattr(args, k) for k in asdict(Settings())})
    trainer = Trainer(cfg, settings, tokens, float(lengths[tokens].mean()), args.out)
    if args.resume:
        trainer.resume()
    if trainer.run(args.minutes, args.steps or (None if args.minutes else 5000)):
        export(args.out / FINAL, args.out / "checkpoint", args.preset, TOKENIZER_PATH)
        print(f"checkpoint: {args.out / 'checkpoint'}")


if __name__ == "__main__":
    main()
