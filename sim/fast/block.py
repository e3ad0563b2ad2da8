"""The parameter block: everything that the compiled executor is told about a chip, as named arrays of int64.

Shapes come from the chip's parameters, tables and factors from golden.fixed, memories from the image (unpacked once,
so that no token unpacks them again), commands from the program.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from golden.config import ModelConfig
from golden.fixed import functions, lanes, mla, router
from golden.fixed.mx import BLOCK, E2M1_HALVES, e4m3_units
from golden.fixed.numbers import Ints, ints
from hw.image import ImageError, Section, sections
from hw.layouts import Eps, Space
from hw.params import HEAD, Params
from hw.program import UNITS, Program
from sim.fast.header import COMMANDS, fields

Image = Mapping[Space, Sequence[int]]


def parameter_block(p: Params, program: Program, image: Image) -> dict[str, Ints]:
    """Everything about one chip; raises ImageError for an image of another size, RuntimeError for a deadlock."""
    parts = (shapes(p), factors(p.model), tables(), memories(p, program, image), commands(program))
    return {name: np.ascontiguousarray(values) for part in parts for name, values in part.items()}


def shapes(p: Params) -> dict[str, Ints]:
    """Sizes of registers and memories."""
    names = ("array_rows", "lanes", "snapshots", "kda_layers", "mla_layers", "moe_layers", "expert_words")
    model = (
        "hidden_size", "vocab_size", "max_positions", "kda_num_heads", "num_attention_heads", "qk_rope_head_dim",
        "num_experts", "num_experts_per_token",
    )  # fmt: skip
    return {n: ints([getattr(p, n)]) for n in names} | {n: ints([getattr(p.model, n)]) for n in model}


def factors(m: ModelConfig) -> dict[str, Ints]:
    """Constants of the arithmetic that depend on the model, rounded as golden.fixed rounds them."""
    tanh = math.floor(2.0 / m.activation_situ_linear_beta * 2**lanes.TANH_SCALE_FRAC + 0.5)  # lanes.situ_linear
    routed = math.floor(m.routed_scaling_factor * 2**router.SCALE_FRAC + 0.5)  # router.route
    eps = {Eps.RMS: m.rms_norm_eps, Eps.MLA: m.mla_norm_eps, Eps.L2: m.l2_norm_eps, Eps.HEAD: m.rms_norm_eps * HEAD}
    return {
        "situ.linear_beta": ints([m.activation_situ_linear_beta]),
        "situ.tanh_factor": ints([tanh]),
        "decay.factor": ints([lanes.decay_factor(m.gate_lower_bound)]),
        "mla.score_factor": ints([mla.score_factor(m.qk_nope_head_dim, m.qk_rope_head_dim)]),
        "router.factor": ints([routed]),
        "eps": np.array([eps[kind] for kind in sorted(eps, key=lambda kind: kind.value)], np.float64).view(np.int64),
    }


def tables() -> dict[str, Ints]:
    """Piecewise quadratics, the sigmoid's regions and the values of E4M3 codes."""
    out = {"mx.e4m3_units": e4m3_units(np.arange(256))}
    for f in (functions.SIGMOID, functions.EXP2, functions.RSQRT, functions.RECIP):
        out[f"{f.name}.table"] = ints(f.table).ravel()
        out[f"{f.name}.dx_bits"], out[f"{f.name}.out_frac"] = ints([f.dx_bits]), ints([f.out_frac])
    regions, first = [], 0
    for start, segments, width in functions.SIGMOID_REGIONS:
        regions.append([start << functions.SIGMOID_IN_FRAC, first, int(math.log2(width)) + functions.SIGMOID_IN_FRAC])
        first += segments
    return out | {"sigmoid.regions": ints(regions).ravel()}


def memories(p: Params, program: Program, image: Image) -> dict[str, Ints]:
    """Contents of the loadable memories, one value per element."""
    sizes = sections(p, program)
    raw = {space: _bytes(space, image[space], size) for space, size in sizes.items()}
    codes = raw[Space.WEIGHTS][:, : p.array_rows * BLOCK // 2]
    elements = np.stack([codes & 15, codes >> 4], axis=-1)  # the first in the low half
    return {
        "weights.words": ints([sizes[Space.WEIGHTS].words]),
        "weights.halves": E2M1_HALVES[elements].ravel(),
        "weights.scale": ints(raw[Space.WEIGHTS][:, p.array_rows * BLOCK // 2 :]).ravel(),
        "vector.words": ints([sizes[Space.VECTOR].words]),
        "vector.constants": _constants(raw[Space.VECTOR]),
        "lane.words": ints([sizes[Space.LANE].words]),
        "lane.constants": _constants(raw[Space.LANE]),
        "router.bias": _constants(raw[Space.ROUTER]),
    }


def _bytes(space: Space, words: Sequence[int], size: Section) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Words of a memory as bytes [words, bytes], the low ones first."""
    if len(words) != size.words:
        raise ImageError(f"{space.name}: {len(words)} words given, the chip has {size.words}")
    length = size.width // 8
    try:
        return np.frombuffer(b"".join(w.to_bytes(length, "little") for w in words), np.uint8).reshape(-1, length)
    except OverflowError:
        raise ImageError(f"{space.name}: a word does not fit {size.width} bits") from None


def _constants(raw: np.ndarray[Any, np.dtype[np.uint8]]) -> Ints:
    """Signed 16-bit constants, flattened."""
    return ints(raw.reshape(-1).view("<i2"))


def commands(program: Program) -> dict[str, Ints]:
    """Each unit's commands as rows of fields, and the units in an order that respects what commands wait for."""
    order = execution_order(program)
    out = {f"commands.{unit}": ints([_row(unit, s.command) for s in program.units[unit]]).ravel() for unit in UNITS}
    out["program.order"] = ints([UNITS.index(unit) for unit, _ in order])
    out["program.head"] = ints([program.units[unit][index].head for unit, index in order])
    return out


def _row(unit: str, command: Mapping[str, Any]) -> list[int]:
    values = [command[name] for name in fields(COMMANDS[unit])]
    return [int(v.value) if isinstance(v, Enum) else int(v) for v in values]


def execution_order(program: Program) -> list[tuple[str, int]]:
    """(unit, index) of every command; RuntimeError when a command waits for what never comes."""
    done = {unit: 0 for unit in UNITS}
    order: list[tuple[str, int]] = []

    def ready(unit: str) -> bool:
        if done[unit] == len(program.units[unit]):
            return False
        return all(done[other] >= count for other, count in program.units[unit][done[unit]].need.items())

    while unit := next(filter(ready, UNITS), None):
        order.append((unit, done[unit]))
        done[unit] += 1
    for unit in UNITS:
        if done[unit] < len(program.units[unit]):
            raise RuntimeError(f"the program deadlocks: {unit} waits at {program.units[unit][done[unit]].label}")
    return order
