"""Taps of the chip: where its RTL holds the value of every stage boundary, and a run that reads them.

``stages`` is the table: a tap's name (golden.taps), the command of the program that completes it, the register that
holds it and its format.  The bench (sim.taps_bench) reads that register in the cycle after the command's ``done``,
in a simulation compiled with the registers readable (sim/taps.vlt); the chip and its Verilog stay as they are.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from golden.fixed.lanes import argmax
from golden.fixed.numbers import CACHE, KEY, NRM, QUERY, SCORE, SIG, STATE, UNIT, VEC, Fixed, Ints, to_float
from golden.fixed.twin import LN2
from hw.layouts import EXPERT_WEIGHT_BITS, Func
from hw.params import HEAD, Params
from hw.program import Program, Step
from sim.verilator import BenchFailed, Build, build

VISIBLE = Path(__file__).with_name("taps.vlt")
WEIGHT = Fixed("weight", EXPERT_WEIGHT_BITS, UNIT.frac, signed=False)  # UNIT, up to twice the routed scaling factor


class Place(enum.StrEnum):
    """Where the chip holds a value; the bench has a reader of each name."""

    VECTOR = "vector"  # the lanes of T0..T3 that the array command names
    PREFIX = "prefix"  # P
    SUMS = "sums"  # the array rows' sums, one row group after the other, as they are added to P or go to the head
    MIXTURE = "mixture"  # the vector unit's working registers, once a weighted sum is in them
    WORK = "work"  # the same at the end of a command: what was quantised or sent on
    KEY = "key"
    QUERY = "query"
    BETA = "beta"
    READ_OUT = "read_out"
    STATE = "state"  # memory
    LATENT = "latent"  # cache memory, entry of this position
    SHARED_KEY = "shared_key"  # the rest of that entry
    QUERY_ABSORBED = "query_absorbed"  # wires from T0: the rounded query has no register
    QUERY_ROPE = "query_rope"  # wires from T3
    SCORES = "scores"  # memory, positions up to this one
    EXPERTS = "experts"
    EXPERT_WEIGHTS = "expert_weights"  # written two cycles after the experts


WIRES = (Place.QUERY_ABSORBED, Place.QUERY_ROPE)
"""Places that are no registers or memories but follow from one without a clock edge."""

WITHOUT_REGISTER = {
    "q_abs": "rounded to QUERY on the wires from T0 into the MLA lanes",
    "q_rope": "rounded to QUERY on the wires from T3 into the MLA lanes",
    "ffn_out": "of a MoE layer: shared and routed part are added to P one after the other; the bench adds them",
}
"""Taps that no register of the chip holds, and what is shown in their place; all others are read where they stand."""


@dataclass(frozen=True)
class Stage:
    """A tap on the chip: complete with commands ``labels`` of ``unit``, whose results are put one after the other.

    ``shape`` is the value's; -1 stands for the positions seen.  ``axes``: the chip's order of them, outermost first.
    ``fmt`` None: whole numbers.  ``factor``: what the chip leaves out (as in golden.fixed.twin).  ``plus``: the tap
    whose value is added; the chip adds both to P and never holds their sum.
    """

    name: str
    unit: str
    labels: tuple[str, ...]
    place: Place
    fmt: Fixed | None
    shape: tuple[int, ...]
    axes: tuple[int, ...] | None = None
    factor: float = 1.0
    plus: str | None = None

    def value(self, raw: Ints) -> np.ndarray:
        """Raw lanes [n] (unsigned, n at least what the shape needs) as real values [1, *shape], exact."""
        shape = self.shape
        stored = tuple(shape[a] for a in self.axes) if self.axes else shape
        size = -1 if -1 in shape else math.prod(shape)
        values = (raw if size < 0 else raw[:size]).reshape(stored)
        if self.axes:
            values = values.transpose(np.argsort(self.axes))
        if self.fmt is None:
            return values[None]
        return to_float(decoded(values, self.fmt), self.fmt)[None] * self.factor


def decoded(raw: Ints, fmt: Fixed) -> Ints:
    """The low bits of raw words as integers of ``fmt``; bits above are no part of it."""
    low = raw & ((1 << fmt.width) - 1)
    return low - ((low > fmt.max).astype(np.int64) << fmt.width) if fmt.signed else low


# --- the table ---


def stages(p: Params) -> list[Stage]:
    """Every tap of a chip, in the order in which the model computes them."""
    m = p.model
    hidden = (m.hidden_size,)
    table = [Stage("embedding", "array", ("embed",), Place.PREFIX, VEC, hidden)]
    for layer in range(m.num_hidden_layers):
        attention = _kda(p) if m.is_kda(layer) else _mla(p)
        ffn = _dense(p) if m.is_dense(layer) else _moe(p)
        mixed = [any(start < end for start in m.block_starts()) for end in (layer, layer + 1)]
        inner = [*_normed("attn", mixed[0], hidden), *attention, *_normed("mlp", mixed[1], hidden), *ffn]
        table += [_scoped(stage, f"layer.{layer}") for stage in inner]
    return [
        *table,
        *_normed("final", True, hidden),
        Stage("logits", "array", ("head",), Place.SUMS, VEC, (m.vocab_size,)),
    ]


def _scoped(stage: Stage, scope: str) -> Stage:
    """A layer's stage with whole names."""
    plus = f"{scope}.{stage.plus}" if stage.plus else None
    labels = tuple(f"{scope}.{label}" for label in stage.labels)
    return Stage(**{**vars(stage), "name": f"{scope}.{stage.name}", "labels": labels, "plus": plus})


def _normed(which: str, mixed: bool, hidden: tuple[int, ...]) -> list[Stage]:
    """Input and norm of a sub-layer or of the head; before the first snapshot the input is P itself."""
    label = (f"{which}.norm",)
    return [
        Stage(f"{which}_in", "vector", label, Place.MIXTURE if mixed else Place.PREFIX, VEC, hidden),
        Stage(f"{which}_norm", "vector", label, Place.WORK, NRM, hidden),
    ]


def _kda(p: Params) -> list[Stage]:
    """Stages of a KDA layer's attention."""
    m = p.model
    heads, hidden = m.kda_num_heads, (m.hidden_size,)
    flat, split = (HEAD * heads,), (heads, HEAD)
    scale = m.kda_head_dim**-0.5
    return [
        Stage("q_conv", "array", ("q",), Place.VECTOR, VEC, flat),
        Stage("k_conv", "array", ("k",), Place.VECTOR, VEC, flat),
        Stage("v_conv", "array", ("v",), Place.VECTOR, VEC, flat),
        Stage("q", "vector", ("q",), Place.QUERY, KEY, split, factor=scale),
        Stage("k", "vector", ("k",), Place.KEY, KEY, split),
        Stage("v", "array", ("v",), Place.VECTOR, VEC, split),
        Stage("alpha", "array", ("f_b",), Place.VECTOR, UNIT, split),
        Stage("beta", "kda", ("read",), Place.BETA, UNIT, (heads,)),
        Stage("o", "kda", ("read",), Place.READ_OUT, NRM, split, factor=scale),
        Stage("gate", "array", ("g",), Place.VECTOR, SIG, flat),
        Stage("gated", "vector", ("o",), Place.WORK, NRM, flat),
        Stage("state", "kda", ("write",), Place.STATE, STATE, (heads, HEAD, HEAD), axes=(1, 0, 2)),
        Stage("attn_out", "array", ("o",), Place.SUMS, VEC, hidden),
        Stage("prefix_attn", "array", ("o",), Place.PREFIX, VEC, hidden),
    ]


def _mla(p: Params) -> list[Stage]:
    """Stages of an MLA layer's attention."""
    m = p.model
    heads, rope, hidden = m.num_attention_heads, m.qk_rope_head_dim, (m.hidden_size,)
    flat, split = (HEAD * heads,), (heads, HEAD)
    values = tuple(f"value{h}" for h in range(heads))
    return [
        Stage("q_nope", "array", ("q_nope",), Place.VECTOR, VEC, split),
        Stage("q_rope", "mla", ("attend",), Place.QUERY_ROPE, QUERY, (heads, rope)),
        Stage("c", "vector", ("latent",), Place.LATENT, CACHE, (HEAD,)),
        Stage("k_r", "vector", ("latent",), Place.SHARED_KEY, CACHE, (rope,)),
        Stage("q_abs", "mla", ("attend",), Place.QUERY_ABSORBED, QUERY, split),
        Stage("scores", "mla", ("attend",), Place.SCORES, SCORE, (heads, -1), axes=(1, 0), factor=LN2),
        Stage("context", "vector", ("context",), Place.WORK, NRM, split),
        Stage("o", "array", values, Place.VECTOR, VEC, flat),
        Stage("gate", "array", ("g",), Place.VECTOR, SIG, flat),
        Stage("gated", "vector", ("values",), Place.WORK, NRM, flat),
        Stage("attn_out", "array", ("o",), Place.SUMS, VEC, hidden),
        Stage("prefix_attn", "array", ("o",), Place.PREFIX, VEC, hidden),
    ]


def _dense(p: Params) -> list[Stage]:
    """Stages of a dense FFN, whose hidden vector fills T0 before T1."""
    m = p.model
    hidden = (m.hidden_size,)
    parts = tuple(f"dense{i}" for i in range(-(-m.intermediate_size // p.lanes)))
    return [
        Stage("dense.hidden", "array", parts, Place.VECTOR, VEC, (m.intermediate_size,)),
        Stage("ffn_out", "array", ("down",), Place.SUMS, VEC, hidden),
        Stage("prefix", "array", ("down",), Place.PREFIX, VEC, hidden),
    ]


def _moe(p: Params) -> list[Stage]:
    """Stages of a latent MoE."""
    m = p.model
    top_k, hidden = m.num_experts_per_token, (m.hidden_size,)
    outs = tuple(f"expert{i}_out" for i in range(top_k))
    shared = ("shared_a", "shared_b") if m.shared_intermediate_size // p.array_rows > 1 else ("shared_b",)
    return [
        Stage("router", "array", ("router",), Place.VECTOR, SIG, (m.num_experts,)),
        Stage("experts", "router", ("route",), Place.EXPERTS, None, (top_k,)),
        Stage("expert_weights", "router", ("route",), Place.EXPERT_WEIGHTS, WEIGHT, (top_k,)),
        Stage("z", "array", ("z",), Place.VECTOR, VEC, (HEAD,)),
        Stage("expert_out", "array", outs, Place.VECTOR, VEC, (top_k, HEAD)),
        Stage("routed", "vector", ("routed",), Place.MIXTURE, VEC, (HEAD,)),
        Stage("shared.hidden", "array", shared, Place.VECTOR, VEC, (m.shared_intermediate_size,)),
        Stage("shared_out", "array", ("shared_out",), Place.SUMS, VEC, hidden),
        Stage("ffn_out", "array", ("up",), Place.SUMS, VEC, hidden, plus="shared_out"),
        Stage("prefix", "array", ("up",), Place.PREFIX, VEC, hidden),
    ]


# --- when and where in the program ---


@dataclass(frozen=True)
class Reading:
    """What the bench reads once ``unit`` has completed ``count`` commands of a token: part ``part`` of tap ``name``.

    ``first`` lanes or words are skipped; ``size`` of them are read (VECTOR, STATE) from register ``register``.
    """

    name: str
    part: int
    place: str
    unit: str
    count: int
    register: int = 0
    first: int = 0
    size: int = 0


def readings(p: Params, program: Program) -> list[Reading]:
    """All readings of a token; a stage whose command the program does not have, or has twice, is an error."""
    found = []
    for stage in stages(p):
        for part, label in enumerate(stage.labels):
            steps = program.units[stage.unit]
            at = [i for i, step in enumerate(steps) if step.label == label]
            if len(at) != 1:
                raise ValueError(f"stage {stage.name}: {len(at)} commands {label!r} of unit {stage.unit}")
            where = _where(p, stage.place, steps[at[0]])
            found.append(Reading(stage.name, part, str(stage.place), stage.unit, at[0] + 1, **where))
    return found


def _where(p: Params, place: Place, step: Step) -> dict[str, int]:
    """The part of a register or memory that a command wrote, from the command's own fields."""
    command = step.command
    if place == Place.VECTOR:
        groups = command["groups"] // 2 if command["func"] == Func.SITU else command["groups"]
        first = command["group0"] * p.array_rows
        return {"register": command["dest"].value, "first": first, "size": groups * p.array_rows}
    if place == Place.STATE:
        return {"first": command["layer"] * HEAD, "size": HEAD}
    if place in (Place.LATENT, Place.SHARED_KEY):
        return {"first": command["layer"] * (p.model.max_positions // p.mla_positions)}
    return {}


# --- a run ---


def compiled(sources: Sequence[Path], name: str, folder: Path) -> Build:
    """The chip's simulation with readable registers, compiled once per design, apart from the ordinary one."""
    return build([VISIBLE, *sources], name, folder=folder)


def record(
    made: Build, p: Params, program: Program, image: Path, tokens: Sequence[int], timeout: float = 3600.0
) -> list[dict[str, np.ndarray]]:
    """Run the chip over ``tokens``, teacher-forced: every position's taps, real values (exact) shaped as the twin's.

    Raises BenchFailed when a token that the chip put out is not the one of its largest logit.
    """
    given: dict[str, Any] = {
        "image": str(image.resolve()),
        "tokens": list(tokens),
        "lengths": {unit: len(steps) for unit, steps in program.units.items()},
        "readings": [vars(reading) for reading in readings(p, program)],
    }
    with TemporaryDirectory() as folder:
        out = Path(folder) / "taps.npz"
        run = made.simulate("sim.taps_bench", parameters={**given, "out": str(out)}, timeout=timeout)[0]
        with np.load(out) as raw:
            positions = [_values(p, raw, position) for position in range(len(tokens))]
    for position, (values, chosen) in enumerate(zip(positions, run.reports["chosen"], strict=True)):
        if (largest := int(argmax(values["logits"][0]))) != chosen:
            raise BenchFailed(f"position {position}: the chip put out token {chosen}, its largest logit is {largest}")
    return positions


def _values(p: Params, raw: Any, position: int) -> dict[str, np.ndarray]:
    """One position's taps from the bench's raw lanes, named ``position:tap:part``."""
    values: dict[str, np.ndarray] = {}
    for stage in stages(p):
        parts = [raw[f"{position}:{stage.name}:{part}"] for part in range(len(stage.labels))]
        values[stage.name] = stage.value(np.concatenate(parts))
        if stage.plus:
            values[stage.name] = values[stage.name] + values[stage.plus]
    return values
