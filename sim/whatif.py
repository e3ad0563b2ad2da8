"""What if: a chip with some of its derived parameters replaced, whether or not RTL of it can be generated.

A knob is ``array.rows``, ``mla.positions``, ``model.<shape>``, any field of hw/timing.py by its path (such as
``array.latency.conv``), or one of ``PROJECTED``.  A change that the generator can build goes through hw.params, so that
the program is that chip's; everything else is a projection: today's program with other times.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from golden.config import ConfigError
from hw.params import HEAD, Params
from hw.program import Program, compile_program
from hw.timing import Timing, timing
from sim.timing import Timer

BUILT = {"array.rows": "array_rows", "mla.positions": "mla_positions"}  # knobs of hw.params
MODEL = "model."
MOST = 4096  # of any time
MAY_BE_NONE = (  # times of what could be left out altogether
    "array.fetch", "vector.constant", "kda.drain", "mla.pipeline", "mla.unread", "router.biases", "loop.start",
    "loop.count", "loop.head", "loop.token", "model.first_k_dense_replace",
)  # fmt: skip
OTHERS = {
    "array.rows": "matmul rows: a multiple of 8",
    "array.columns": "matmul columns: a multiple of 32",
    "mla.positions": "cached positions read per cycle",
    "vector.lanes": "multipliers of the vector unit",
    "kda.rows": "key rows per step of the KDA engine",
    "kda.ports": "ports of the KDA state's memory: 1 or 2",
    "overlap": "1: units work at the same time; 0: one command at a time",
}


@dataclass(frozen=True)
class Chip:
    """A chip as the simulator runs it; ``projection``: what no RTL can be generated for, empty when it can."""

    p: Params
    program: Program
    t: Timing
    overlap: bool
    projection: tuple[str, ...]

    def timer(self) -> Timer:
        """Its positions."""
        return Timer(self.p, self.program, self.t, self.overlap)


def paths(t: Any, prefix: str = "") -> dict[str, int]:
    """Every number of a timing, by path."""
    found: dict[str, int] = {}
    for f in dataclasses.fields(t):
        value = getattr(t, f.name)
        if dataclasses.is_dataclass(value):
            found |= paths(value, f"{prefix}{f.name}.")
        elif isinstance(value, int):
            found[prefix + f.name] = value
    return found


def replaced(t: Any, path: str, value: int) -> Any:
    """A timing with the number at ``path`` replaced."""
    name, _, rest = path.partition(".")
    new = replaced(getattr(t, name), rest, value) if rest else value
    return dataclasses.replace(t, **{name: new})


def parse(settings: Sequence[str], p: Params) -> dict[str, int]:
    """Knobs from ``knob=value`` texts; raises ConfigError with one line."""
    known = {*OTHERS, *paths(timing(p))}
    shapes = {f.name for f in dataclasses.fields(p.model) if isinstance(getattr(p.model, f.name), int)}
    knobs: dict[str, int] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not re.fullmatch(r"-?[0-9]{1,9}", text):
            raise ConfigError(f"--set takes knob=number, such as array.rows=32, not {setting!r}")
        if name not in known and name.removeprefix(MODEL) not in (shapes if name.startswith(MODEL) else ()):
            close = sorted(k for k in known if k.split(".")[0] == name.split(".")[0]) or sorted(OTHERS)
            raise ConfigError(f"unknown knob {name!r}: use {', '.join(close)}, or {MODEL}<shape>")
        if name in knobs:
            raise ConfigError(f"{name} is set twice")
        knobs[name] = int(text)
    return knobs


def apply(p: Params, knobs: Mapping[str, int]) -> Chip:
    """The chip ``p`` with knobs turned; raises ConfigError for an impossible value."""
    projection: list[str] = []
    shapes = {name.removeprefix(MODEL): value for name, value in knobs.items() if name.startswith(MODEL)}
    if shapes:
        for name, value in shapes.items():
            least = 0 if MODEL + name in MAY_BE_NONE else 1
            _check(MODEL + name, value >= least, f"at least {least}")
        model = dataclasses.replace(p.model, **shapes)  # type: ignore[arg-type]
        p = dataclasses.replace(p, model=model)  # refused when no chip can be made: there is no program to time
    factors: dict[str, int] = {}
    for name, attribute in BUILT.items():
        if name not in knobs:
            continue
        _check(name, knobs[name] >= 1, "at least 1")
        try:
            p = dataclasses.replace(p, **{attribute: knobs[name]})  # type: ignore[arg-type]
        except ConfigError:
            p, factors[name] = _nearest(p, name, knobs[name])
            projection.append(f"{name}={knobs[name]}")
    t = timing(p)
    if "array.rows" in factors:
        t = replaced(t, "array.word_groups", factors["array.rows"])
    if "mla.positions" in factors:
        t = replaced(t, "mla.positions", knobs["mla.positions"])
    overlap = True
    program = compile_program(p)
    turned = {"array.word_groups": "array.rows"} if "array.rows" in factors else {}  # what each number was set by
    for name, value in knobs.items():
        if name in BUILT or name.startswith(MODEL):
            continue
        if name == "overlap":
            _check(name, value in (0, 1), "0 or 1")
            overlap, changed = bool(value), value == 0
        else:
            path, new = _projected(p, program, t, name, value)
            other = turned.setdefault(path, name)
            _check(name, other == name, f"left out beside {other}: both set {path}")
            t, changed = replaced(t, path, new), paths(t)[path] != new
        if changed:
            projection.append(f"{name}={value}")
    return Chip(p, program, t, overlap, tuple(projection))


def _check(name: str, ok: bool, allowed: str) -> None:
    if not ok:
        raise ConfigError(f"{name} must be {allowed}")


def _nearest(p: Params, name: str, value: int) -> tuple[Params, int]:
    """The largest chip that can be generated whose rows divide ``value``, and how many of its row groups make one."""
    if name == "mla.positions":
        _check(name, value <= p.model.max_positions, f"1 to {p.model.max_positions}")
        return p, 1
    for rows in (32, 16, 8):
        try:
            built = dataclasses.replace(p, array_rows=rows)
        except ConfigError:
            continue
        if value > rows and value % rows == 0 and value <= p.model.vocab_size:
            return built, value // rows
    raise ConfigError(f"{name} must be a multiple of 8 up to {p.model.vocab_size}, not {value}")


def _projected(p: Params, program: Program, t: Timing, name: str, value: int) -> tuple[str, int]:
    """The number of a timing that a knob sets, and what to."""
    if name == "array.columns":
        most = 32 * max(step.command["blocks"] for step in program.units["array"])
        _check(name, 32 <= value <= most and value % 32 == 0, f"a multiple of 32 up to {most}, the longest row")
        return "array.word_blocks", value // 32
    if name == "vector.lanes":
        _check(name, 1 <= value <= p.lanes, f"1 to {p.lanes}, the elements of a vector register")
        return "vector.passes", -(-p.lanes // value)
    if name == "kda.rows":
        _check(name, 1 <= value <= t.kda.keys, f"1 to {t.kda.keys}")
        return "kda.width", value
    if name == "kda.ports":
        _check(name, value in (1, 2), "1 or 2")
        return "kda.write", 3 - value
    least = 0 if name in MAY_BE_NONE else 1
    most = {"kda.keys": HEAD, "kda.width": t.kda.keys, "vector.score_take": t.vector.score}.get(name, MOST)
    _check(name, least <= value <= most, f"{least} to {most:,}")
    return name, value
