"""What the vector unit must do, from the golden functions, and random commands and operands for its tests."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from golden.fixed import mla, vector
from golden.fixed.mx import quantise
from golden.fixed.numbers import CONST, CTX, KEY, NRM, ROWSCALE, SIG, UNIT, VEC, round_shift, saturate
from hw.layouts import Combine, Eps, Norm, Out, Source, VectorOp
from hw.params import BLOCK, SLOTS, T_REGS, Params, from_preset
from hw.units.vector import check_command

BASE: dict[str, Any] = dict(
    op=VectorOp.FLOW, index=0, src=Source.T0, combine=Combine.RESIDUAL, n=0, norm=Norm.NONE, whole=0, eps=Eps.RMS,
    weight=0, weight_frac=CONST.frac, gate=0, gate_reg=0, out=Out.SLOTS, slot=0, segments=1, layer=0, constant=0,
)  # fmt: skip


def legal(**fields: Any) -> dict[str, Any]:
    """A command with the given fields, the others 0."""
    command = {**BASE, **fields}
    check_command(command)
    return command


def params(name: str) -> Params:
    """A preset, or ``narrow-k3``: two KDA heads (64 lanes) on a hidden size of 32, so half the prefix is padding."""
    if name != "narrow-k3":
        return from_preset(name)
    p = from_preset("micro-k3")
    return dataclasses.replace(p, model=dataclasses.replace(p.model, name=name, kda_num_heads=2), array_rows=8)


@dataclasses.dataclass
class Operands:
    """Everything outside the unit that a command may read, as integers."""

    t: np.ndarray
    prefix: np.ndarray
    kda_o: np.ndarray
    context: np.ndarray
    context_mantissa: np.ndarray
    expert_weight: np.ndarray


@dataclasses.dataclass
class Result:
    """What a FLOW writes: slots {number: (codes, scale)}, key, or latent."""

    slots: dict[int, tuple[list[int], int]] = dataclasses.field(default_factory=dict)
    key: np.ndarray | None = None
    latent: np.ndarray | None = None


class Reference:
    """The unit's registers and constant memory, and what commands make of them."""

    def __init__(self, p: Params, constants: np.ndarray) -> None:
        self.p = p
        self.constants = constants  # [words, lanes], as signed 16-bit integers
        self.snapshots: dict[int, np.ndarray] = {}
        self.scores: dict[int, int] = {}

    def run(self, c: dict[str, Any], given: Operands) -> Result:
        """Execute a command."""
        if c["op"] == VectorOp.SNAP:
            self.snapshots[c["index"]] = given.prefix.copy()
        elif c["op"] == VectorOp.SCORE:
            hidden = self.p.model.hidden_size
            v = given.prefix if c["src"] == Source.P else self.snapshots[c["index"]]
            projection = self.constants[c["constant"]][:hidden]
            eps = self.p.model.rms_norm_eps
            self.scores[c["index"]] = int(vector.mix_score(v[:hidden], projection, eps))
        else:
            return self._flow(c, given)
        return Result()

    def _flow(self, c: dict[str, Any], given: Operands) -> Result:
        """Source, norm, weight, gate, out."""
        x, fmt = self._source(c, given)
        x, fmt = self._norm(c, x, fmt, given)
        if c["weight"]:
            constant = dataclasses.replace(CONST, frac=c["weight_frac"])
            x, fmt = vector.scale(x, self.constants[c["constant"]], constant, NRM, fmt), NRM
        if c["gate"]:
            x, fmt = vector.gated(x, given.t[c["gate_reg"]] & ((1 << SIG.width) - 1), fmt), NRM
        if c["out"] == Out.SLOTS:
            mx = quantise(x, fmt)
            used = range(c["segments"])
            return Result(slots={c["slot"] + s: (mx.codes[s].tolist(), int(mx.scale[s])) for s in used})
        if c["out"] == Out.CACHE:
            return Result(latent=mla.to_cache(x[:BLOCK], NRM.frac))
        return Result(key=x)

    def _source(self, c: dict[str, Any], given: Operands) -> tuple[np.ndarray, Any]:
        """Operand of a FLOW and its format."""
        src = c["src"]
        if src == Source.MIX:
            if c["combine"] == Combine.EXPERTS:
                return vector.weighted_sum(given.expert_weight[: c["n"]], list(given.t[: c["n"]])), VEC
            weights = vector.softmax_weights(np.array([self.scores[i] for i in range(c["n"])]))
            return vector.weighted_sum(weights, [*(self.snapshots[i] for i in range(c["n"] - 1)), given.prefix]), VEC
        if src in (Source.O, Source.C):
            return (given.kda_o, NRM) if src == Source.O else (given.context, CTX)
        return (given.prefix if src == Source.P else given.t[Source(src).value]), VEC

    def _norm(self, c: dict[str, Any], x: np.ndarray, fmt: Any, given: Operands) -> tuple[np.ndarray, Any]:
        """Normalisation, per segment or over the hidden state."""
        model = self.p.model
        if c["norm"] == Norm.NONE:
            return x, fmt
        rows = x.reshape(-1, BLOCK)
        if c["norm"] == Norm.DIVIDE:
            mantissa = np.zeros(len(rows), np.int64)
            mantissa[: len(given.context_mantissa)] = given.context_mantissa
            return saturate(round_shift(rows * mantissa[:, None], CTX.frac + 18 - NRM.frac), NRM).ravel(), NRM
        eps = {
            Eps.RMS: model.rms_norm_eps,
            Eps.MLA: model.mla_norm_eps,
            Eps.L2: model.l2_norm_eps,
            Eps.HEAD: model.rms_norm_eps * model.kda_head_dim,
        }[c["eps"]]
        if c["norm"] == Norm.L2:
            return vector.l2(rows, fmt, eps).ravel(), KEY
        if c["whole"]:
            normed = vector.normalise(x[: model.hidden_size], fmt, eps)
            return np.pad(normed, (0, len(x) - len(normed))), NRM
        return vector.normalise(rows, fmt, eps).ravel(), NRM


class Stimulus:
    """Random operands and commands; every source of a program, and all combinations the unit has besides."""

    def __init__(self, p: Params, seed: int, words: int = 8) -> None:
        self.p = p
        self.rng = np.random.default_rng(seed)
        self.words = words
        self.scored = 0  # snapshots with a score, and the prefix after them

    def values(self, width: int, count: int) -> np.ndarray:
        """Signed values: one magnitude or mixed ones, extremes, sparse, all zero, powers of two, rounding ties."""
        rng, top = self.rng, width - 1
        kind = rng.integers(9)
        if kind == 0:
            return np.zeros(count, np.int64)
        if kind == 1:
            return rng.choice([-(1 << top), (1 << top) - 1], count)
        if kind == 2:
            return np.where(rng.random(count) < 0.1, rng.integers(-8, 9, count), 0)
        if kind == 3:
            powers = np.int64(1) << rng.integers(0, top, count)
            return np.clip(
                (powers + rng.integers(-1, 2, count)) * rng.choice([-1, 1], count), -(1 << top), (1 << top) - 1
            )
        if kind == 4:
            ties = (rng.integers(0, 64, count) << rng.integers(0, top - 6, count)) + rng.integers(-1, 2, count)
            return ties * rng.choice([-1, 1], count)
        shifts = rng.integers(0, top) if kind < 7 else rng.integers(0, top, count)
        return rng.integers(-(1 << top), 1 << top, count) >> shifts

    def operands(self) -> Operands:
        """New operands; T2 is a gate half of the time (T1 always mixes both)."""
        p, rng = self.p, self.rng
        t = np.stack([self.values(VEC.width, p.lanes) for _ in range(T_REGS)])
        for r in range(T_REGS):
            if rng.random() < 0.4:
                t[r] = rng.choice([0, 1, 1 << SIG.frac, rng.integers(0, 1 << SIG.frac)], p.lanes)
        prefix = self.values(VEC.width, p.lanes)
        prefix[p.model.hidden_size :] = 0
        mantissa = rng.choice([1 << 18, (1 << 17) + 1, rng.integers(1 << 17, 1 << 18)], p.model.num_attention_heads)
        one = 1 << UNIT.frac
        first = rng.choice([0, 1, one, rng.integers(0, one)])
        weights = np.array([first, one - first]) if rng.random() < 0.7 else rng.integers(0, 1 << 19, 2)
        wide = [self.values(24, p.lanes) for _ in range(2)]
        return Operands(t, prefix, wide[0], wide[1], mantissa, weights)

    def constants(self) -> np.ndarray:
        """Contents of the constant memory."""
        return np.stack([self.values(CONST.width, self.p.lanes) for _ in range(self.words)])

    def opening(self) -> list[dict[str, Any]]:
        """Fills every snapshot and score."""
        commands = []
        for i in range(self.p.snapshots):
            commands += [self._command(op=VectorOp.SNAP, index=i, src=Source.P)]
            commands += [self._command(op=VectorOp.SCORE, index=i, src=Source.MIX, constant=self._word())]
        index = self.p.snapshots
        return [*commands, self._command(op=VectorOp.SCORE, index=index, src=Source.P, constant=self._word())]

    def command(self) -> dict[str, Any]:
        """A random command; those of a program are more frequent than other legal ones."""
        p, rng = self.p, self.rng
        kind = rng.integers(14)
        segments = int(rng.integers(1, p.segments + 1))
        slot = int(rng.integers(0, SLOTS - segments + 1))
        slots = dict(out=Out.SLOTS, slot=slot, segments=segments)
        t = Source(int(rng.integers(4)))
        normed = dict(weight=1, constant=self._word(), weight_frac=CONST.frac)
        if kind == 0:
            return self._command(op=VectorOp.SNAP, index=int(rng.integers(p.snapshots)), src=Source.P)
        if kind <= 2:
            on_prefix = bool(rng.integers(2))
            index = int(rng.integers(p.candidates if on_prefix else p.snapshots))
            src = Source.P if on_prefix else Source.MIX
            return self._command(op=VectorOp.SCORE, index=index, src=src, constant=self._word())
        if kind <= 4:
            n = int(rng.integers(1, p.candidates + 1))
            return self._command(src=Source.MIX, n=n, norm=Norm.RMS, whole=1, **normed, **slots)
        if kind == 5:
            return self._command(src=Source.P, norm=Norm.RMS, whole=1, **normed, **slots)
        if kind == 6:
            out = Out(int(rng.integers(1, 3)))
            return self._command(src=t, norm=Norm.L2, eps=Eps.L2, out=out, segments=p.segments)
        if kind == 7:
            gate = dict(gate=1, gate_reg=int(rng.integers(4)))
            return self._command(src=Source.O, norm=Norm.RMS, eps=Eps.HEAD, **normed, **gate, **slots)
        if kind == 8:
            layer = int(rng.integers(p.mla_layers))
            return self._command(src=t, norm=Norm.RMS, eps=Eps.MLA, out=Out.CACHE, segments=1, layer=layer, **normed)
        if kind == 9:
            return self._command(src=t, weight=1, constant=self._word(), weight_frac=ROWSCALE.frac, **slots)
        if kind == 10:
            return self._command(src=Source.C, norm=Norm.DIVIDE, **slots)
        if kind == 11:
            return self._command(src=t, gate=1, gate_reg=int(rng.integers(4)), **slots)
        if kind == 12:
            n = int(rng.integers(1, 3))
            return self._command(src=Source.MIX, combine=Combine.EXPERTS, n=n, norm=Norm.RMS, **normed, **slots)
        return self._any(slots)

    def _any(self, slots: dict[str, Any]) -> dict[str, Any]:
        """Any legal FLOW."""
        rng = self.rng
        while True:
            fields = dict(
                src=Source(int(rng.integers(8))), combine=Combine(int(rng.integers(2))),
                norm=Norm(int(rng.integers(4))),
                whole=int(rng.integers(2)), eps=Eps(int(rng.integers(4))), weight=int(rng.integers(2)),
                weight_frac=int(rng.choice([CONST.frac, ROWSCALE.frac])), gate=int(rng.integers(2)),
                gate_reg=int(rng.integers(4)), constant=self._word(),
            )  # fmt: skip
            if fields["whole"] and (fields["norm"] != Norm.RMS or fields["src"] not in (Source.P, Source.MIX)):
                continue
            if fields["combine"] == Combine.EXPERTS and fields["whole"]:
                continue
            most = 2 if fields["combine"] == Combine.EXPERTS else self.p.candidates
            try:
                return self._command(**fields, n=int(rng.integers(1, most + 1)), **slots)
            except ValueError:
                continue

    def _word(self) -> int:
        return int(self.rng.integers(self.words))

    def _command(self, **fields: Any) -> dict[str, Any]:
        return legal(**fields)
