"""Kimi Delta Attention: a gated delta rule with one decay per key channel.

Per head: state S [keys, values]; decay, correct by the delta rule, read.
``kda_step`` is the recurrent form (the judge), ``kda_chunked`` the same values
for whole windows, used in training.  Source: model.md, and the recurrence of
fla-org/flash-linear-attention's naive form with K3's bounded gate.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from golden.config import ModelConfig
from golden.norm import RmsNorm, l2_normalise
from golden.numerics import Numerics

CHUNK = 16  # steps per chunk: -5 per step keeps exp(+-5 * 16 / 2) well inside float32
MAX_LOG_A = 80.0  # exp(80) is finite in float32 and already saturates the sigmoid

KdaState = dict[str, torch.Tensor]


def log_decay(f: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor, bound: float) -> torch.Tensor:
    """K3's gate g = bound * sigmoid(exp(A_log) * (f + dt_bias)), in (bound, 0).

    f and dt_bias [..., H, dk], a_log [H].  exp(A_log) is kept finite so that 0 * inf never makes NaN.
    """
    a = torch.exp(a_log.clamp(max=MAX_LOG_A)).unsqueeze(-1)
    return bound * torch.sigmoid(a * (f + dt_bias))


def kda_step(
    state: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token: state [..., dk, dv], q/k/alpha [..., dk], v [..., dv], beta [...] -> (new state, o [..., dv])."""
    state = alpha.unsqueeze(-1) * state  # decay first
    u = v - (k.unsqueeze(-1) * state).sum(-2)
    state = state + (beta.unsqueeze(-1) * k).unsqueeze(-1) * u.unsqueeze(-2)
    return state, (q.unsqueeze(-1) * state).sum(-2)  # read from the updated state


def kda_chunked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """Whole windows from a zero state: q/k/g [N, T, dk], v [N, T, dv], beta [N, T]; T a multiple of CHUNK.

    Within a chunk, with G the running sum of g, u solves the unit lower triangular system
    (I + tril(K+ K-^T, -1) diag(beta)) u = v - (k e^G) S, where K+ = k e^(G-R), K- = k e^(R-G);
    R is G's value in the middle of the chunk, so both exponents stay within +-40.
    """
    n, t, dk = q.shape
    c = t // CHUNK
    q, k, v, g = (x.reshape(n, c, CHUNK, -1) for x in (q, k, v, g))
    beta = beta.reshape(n, c, CHUNK, 1)
    total = g.cumsum(-2)
    middle = total[..., CHUNK // 2 - 1 : CHUNK // 2, :].detach()
    last = total[..., -1:, :]
    up, down = torch.exp(total - middle), torch.exp(middle - total)
    k_up, q_up, k_down = k * up, q * up, k * down * beta
    n_mat = (k_up @ k_down.mT).tril(-1)
    eye = torch.eye(CHUNK, dtype=q.dtype)
    # S enters as e^G S = e^(G-R) (e^R S), so the same k_up and q_up serve
    solved = torch.linalg.solve_triangular(n_mat + eye, torch.cat([v, k_up], -1), upper=False, unitriangular=True)
    u_own, w = solved.split([v.shape[-1], dk], -1)
    scores = (q_up @ k_down.mT).tril()
    enter = torch.exp(middle).mT  # [N, c, dk, 1]: rows of S into the chunk's reference
    leave = torch.exp(last).mT
    k_last = (k * torch.exp(last - total) * beta).mT
    state = q.new_zeros(n, dk, v.shape[-1])
    out = []
    by_chunk = (x.unbind(1) for x in (u_own, w, q_up, scores, enter, leave, k_last))
    for own, w_i, qu, sc, en, le, kl in zip(*by_chunk, strict=True):
        entered = en * state
        u = torch.baddbmm(own, w_i, entered, alpha=-1)
        out.append(torch.baddbmm(sc @ u, qu, entered))
        state = torch.baddbmm(le * state, kl, u)
    return torch.stack(out, 1).reshape(n, t, -1)


class ShortConv(nn.Module):
    """Causal depthwise convolution of ``kernel`` taps then silu; weight [D, 1, kernel], the last tap newest."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels, 1, kernel))

    def step(self, x: torch.Tensor, past: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [B, D], past [B, kernel-1, D] (oldest first) -> (silu(conv) [B, D], new past)."""
        window = torch.cat([past, x.unsqueeze(1)], 1)
        return F.silu((window * self.weight[:, 0].T).sum(1)), window[:, 1:]


def causal_conv_silu(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The convolution over whole windows: x [B, T, D], weight [D, kernel] -> silu(conv) [B, T, D]."""
    kernel, t = weight.shape[1], x.shape[1]
    padded = F.pad(x, (0, 0, kernel - 1, 0))
    out = padded[:, :t] * weight[:, 0]
    for i in range(1, kernel):
        out = torch.addcmul(out, padded[:, i : i + t], weight[:, i])
    return F.silu(out)


class KimiDeltaAttention(nn.Module):
    """One KDA layer; parameter names are those of the released checkpoint."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
        d, h, dk = cfg.hidden_size, cfg.kda_num_heads, cfg.kda_head_dim
        self.heads, self.dim = h, dk

        def linear(m: int, n: int) -> nn.Linear:
            return nn.Linear(n, m, bias=False)

        self.q_proj, self.k_proj, self.v_proj = (linear(h * dk, d) for _ in range(3))
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (ShortConv(h * dk, cfg.short_conv_kernel_size) for _ in range(3))
        self.b_proj = linear(h, d)
        self.f_a_proj, self.f_b_proj = linear(dk, d), linear(h * dk, dk)
        if cfg.kda_gate_rank is None:
            self.g_proj = linear(h * dk, d)
        else:
            self.g_a_proj, self.g_b_proj = linear(cfg.kda_gate_rank, d), linear(h * dk, cfg.kda_gate_rank)
        self.o_proj = linear(d, h * dk)
        self.A_log = nn.Parameter(torch.zeros(h))
        self.dt_bias = nn.Parameter(torch.zeros(h * dk))
        self.o_norm = RmsNorm(dk, cfg.rms_norm_eps, cfg.norm_offset)

    def init_state(self, batch: int, dtype: torch.dtype) -> KdaState:
        """Zero state: S [B, H, dk, dv] and the last inputs of each convolution [B, kernel-1, H*dk]."""
        h, dk, past = self.heads, self.dim, self.cfg.short_conv_kernel_size - 1
        state = {"S": torch.zeros(batch, h, dk, dk, dtype=dtype)}
        return state | {n: torch.zeros(batch, past, h * dk, dtype=dtype) for n in ("q", "k", "v")}

    def _decay(self, f: torch.Tensor) -> torch.Tensor:
        shape = (self.heads, self.dim)
        return log_decay(f.unflatten(-1, shape), self.A_log, self.dt_bias.view(shape), self.cfg.gate_lower_bound)

    def _gate(self, x: torch.Tensor, num: Numerics) -> torch.Tensor:
        if self.cfg.kda_gate_rank is None:
            return num.matmul(x, self.g_proj.weight)
        return num.matmul(num.act(num.matmul(x, self.g_a_proj.weight)), self.g_b_proj.weight)

    def step(self, x: torch.Tensor, state: KdaState, num: Numerics, scope: str) -> tuple[torch.Tensor, KdaState]:
        """One token: x [B, d], already rounded by ``num.act`` -> (output [B, d], new state)."""
        new: KdaState = {}
        streams = {}
        for name in ("q", "k", "v"):
            proj: nn.Linear = getattr(self, f"{name}_proj")
            raw = num.matmul(x, proj.weight)
            conv: ShortConv = getattr(self, f"{name}_conv1d")
            y, new[name] = conv.step(raw, state[name])
            streams[name] = y.unflatten(-1, (self.heads, self.dim))
            num.record(f"{scope}.{name}_conv", y)
        q = l2_normalise(streams["q"], self.cfg.l2_norm_eps) * self.dim**-0.5
        k, v = l2_normalise(streams["k"], self.cfg.l2_norm_eps), streams["v"]
        beta = torch.sigmoid(num.matmul(x, self.b_proj.weight))
        f = num.matmul(num.act(num.matmul(x, self.f_a_proj.weight)), self.f_b_proj.weight)
        alpha = torch.exp(self._decay(f))
        new["S"], o = kda_step(state["S"], q, k, v, alpha, beta)
        gate = torch.sigmoid(self._gate(x, num))
        gated = self.o_norm(o).flatten(-2) * gate
        for name, value in (("q", q), ("k", k), ("v", v), ("alpha", alpha), ("beta", beta), ("o", o), ("gate", gate)):
            num.record(f"{scope}.{name}", value)
        num.record(f"{scope}.gated", gated)
        num.record(f"{scope}.state", new["S"])
        return num.matmul(num.act(gated), self.o_proj.weight), new

    def parallel(self, x: torch.Tensor, num: Numerics, scope: str) -> torch.Tensor:
        """Whole windows from a zero state: x [B, T, d] (rounded) -> [B, T, d]."""
        b, t, _ = x.shape
        h, dk = self.heads, self.dim
        full_rank = self.cfg.kda_gate_rank is None
        sharing = [self.q_proj, self.k_proj, self.v_proj, self.f_a_proj, self.b_proj]
        sharing += [self.g_proj] if full_rank else []
        # one wide product for everything that shares the input
        wide = F.linear(x, torch.cat([num.weight(proj.weight) for proj in sharing]))
        qkv, f_a, b_raw, *g_raw = wide.split([3 * h * dk, dk, h] + [h * dk] * full_rank, -1)
        taps = torch.cat([self.q_conv1d.weight, self.k_conv1d.weight, self.v_conv1d.weight])[:, 0]
        streams = causal_conv_silu(qkv, taps).view(b, t, 3, h, dk).permute(2, 0, 3, 1, 4)  # [3, B, H, T, dk]
        q, k, v = streams.unbind(0)
        q, k = l2_normalise(q, self.cfg.l2_norm_eps) * dk**-0.5, l2_normalise(k, self.cfg.l2_norm_eps)
        beta = torch.sigmoid(b_raw).transpose(1, 2)
        g = self._decay(num.matmul(num.act(f_a), self.f_b_proj.weight)).transpose(1, 2)
        pad = -t % CHUNK  # padding after the end changes nothing before it
        if pad:
            q, k, v, g = (F.pad(s, (0, 0, 0, pad)) for s in (q, k, v, g))
            beta = F.pad(beta, (0, pad))
        o = kda_chunked(*(s.flatten(0, 1) for s in (q, k, v, g, beta)))[:, :t]
        o = o.view(b, h, t, dk).transpose(1, 2)
        num.record(f"{scope}.o", o)
        gate = torch.sigmoid(g_raw[0] if full_rank else self._gate(x, num))
        gated = self.o_norm(o).flatten(-2) * gate
        num.record(f"{scope}.gated", gated)
        return num.matmul(num.act(gated), self.o_proj.weight)
