"""The micro-program of one token: commands of every unit, what each waits for, and where its weights lie.

``compile_program`` walks the layers once, in the order in which each unit
should work, and emits commands.  Dependencies are found from the registers a
command reads and writes; weights and constants get their addresses in the order
of use.  The same object drives the issuers in RTL, the image packer and the
simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from golden.fixed.mx import BLOCK, E8M0_BIAS, MxMatrix
from golden.fixed.numbers import CONST, ROWSCALE, Ints
from golden.fixed.weights import ChipWeights, FfnWeights, KdaWeights, LayerWeights
from hw.layouts import Combine, Dest, Eps, Func, KdaOp, Norm, Out, Source, Space, VectorOp
from hw.params import HEAD, Params

UNITS = ("array", "vector", "kda", "mla", "router")
CONVOLUTIONS = ("k", "q", "v")  # of a KDA layer
LANE_GROUP = 16  # granularity at which vector registers are tracked

Getter = Callable[[ChipWeights], Any]


@dataclass
class Step:
    """One command: field values, completions it waits for (unit -> count since the token began), label."""

    command: dict[str, Any]
    need: dict[str, int]
    head: bool
    label: str


@dataclass
class Placement:
    """Words ``base`` .. ``base + words - 1`` of a memory and what they hold: ``get(weights)`` gives the word values."""

    space: Space
    base: int
    words: int
    label: str
    get: Callable[[ChipWeights], list[int]]


@dataclass
class Program:
    """Steps per unit in order, and the contents of every loadable memory."""

    units: dict[str, list[Step]] = field(default_factory=lambda: {u: [] for u in UNITS})
    placements: list[Placement] = field(default_factory=list)

    def words(self, space: Space) -> int:
        """Words of a memory that are used."""
        return sum(pl.words for pl in self.placements if pl.space == space)

    def image(self, weights: ChipWeights) -> dict[Space, list[int]]:
        """Contents of every memory for a checkpoint."""
        out: dict[Space, list[int]] = {s: [] for s in Space}
        for placement in self.placements:
            words = placement.get(weights)
            assert len(words) == placement.words and len(out[placement.space]) == placement.base, placement.label
            out[placement.space] += words
        return out


def bits(values: Iterable[int], width: int) -> int:
    """Pack integers into one word, the first in the low bits."""
    word = 0
    for i, v in enumerate(values):
        word |= (int(v) & ((1 << width) - 1)) << (width * i)
    return word


def matrix_words(w: MxMatrix, rows: int) -> list[list[int]]:
    """Weight words [row group][block]; rows beyond the matrix are zeros."""
    pad = -w.rows % rows
    codes = np.pad(w.codes, ((0, pad), (0, 0), (0, 0)))
    scale = np.pad(w.scale, ((0, pad), (0, 0)), constant_values=E8M0_BIAS)
    out = []
    for g in range(len(codes) // rows):
        r = slice(g * rows, (g + 1) * rows)
        out.append(
            [bits(codes[r, b].ravel(), 4) | bits(scale[r, b], 8) << (4 * BLOCK * rows) for b in range(codes.shape[1])]
        )
    return out


def plain_words(get: Getter, rows: int, weights: ChipWeights) -> list[int]:
    """Words of a matrix, group by group."""
    return [word for group in matrix_words(get(weights), rows) for word in group]


def paired_words(get: Getter, rows: int, pairs: slice, weights: ChipWeights) -> list[int]:
    """Words of an FFN's gate and up matrices, groups alternating (some of the pairs)."""
    ffn: FfnWeights = get(weights)
    gate, up = (matrix_words(m, rows)[pairs] for m in (ffn.gate, ffn.up))
    return [word for pair in zip(gate, up, strict=True) for group in pair for word in group]


def expert_words(get: Getter, rows: int, weights: ChipWeights) -> list[int]:
    """Words of all routed experts: per expert the gate/up pairs, then down."""
    words: list[int] = []
    for expert in get(weights):
        words += paired_words(lambda _, e=expert: e, rows, slice(None), weights)
        words += plain_words(lambda _, e=expert: e.down, rows, weights)
    return words


class Builder:
    """Emits commands, tracks register dependencies and allocates memory words."""

    def __init__(self, p: Params) -> None:
        self.p = p
        self.program = Program()
        self.head = False
        self._writer: dict[str, tuple[str, int]] = {}
        self._readers: dict[str, dict[str, int]] = {}
        self._free = {s: 0 for s in Space}

    # --- registers and dependencies ---
    def lanes(self, reg: str, start: int = 0, count: int | None = None) -> set[str]:
        """Names of the tracked parts of a vector register."""
        count = self.p.lanes - start if count is None else count
        first, last = start // LANE_GROUP, -(-(start + count) // LANE_GROUP)
        return {f"{reg}.{i}" for i in range(first, last)}

    def emit(self, unit: str, label: str, reads: set[str], writes: set[str], **command: Any) -> None:
        """Append a command that reads and writes the named registers."""
        need: dict[str, int] = {}

        def wait(who: tuple[str, int], own: bool) -> None:
            if who[0] != unit or (own and unit != "array"):
                need[who[0]] = max(need.get(who[0], 0), who[1] + 1)

        index = len(self.program.units[unit])
        for r in reads:
            if r in self._writer:
                wait(self._writer[r], own=True)
        for w in writes:
            if w in self._writer:
                wait(self._writer[w], own=False)
            for reader in self._readers.get(w, {}).items():
                wait(reader, own=False)
        for r in reads:
            self._readers.setdefault(r, {})[unit] = index
        for w in writes:
            self._writer[w] = (unit, index)
            self._readers[w] = {}
        self.program.units[unit].append(Step(command, need, self.head, label))

    # --- memory ---
    def place(self, space: Space, words: int, label: str, get: Callable[[ChipWeights], list[int]]) -> int:
        """Allocate words; returns the first address."""
        base = self._free[space]
        self._free[space] += words
        self.program.placements.append(Placement(space, base, words, label, get))
        return base

    def constant(self, label: str, get: Callable[[ChipWeights], Ints]) -> int:
        """A vector constant: one word, one 16-bit value per lane."""
        return self.place(Space.VECTOR, 1, label, lambda w: [bits(np.ravel(get(w)), CONST.width)])

    # --- array ---
    def matmul(
        self, label: str, get: Getter, rows: int, blocks: int, slot: int, func: Func, dest: Dest | None,
        start: int = 0, constant: int = 0,
    ) -> None:  # fmt: skip
        """A matrix of ``rows`` x 32 ``blocks``: its words and its command; results from lane ``start`` on."""
        groups = -(-rows // self.p.array_rows)
        base = self.place(Space.WEIGHTS, groups * blocks, label, partial(plain_words, get, self.p.array_rows))
        self.array(label, base, groups, blocks, slot, func, dest, start, constant)

    def array(
        self, label: str, base: int, groups: int, blocks: int, slot: int, func: Func, dest: Dest | None,
        start: int = 0, constant: int = 0, expert: int = 0,
    ) -> None:  # fmt: skip
        """An array command."""
        reads = {f"slot{slot + b}" for b in range(blocks)} if func != Func.EMBED else set()
        if expert:
            reads.add("picked")
        results = groups // 2 if func == Func.SITU else groups
        if dest in (Dest.P, Dest.P_ADD) or func == Func.EMBED:
            writes = {"P"}
        elif func == Func.HEAD:
            writes = set()
        else:
            assert dest is not None
            writes = self.lanes(dest.name, start, results * self.p.array_rows)
        self.emit(
            "array", label, reads, writes, base=base, groups=groups, blocks=blocks, slot=slot, func=func,
            dest=dest if dest is not None else Dest.P, group0=start // self.p.array_rows, constant=constant,
            expert=expert,
        )  # fmt: skip

    def paired(self, label: str, get: Getter, pairs: slice, blocks: int, slot: int, dest: Dest, start: int) -> None:
        """Gate and up rows of an FFN, SiTU applied: pairs of row groups ``pairs``."""
        count = pairs.stop - pairs.start
        words = 2 * count * blocks
        base = self.place(Space.WEIGHTS, words, label, partial(paired_words, get, self.p.array_rows, pairs))
        self.array(label, base, 2 * count, blocks, slot, Func.SITU, dest, start)

    # --- vector unit ---
    def flow(
        self, label: str, src: Source, out: Out, *, segments: int, slot: int = 0, norm: Norm = Norm.NONE,
        whole: bool = False, eps: Eps = Eps.RMS, weight: int | None = None, weight_frac: int = CONST.frac,
        gate: int | None = None, combine: Combine = Combine.RESIDUAL, n: int = 0, layer: int = 0,
    ) -> None:  # fmt: skip
        """A FLOW command; reads and writes follow from its fields."""
        width = BLOCK * segments
        reads: set[str] = set()
        if src in (Source.T0, Source.T1, Source.T2, Source.T3):
            reads |= self.lanes(src.name, 0, width)
        elif src == Source.MIX and combine == Combine.RESIDUAL:
            reads |= {f"B{i}" for i in range(n - 1)} | {f"score{i}" for i in range(n)} | {"P"}
        elif src == Source.MIX:
            reads |= {"picked"}.union(*(self.lanes(f"T{i}", 0, BLOCK) for i in range(n)))
        else:
            reads.add(src.name)
        if gate is not None:
            reads |= self.lanes(f"T{gate}", 0, width)
        if out == Out.SLOTS:
            writes = {f"slot{slot + s}" for s in range(segments)}
        elif out == Out.CACHE:
            writes = {f"cache{layer}"}
            heads = self.p.model.num_attention_heads
            reads |= self.lanes("T3", LANE_GROUP * heads, LANE_GROUP)
        else:
            writes = {out.name}
        self.emit(
            "vector", label, reads, writes, op=VectorOp.FLOW, index=0, src=src, combine=combine, n=n, norm=norm,
            whole=int(whole), eps=eps, weight=int(weight is not None), weight_frac=weight_frac,
            gate=int(gate is not None), gate_reg=gate or 0, out=out, slot=slot, segments=segments, layer=layer,
            constant=weight or 0,
        )  # fmt: skip

    def vector(self, label: str, op: VectorOp, index: int, src: Source, constant: int = 0) -> None:
        """A SNAP or SCORE command."""
        reads = {"P"} if src == Source.P else {f"B{index}"}
        writes = {f"B{index}"} if op == VectorOp.SNAP else {f"score{index}"}
        self.emit(
            "vector", label, reads, writes, op=op, index=index, src=src, combine=Combine.RESIDUAL, n=0,
            norm=Norm.NONE, whole=0, eps=Eps.RMS, weight=0, weight_frac=CONST.frac, gate=0, gate_reg=0,
            out=Out.SLOTS, slot=0, segments=self.p.hidden_blocks, layer=0, constant=constant,
        )  # fmt: skip


class Compiler:
    """Walks the model's layers and emits every unit's commands in order."""

    def __init__(self, p: Params) -> None:
        self.p = p
        self.b = Builder(p)
        self.blocks = 0  # snapshots taken so far
        self.lane_words: dict[tuple[int, str], int] = {}  # of a KDA layer's convolutions and decay

    def run(self) -> Program:
        """The whole token."""
        p, b = self.p, self.b
        m = p.model
        embed_words = -(-m.vocab_size * p.hidden_blocks // p.array_rows)
        base = b.place(Space.WEIGHTS, embed_words, "embed", self._embed_words)
        b.array("embed", base, 1, 1, 0, Func.EMBED, None)
        self._place_lane_words()
        for layer in range(m.num_hidden_layers):
            self._layer(layer)
        b.head = True
        score = self._scores("out", lambda w: w.out_mix)
        self._normed("final", score, lambda w: w.final_norm)
        b.matmul("head", lambda w: w.head, m.vocab_size, p.hidden_blocks, 0, Func.HEAD, None)
        return b.program

    def _embed_words(self, w: ChipWeights) -> list[int]:
        """Embedding rows: a row's blocks in consecutive array rows, several tokens to a word."""
        flat = MxMatrix(w.embed.codes.reshape(-1, 1, BLOCK), w.embed.scale.reshape(-1, 1))
        return [group[0] for group in matrix_words(flat, self.p.array_rows)]

    def _place_lane_words(self) -> None:
        """Lane constants of all KDA layers: convolutions first, so that their history needs no more words than they."""
        words = {name: partial(self._conv_words, name) for name in CONVOLUTIONS} | {"decay": self._decay_words}
        groups = HEAD * self.p.model.kda_num_heads // self.p.array_rows
        for kinds in (CONVOLUTIONS, ("decay",)):
            for layer in (number - 1 for number in self.p.model.kda_layers):
                for kind in kinds:
                    get = lambda w, layer=layer, kind=kind: words[kind](w.layers[layer].attn)  # noqa: E731
                    place = self.b.place(Space.LANE, groups, f"layer.{layer}.{kind}", get)
                    self.lane_words[layer, kind] = place

    # --- residual stream ---
    def _scores(self, label: str, mix: Callable[[ChipWeights], Ints]) -> int | None:
        """Scores of the snapshots (off the critical path); returns the constant's address for the prefix's score."""
        if self.blocks == 0:
            return None
        constant = self.b.constant(f"{label}.mix", mix)
        for i in range(self.blocks):
            self.b.vector(f"{label}.score{i}", VectorOp.SCORE, i, Source.MIX, constant)
        return constant

    def _normed(self, label: str, score: int | None, norm: Callable[[ChipWeights], Ints]) -> None:
        """Mix of the snapshots and the prefix (when there are snapshots), norm, quantise into slots 0.."""
        b, segments = self.b, self.p.hidden_blocks
        weight = b.constant(f"{label}.norm", norm)
        source, n = Source.P, 0
        if score is not None:
            b.vector(f"{label}.score", VectorOp.SCORE, self.blocks, Source.P, score)
            source, n = Source.MIX, self.blocks + 1
        b.flow(
            f"{label}.norm", source, Out.SLOTS, segments=segments, norm=Norm.RMS, whole=True, weight=weight, n=n, slot=0
        )

    def _layer(self, layer: int) -> None:
        m = self.p.model
        at: Callable[[ChipWeights], LayerWeights] = lambda w: w.layers[layer]  # noqa: E731
        scope = f"layer.{layer}"
        score = self._scores(f"{scope}.attn", lambda w: at(w).attn_mix)
        self._normed(f"{scope}.attn", score, lambda w: at(w).attn_norm)
        restart = layer in m.block_starts()
        if restart:
            self.b.vector(f"{scope}.snap", VectorOp.SNAP, self.blocks, Source.P)
            self.blocks += 1
        dest = Dest.P if restart else Dest.P_ADD
        attention = self._kda if m.is_kda(layer) else self._mla
        score = attention(layer, scope, lambda w: at(w).attn, dest, lambda w: at(w).mlp_mix)
        self._normed(f"{scope}.mlp", score, lambda w: at(w).mlp_norm)
        ffn = self._dense if m.is_dense(layer) else self._moe
        ffn(layer, scope, lambda w: at(w).ffn)

    # --- attention ---
    def _kda(self, layer: int, scope: str, at: Getter, dest: Dest, mix: Callable[[ChipWeights], Ints]) -> int | None:
        """KDA: f_a, k and q first, so that the state scan starts while v, beta and the gate are computed."""
        p, b = self.p, self.b
        heads, hidden = p.model.kda_num_heads, p.hidden_blocks
        width = HEAD * heads
        index = p.model.kda_layers.index(layer + 1)
        words = {kind: self.lane_words[layer, kind] for kind in (*CONVOLUTIONS, "decay")}
        b.matmul(f"{scope}.f_a", lambda w: at(w).f_a, HEAD, hidden, 0, Func.LINEAR, Dest.T0)
        b.flow(f"{scope}.f_a", Source.T0, Out.SLOTS, segments=1, slot=2)
        b.matmul(f"{scope}.k", lambda w: at(w).k, width, hidden, 0, Func.CONV, Dest.T1, constant=words["k"])
        b.flow(f"{scope}.k", Source.T1, Out.KDA_K, segments=heads, norm=Norm.L2, eps=Eps.L2)
        b.matmul(f"{scope}.q", lambda w: at(w).q, width, hidden, 0, Func.CONV, Dest.T2, constant=words["q"])
        b.flow(f"{scope}.q", Source.T2, Out.KDA_Q, segments=heads, norm=Norm.L2, eps=Eps.L2)
        b.matmul(f"{scope}.f_b", lambda w: at(w).f_b, width, 1, 2, Func.DECAY, Dest.T3, constant=words["decay"])
        kda = {"KDA_K", "KDA_Q", *b.lanes("T3", 0, width)}
        b.emit("kda", f"{scope}.scan", kda | {f"state{index}"}, {"sums", "alpha"}, op=KdaOp.SCAN, layer=index)
        b.matmul(f"{scope}.v", lambda w: at(w).v, width, hidden, 0, Func.CONV, Dest.T1, constant=words["v"])
        b.matmul(f"{scope}.b", lambda w: at(w).b, heads, hidden, 0, Func.GATE, Dest.T0)
        reads = {"sums", *b.lanes("T1", 0, width), *b.lanes("T0", 0, heads)}
        b.emit("kda", f"{scope}.read", reads, {"O", "u"}, op=KdaOp.READ, layer=index)
        write = {"u", "alpha", "KDA_K", "KDA_Q"}
        b.emit("kda", f"{scope}.write", write, {f"state{index}"}, op=KdaOp.WRITE, layer=index)
        b.matmul(f"{scope}.g", lambda w: at(w).g, width, hidden, 0, Func.GATE, Dest.T2)
        score = self._scores(f"{scope}.mlp", mix)
        o_norm = b.constant(f"{scope}.o_norm", lambda w: at(w).o_norm)
        b.flow(
            f"{scope}.o",
            Source.O,
            Out.SLOTS,
            segments=heads,
            slot=4,
            norm=Norm.RMS,
            eps=Eps.HEAD,
            weight=o_norm,
            gate=2,
        )
        b.matmul(f"{scope}.o", lambda w: at(w).o, p.model.hidden_size, heads, 4, Func.LINEAR, dest)
        return score

    def _tap_words(self, taps: Ints) -> list[int]:
        """Conv taps [channels, 4] as lane-constant words."""
        return [bits(g.ravel(), CONST.width) for g in taps.reshape(-1, self.p.array_rows, 4)]

    def _conv_words(self, name: str, w: KdaWeights) -> list[int]:
        """A convolution's taps as lane-constant words."""
        return self._tap_words(w.taps[name])

    def _decay_words(self, w: KdaWeights) -> list[int]:
        """dt_bias and rate as lane-constant words."""
        four = np.stack([w.dt_bias, w.rate, 0 * w.rate, 0 * w.rate], axis=-1)
        return self._tap_words(four)

    def _mla(self, layer: int, scope: str, at: Getter, dest: Dest, mix: Callable[[ChipWeights], Ints]) -> int | None:
        """Gated MLA, absorbed: the query chain first, the gate while the engine attends."""
        p, b = self.p, self.b
        m = p.model
        heads, hidden, rope = m.num_attention_heads, p.hidden_blocks, m.qk_rope_head_dim
        width = HEAD * heads
        index = m.full_attn_layers.index(layer + 1)
        q_norm = b.constant(f"{scope}.q_a_norm", lambda w: at(w).q_a_norm)
        b.matmul(f"{scope}.q_a", lambda w: at(w).q_a, HEAD, hidden, 0, Func.LINEAR, Dest.T0)
        b.flow(f"{scope}.q_a", Source.T0, Out.SLOTS, segments=1, slot=2, norm=Norm.RMS, eps=Eps.MLA, weight=q_norm)
        b.matmul(f"{scope}.latent", lambda w: at(w).latent, HEAD, hidden, 0, Func.LINEAR, Dest.T1)
        b.matmul(f"{scope}.k_rope", lambda w: at(w).k_rope, rope, hidden, 0, Func.LINEAR, Dest.T3, start=rope * heads)
        c_norm = b.constant(f"{scope}.latent_norm", lambda w: at(w).latent_norm)
        b.flow(
            f"{scope}.latent", Source.T1, Out.CACHE, segments=1, norm=Norm.RMS, eps=Eps.MLA, weight=c_norm, layer=index
        )
        b.matmul(f"{scope}.q_nope", lambda w: at(w).q_nope, width, 1, 2, Func.LINEAR, Dest.T2)
        b.matmul(f"{scope}.q_rope", lambda w: at(w).q_rope, rope * heads, 1, 2, Func.LINEAR, Dest.T3)
        row_scale = b.constant(f"{scope}.row_scale", lambda w: at(w).row_scale)
        b.flow(
            f"{scope}.q_nope", Source.T2, Out.SLOTS, segments=heads, slot=4, weight=row_scale,
            weight_frac=ROWSCALE.frac,
        )  # fmt: skip
        for h in range(heads):
            b.matmul(
                f"{scope}.key{h}", lambda w, h=h: at(w).key[h], HEAD, 1, 4 + h, Func.LINEAR, Dest.T0, start=HEAD * h
            )
        reads = {f"cache{index}", *b.lanes("T0", 0, width), *b.lanes("T3", 0, rope * heads)}
        b.emit("mla", f"{scope}.attend", reads, {"C"}, layer=index)
        b.matmul(f"{scope}.g", lambda w: at(w).g, width, hidden, 0, Func.GATE, Dest.T1)
        score = self._scores(f"{scope}.mlp", mix)
        b.flow(f"{scope}.context", Source.C, Out.SLOTS, segments=heads, slot=2, norm=Norm.DIVIDE)
        for h in range(heads):
            b.matmul(
                f"{scope}.value{h}", lambda w, h=h: at(w).value[h], HEAD, 1, 2 + h, Func.LINEAR, Dest.T2,
                start=HEAD * h,
            )  # fmt: skip
        b.flow(f"{scope}.values", Source.T2, Out.SLOTS, segments=heads, slot=4, gate=1)
        b.matmul(f"{scope}.o", lambda w: at(w).o, m.hidden_size, heads, 4, Func.LINEAR, dest)
        return score

    # --- feed-forward ---
    def _dense(self, layer: int, scope: str, at: Getter) -> None:
        """Dense FFN: hidden in vector registers T0, T1, slots 2.., one down command."""
        p, b = self.p, self.b
        m = p.model
        done = 0
        for reg in (Dest.T0, Dest.T1):
            part = min(p.lanes, m.intermediate_size - done)
            if part <= 0:
                break
            pairs = slice(done // p.array_rows, (done + part) // p.array_rows)
            b.paired(f"{scope}.dense{reg.value}", at, pairs, p.hidden_blocks, 0, reg, 0)
            slot = 2 + done // BLOCK
            b.flow(f"{scope}.dense{reg.value}", Source[reg.name], Out.SLOTS, segments=part // BLOCK, slot=slot)
            done += part
        blocks = m.intermediate_size // BLOCK
        b.matmul(f"{scope}.down", lambda w: at(w).down, m.hidden_size, blocks, 2, Func.LINEAR, Dest.P_ADD)

    def _moe(self, layer: int, scope: str, at: Getter) -> None:
        """Router and latent first; shared experts fill the array while the routed ones are chosen and activated."""
        p, b = self.p, self.b
        m = p.model
        hidden, rows, top_k = p.hidden_blocks, p.array_rows, m.num_experts_per_token
        index = layer - m.first_k_dense_replace
        b.place(Space.ROUTER, 1, f"{scope}.bias", lambda w: [bits(at(w).bias, 16)])
        b.matmul(f"{scope}.router", lambda w: at(w).router, m.num_experts, hidden, 0, Func.GATE, Dest.T0)
        b.emit("router", f"{scope}.route", b.lanes("T0", 0, m.num_experts), {"picked"}, layer=index)
        b.matmul(f"{scope}.z", lambda w: at(w).down, HEAD, hidden, 0, Func.LINEAR, Dest.T1)
        b.flow(f"{scope}.z", Source.T1, Out.SLOTS, segments=1, slot=2)
        shared: Getter = lambda w: at(w).shared  # noqa: E731
        pairs = m.shared_intermediate_size // rows
        early = pairs // 2
        if early:
            b.paired(f"{scope}.shared_a", shared, slice(0, early), hidden, 0, Dest.T2, 0)
        base = b.place(
            Space.WEIGHTS, p.expert_words * m.num_experts, f"{scope}.experts",
            partial(expert_words, lambda w: at(w).experts, rows),
        )  # fmt: skip
        wide = p.lanes >= HEAD * top_k  # both hidden vectors fit T3, else the second goes to T0
        for i in range(top_k):
            reg, start = (Dest.T3, HEAD * i) if wide or i == 0 else (Dest.T0, 0)
            b.array(f"{scope}.expert{i}", base, 2 * HEAD // rows, 1, 2, Func.SITU, reg, start, expert=i + 1)
        b.paired(f"{scope}.shared_b", shared, slice(early, pairs), hidden, 0, Dest.T2, early * rows)
        if wide:
            b.flow(f"{scope}.experts", Source.T3, Out.SLOTS, segments=top_k, slot=6)
        else:
            b.flow(f"{scope}.expert0", Source.T3, Out.SLOTS, segments=1, slot=6)
            b.flow(f"{scope}.expert1", Source.T0, Out.SLOTS, segments=1, slot=7)
        down = 2 * HEAD // rows
        for i in range(top_k):
            b.array(f"{scope}.expert{i}_out", base + down, HEAD // rows, 1, 6 + i, Func.LINEAR, Dest(i), expert=i + 1)
        width = m.shared_intermediate_size // BLOCK
        b.flow(f"{scope}.shared", Source.T2, Out.SLOTS, segments=width, slot=4)
        b.matmul(f"{scope}.shared_out", lambda w: at(w).shared.down, m.hidden_size, width, 4, Func.LINEAR, Dest.P_ADD)
        norm = b.constant(f"{scope}.routed_norm", lambda w: at(w).norm)
        b.flow(
            f"{scope}.routed", Source.MIX, Out.SLOTS, segments=1, slot=3, norm=Norm.RMS, weight=norm,
            combine=Combine.EXPERTS, n=top_k,
        )  # fmt: skip
        b.matmul(f"{scope}.up", lambda w: at(w).up, m.hidden_size, 1, 3, Func.LINEAR, Dest.P_ADD)


def compile_program(p: Params) -> Program:
    """The program of one token for a chip."""
    return Compiler(p).run()


__all__ = ["UNITS", "Placement", "Program", "Step", "compile_program"]
