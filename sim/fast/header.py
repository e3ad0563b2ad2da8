"""``generated.h``: number formats, constants, codes and commands as C++, from golden.fixed and hw.layouts.

Nothing of them is typed again in C++: a width, a code or a command field that changes there changes here, and a field
that C++ names and hw no longer has does not compile.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

from amaranth.lib import data

from golden.fixed import functions, lanes, mla, mx, numbers, router
from hw import layouts, params
from hw.program import UNITS

ENUMS = (
    layouts.Func,
    layouts.Dest,
    layouts.Source,
    layouts.Combine,
    layouts.Norm,
    layouts.VectorOp,
    layouts.Out,
    layouts.Eps,
    layouts.KdaOp,
)
COMMANDS: dict[str, Any] = {
    "array": layouts.ArrayCommand,
    "vector": layouts.VectorCommand,
    "kda": layouts.KdaCommand,
    "mla": layouts.MlaCommand,
    "router": layouts.RouterCommand,
}
assert tuple(COMMANDS) == UNITS
CONSTANTS = {
    "BLOCK": params.BLOCK,
    "HEAD": params.HEAD,
    "SLOTS": params.SLOTS,
    "T_REGS": params.T_REGS,
    "LANE_CONSTS": params.LANE_CONSTS,
    "GUARD": functions.GUARD,
    "EXP2_IN_FRAC": functions.EXP2_IN_FRAC,
    "DOT_FRAC": mx.DOT_FRAC,
    "E8M0_BIAS": mx.E8M0_BIAS,
    "TANH_SCALE_FRAC": lanes.TANH_SCALE_FRAC,
    "SCORE_FACTOR_FRAC": mla.SCALE_FRAC,
    "ROUTER_FACTOR_FRAC": router.SCALE_FRAC,
}


def fields(command: Any) -> list[str]:
    """Names of a command's fields, in order."""
    return [name for name, _ in data.Layout.cast(command)]


def header() -> str:
    """The text of the file."""
    lines = [
        "// Written by sim/fast/header.py.",
        "#pragma once",
        "",
        "#include <variant>",
        "",
        '#include "fixed.h"',
        "",
    ]
    lines += ["namespace nanok3 {", ""]
    for f in numbers.FORMATS.values():
        lines.append(f"constexpr Fixed {f.name.upper()}{{{f.width}, {f.frac}, {str(f.signed).lower()}}};")
    lines += [f"constexpr Int {name} = {value};" for name, value in CONSTANTS.items()]
    lines += [_enum(kind) for kind in ENUMS]
    lines += [_command(unit, command) for unit, command in COMMANDS.items()]
    names = ", ".join(command.__name__ for command in COMMANDS.values())
    lines += [f"using AnyCommand = std::variant<{names}>;", "", "}  // namespace nanok3", ""]
    return "\n".join(lines)


def _enum(kind: Iterable[Any]) -> str:
    """One kind of code; as wide as a field of a command."""
    codes = ", ".join(f"{member.name} = {member.value}" for member in kind)
    return f"enum class {getattr(kind, '__name__', '')} : Int {{ {codes} }};"


def _command(unit: str, command: Any) -> str:
    """A command as a row of 64-bit fields."""
    parts = [f'  static constexpr const char* UNIT = "{unit}";']
    for name, shape in data.Layout.cast(command):
        kind = shape.shape.__name__ if isinstance(shape.shape, type) and issubclass(shape.shape, Enum) else "Int"
        parts.append(f"  {kind} {name};")
    return "\n".join([f"struct {command.__name__} {{", *parts, "};"])
