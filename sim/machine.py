"""Functional machine: executes a compiled program on a loaded image with the twin's arithmetic.

It holds exactly the chip's registers and memories and runs the units' commands
in any order that respects ``need`` counts (a seed picks one), each command at
once.  So it checks the program, its dependencies and the image's packing
without simulating RTL; latencies are the business of the cycle model.
"""

from __future__ import annotations

import random

import numpy as np

from golden.fixed import kda, lanes, mla, router, vector
from golden.fixed.mx import MxMatrix, MxVector, dequantise_row, matvec, quantise
from golden.fixed.numbers import (
    BIAS,
    CONST,
    CTX,
    DTB,
    NRM,
    SIG,
    UNIT,
    VEC,
    Fixed,
    Ints,
    ints,
    round_shift,
    saturate,
)
from hw.layouts import Combine, Dest, Eps, Func, KdaOp, Norm, Out, Source, Space, VectorOp
from hw.params import BLOCK, HEAD, SLOTS, T_REGS, Params
from hw.program import UNITS, Program, Step


def field_of(word: int, index: int, width: int, signed: bool = True) -> int:
    """Field ``index`` of a packed word."""
    value = (word >> (index * width)) & ((1 << width) - 1)
    return value - (1 << width) if signed and value >> (width - 1) else value


class Machine:
    """Registers and memories of one chip, and one method per unit that executes a command."""

    def __init__(self, p: Params, program: Program, image: dict[Space, list[int]], seed: int | None = None) -> None:
        self.p, self.program, self.image = p, program, image
        self.random = random.Random(seed)
        garbage = np.random.default_rng(seed or 0)

        def junk(*shape: int) -> Ints:
            return garbage.integers(-(1 << 22), 1 << 22, shape, dtype=np.int64)

        m, lanes_ = p.model, p.lanes
        self.t, self.prefix = junk(T_REGS, lanes_), junk(lanes_)
        self.snapshot, self.score = junk(p.snapshots, lanes_), junk(p.candidates)
        self.codes, self.scale = np.full((SLOTS, BLOCK), 5), np.full(SLOTS, 120)
        self.k, self.q = junk(HEAD * m.kda_num_heads), junk(HEAD * m.kda_num_heads)
        self.o, self.pending = junk(lanes_), None
        self.context, self.mantissa = junk(m.num_attention_heads, HEAD), junk(m.num_attention_heads)
        self.picked, self.picked_weights = np.zeros(2, np.int64), np.zeros(2, np.int64)
        self.state = junk(p.kda_layers, m.kda_num_heads, HEAD, HEAD)
        self.history = junk(program.words(Space.LANE), p.array_rows, 3)
        self.cache = junk(p.mla_layers, m.max_positions, HEAD + m.qk_rope_head_dim)
        self.logits = junk(m.vocab_size)
        self.position = 0
        self.token = 0

    # --- one token ---
    def step(self, token: int) -> Ints:
        """Run the program for one token; returns the logits."""
        self.token = token
        done = {u: 0 for u in UNITS}
        while True:
            ready = [
                u for u in UNITS
                if done[u] < len(self.program.units[u])
                and all(done[v] >= n for v, n in self.program.units[u][done[u]].need.items())
            ]  # fmt: skip
            if not ready:
                break
            unit = self.random.choice(ready)
            self.execute(unit, self.program.units[unit][done[unit]])
            done[unit] += 1
        stuck = [u for u in UNITS if done[u] < len(self.program.units[u])]
        if stuck:
            raise RuntimeError(
                f"the program deadlocks: {stuck[0]} waits at {self.program.units[stuck[0]][done[stuck[0]]]}"
            )
        self.position += 1
        return self.logits.copy()

    def execute(self, unit: str, step: Step) -> None:
        """One command of one unit."""
        getattr(self, f"_{unit}")(**step.command)

    def _constant(self, space: Space, addr: int, count: int, width: int = 16, signed: bool = True) -> Ints:
        word = self.image[space][addr]
        return ints([field_of(word, i, width, signed) for i in range(count)])

    # --- array ---
    def _weights(self, base: int, groups: int, blocks: int) -> MxMatrix:
        rows = self.p.array_rows
        words = self.image[Space.WEIGHTS][base : base + groups * blocks]
        codes = ints([[field_of(w, i, 4, False) for i in range(rows * BLOCK)] for w in words])
        scale = ints([[field_of(w >> (4 * BLOCK * rows), i, 8, False) for i in range(rows)] for w in words])
        codes = codes.reshape(groups, blocks, rows, BLOCK).swapaxes(1, 2).reshape(-1, blocks, BLOCK)
        return MxMatrix(codes, scale.reshape(groups, blocks, rows).swapaxes(1, 2).reshape(-1, blocks))

    def _array(
        self, base: int, groups: int, blocks: int, slot: int, func: Func, dest: Dest,
        group0: int, constant: int, expert: int,
    ) -> None:  # fmt: skip
        if func == Func.EMBED:
            self._embed(base)
            return
        if expert:
            base += int(self.picked[expert - 1]) * self.p.expert_words
        x = MxVector(self.codes[slot : slot + blocks], self.scale[slot : slot + blocks])
        y = matvec(self._weights(base, groups, blocks), x)
        if func == Func.HEAD:
            self.logits = y[: self.p.model.vocab_size]
            return
        y = self._lane(func, y.reshape(groups, -1), constant)
        start = group0 * self.p.array_rows
        if dest in (Dest.P, Dest.P_ADD):
            old = self.prefix[start : start + len(y)] if dest == Dest.P_ADD else 0
            self.prefix[start : start + len(y)] = saturate(y + old, VEC)
        else:
            self.t[dest.value][start : start + len(y)] = y

    def _embed(self, base: int) -> None:
        blocks, rows = self.p.hidden_blocks, self.p.array_rows
        per_word = rows // blocks
        w = self._weights(base + self.token // per_word, 1, 1)
        first = self.token % per_word * blocks
        self.prefix[:] = 0
        for b in range(blocks):
            self.prefix[BLOCK * b : BLOCK * (b + 1)] = dequantise_row(w, ints(first + b))

    def _lane(self, func: Func, y: Ints, constant: int) -> Ints:
        """The lane function of each row group y [groups, rows], flattened."""
        if func == Func.SITU:
            m = self.p.model
            return lanes.situ(y[0::2], y[1::2], m.activation_situ_beta, m.activation_situ_linear_beta).ravel()
        if func in (Func.CONV, Func.DECAY):
            y = np.stack([self._lane_const(func, group, constant + g) for g, group in enumerate(y)])
        elif func == Func.GATE:
            y = lanes.gate(y)
        return y.ravel()

    def _lane_const(self, func: Func, y: Ints, addr: int) -> Ints:
        rows = self.p.array_rows
        raw = self._constant(Space.LANE, addr, rows * 4, signed=func == Func.CONV).reshape(rows, 4)
        if func == Func.DECAY:
            bias = raw[:, 0] - ((raw[:, 0] >> (DTB.width - 1)) << DTB.width)
            return lanes.decay(y, bias, raw[:, 1], self.p.model.gate_lower_bound)
        past = self.history[addr] if self.position else np.zeros((rows, 3), np.int64)
        window = np.concatenate([past, y[:, None]], axis=1)
        self.history[addr] = window[:, 1:]
        return lanes.silu(lanes.conv(window, raw))

    # --- vector unit ---
    def _vector(
        self, op: VectorOp, index: int, src: Source, combine: Combine, n: int, norm: Norm, whole: int, eps: Eps,
        weight: int, weight_frac: int, gate: int, gate_reg: int, out: Out, slot: int, segments: int, layer: int,
        constant: int,
    ) -> None:  # fmt: skip
        p = self.p
        if op == VectorOp.SNAP:
            self.snapshot[index] = self.prefix
            return
        if op == VectorOp.SCORE:
            v = self.prefix if src == Source.P else self.snapshot[index]
            projection = self._constant(Space.VECTOR, constant, p.lanes)
            hidden = p.model.hidden_size
            self.score[index] = vector.mix_score(v[:hidden], projection[:hidden], p.model.rms_norm_eps)
            return
        width = BLOCK * segments
        x, fmt = self._source(src, combine, n)
        x = x[:width] if whole else x[:width].reshape(segments, BLOCK)
        if norm == Norm.L2:
            x, fmt = vector.l2(x, fmt, self._eps(eps)), NRM
        elif norm == Norm.RMS:
            x, fmt = vector.normalise(x, fmt, self._eps(eps)), NRM
        elif norm == Norm.DIVIDE:
            x, fmt = saturate(round_shift(x * self.mantissa[:segments, None], CTX.frac + 18 - NRM.frac), NRM), NRM
        x = x.ravel()
        if weight:
            w = self._constant(Space.VECTOR, constant, width)
            x, fmt = vector.scale(x, w, Fixed("", 16, weight_frac), NRM, fmt), NRM
        if gate:
            x, fmt = vector.gated(x, self.t[gate_reg][:width], fmt), NRM
        self._out(x, fmt, out, slot, segments, layer)

    def _source(self, src: Source, combine: Combine, n: int) -> tuple[Ints, Fixed]:
        if src == Source.MIX and combine == Combine.RESIDUAL:
            vectors = [*self.snapshot[: n - 1], self.prefix]
            return vector.weighted_sum(vector.softmax_weights(self.score[:n]), vectors), VEC
        if src == Source.MIX:
            return vector.weighted_sum(self.picked_weights[:n], list(self.t[:n])), VEC
        if src == Source.P:
            return self.prefix.copy(), VEC
        if src == Source.O:
            return self.o.copy(), NRM
        if src == Source.C:
            return self.context.ravel(), CTX
        return self.t[src.value].copy(), VEC

    def _eps(self, eps: Eps) -> float:
        m = self.p.model
        return {
            Eps.RMS: m.rms_norm_eps, Eps.MLA: m.mla_norm_eps, Eps.L2: m.l2_norm_eps, Eps.HEAD: m.rms_norm_eps * HEAD
        }[eps]  # fmt: skip

    def _out(self, x: Ints, fmt: Fixed, out: Out, slot: int, segments: int, layer: int) -> None:
        if out == Out.SLOTS:
            mx = quantise(x, fmt)
            self.codes[slot : slot + segments], self.scale[slot : slot + segments] = mx.codes, mx.scale
        elif out == Out.CACHE:
            heads, rope = self.p.model.num_attention_heads, self.p.model.qk_rope_head_dim
            k_rope = self.t[3][rope * heads : rope * heads + rope]
            entry = [mla.to_cache(x[:HEAD], NRM.frac), mla.to_cache(k_rope, VEC.frac)]
            self.cache[layer, self.position] = np.concatenate(entry)
        else:
            setattr(self, "k" if out == Out.KDA_K else "q", x)

    # --- engines ---
    def _kda(self, op: KdaOp, layer: int) -> None:
        heads = self.p.model.kda_num_heads
        if op == KdaOp.SCAN:
            self.alpha = self.t[3][: HEAD * heads].copy()
        elif op == KdaOp.READ:
            state = self.state[layer] if self.position else np.zeros_like(self.state[layer])
            shape = (heads, HEAD)
            beta = round_shift(self.t[0][:heads], SIG.frac - UNIT.frac)
            self.pending = kda.state_update(
                state, self.k.reshape(shape), self.q.reshape(shape), self.t[1][: HEAD * heads].reshape(shape),
                self.alpha.reshape(shape), beta,
            )  # fmt: skip
            self.o[: HEAD * heads] = self.pending.o.ravel()
        else:
            assert self.pending is not None
            self.state[layer] = self.pending.state

    def _mla(self, layer: int) -> None:
        m = self.p.model
        heads, rope = m.num_attention_heads, m.qk_rope_head_dim
        absorbed = mla.to_query(self.t[0][: HEAD * heads].reshape(heads, HEAD))
        q_rope = mla.to_query(self.t[3][: rope * heads].reshape(heads, rope))
        seen = self.cache[layer, : self.position + 1]
        factor = mla.score_factor(m.qk_nope_head_dim, rope)
        s = mla.scores(np.concatenate([absorbed, q_rope], axis=-1), seen, factor)
        self.context, self.mantissa = mla.weigh(s, seen[:, :HEAD])

    def _router(self, layer: int) -> None:
        m = self.p.model
        bias = self._constant(Space.ROUTER, layer, m.num_experts, BIAS.width)
        experts, weights = router.route(
            self.t[0][: m.num_experts], bias, m.num_experts_per_token, m.routed_scaling_factor
        )
        self.picked[: len(experts)], self.picked_weights[: len(weights)] = experts, weights


assert CONST.width == BIAS.width == 16
