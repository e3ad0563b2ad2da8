"""From what a netlist's nets did in a simulation (SAIF) to the activity of its cells' pins, which power needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from flow.netlist import NetlistModule

SCOPE = re.compile(r"^\s*\(INSTANCE (?:\"[^\"]*\" )?(\S+)$")
COUNT = re.compile(r"^\s*\((\S+) \(T0 \d+\) \(T1 (\d+)\).*\(TC (\d+)\)\)")
CELL = re.compile(r"^\s*(\w+)\s+(\\\S+\s|\w+)\s*\(\s*(\..*?)\)\s*;", flags=re.M | re.S)
CONNECTION = re.compile(r"\.(\\\S+\s|\w+)\s*\(([^()]*)\)")
WIDE = re.compile(r"^\s*(?:input|output|wire)\s+\[(\d+):(\d+)\]\s*(\\\S+|\w+)\s*;", flags=re.M)
CONSTANT = re.compile(r"\d+'[bh]")
ASSIGNMENT = re.compile(r"^\s*assign\s+(.*?)\s*=\s*(.*?)\s*;", flags=re.M)


@dataclass(frozen=True)
class Toggles:
    """Share of time at 1, and changes per second."""

    duty: float
    density_hz: float


def plain(name: str) -> str:
    """A name without Verilog's or SAIF's escapes."""
    return name.replace("\\", "").replace(" ", "")


def read_saif(file: Path, scope: tuple[str, ...], begin_ps: int = 0) -> dict[str, Toggles]:
    """Activity of the nets in and below one scope of Verilator's SAIF file, whose recording began at ``begin_ps``.

    Nets below the scope have their instances' names before theirs ("row_3/lane_5/_12_"). Verilator counts a file's
    duration from time 0; the time before the recording is taken off.
    """
    nets: dict[str, Toggles] = {}
    at: list[str] = []
    duration = 0.0
    with file.open() as lines:
        for line in lines:
            if (found := COUNT.match(line)) is not None:
                if tuple(at[: len(scope)]) == scope:
                    ones, changes = int(found.group(2)) * 1e-12, int(found.group(3))
                    name = "/".join([*at[len(scope) :], plain(found.group(1))])
                    nets[name] = Toggles(ones / duration, changes / duration)
            elif found := SCOPE.match(line):
                at.append(plain(found.group(1)))
            elif found := re.match(r"\(DURATION (\d+)\)", line):
                duration = (int(found.group(1)) - begin_ps) * 1e-12
            elif line.strip() == ")" and at and len(line.rstrip()) - 1 == len(at):
                at.pop()
    return nets


def bits(expression: str, widths: Mapping[str, tuple[int, int]]) -> list[str]:
    """Nets of a connection, highest bit first: a name, a bit, a part, a whole bus, or a list of these."""
    expression = expression.strip()
    if expression.startswith("{"):
        return [net for part in expression.strip("{} \n").split(",") for net in bits(part, widths)]
    name = plain(expression)
    if part := re.fullmatch(r"(.*)\[(\d+):(\d+)\]", name):
        return [f"{part.group(1)}[{bit}]" for bit in range(int(part.group(2)), int(part.group(3)) - 1, -1)]
    if name in widths:
        high, low = widths[name]
        return [f"{name}[{bit}]" for bit in range(high, low - 1, -1)]
    return [name] if name else []


@dataclass(frozen=True)
class Cell:
    """An instance: its name, its cell or module, and the net of each connected pin."""

    name: str
    kind: str
    pins: tuple[tuple[str, str], ...]


def widths_of(module: str) -> dict[str, tuple[int, int]]:
    """(highest bit, lowest bit) of a module's buses."""
    return {plain(name): (int(high), int(low)) for high, low, name in WIDE.findall(module)}


def assignments(module: str) -> Iterator[tuple[str, str]]:
    """(net, net that it is) of every bit of a module's assignments."""
    widths = widths_of(module)
    for target, value in ASSIGNMENT.findall(module):
        yield from zip(bits(target, widths), bits(value, widths), strict=True)


def cells(module: str, *, constants: bool = False) -> Iterator[Cell]:
    """Instances in a module's Verilog; pins at a constant are left out if not asked for."""
    widths = widths_of(module)
    body = module.split(");", 1)[1]
    for found in CELL.finditer(body):
        connected: list[tuple[str, str]] = []
        for pin, expression in CONNECTION.findall(found.group(3)):
            nets = bits(expression, widths)
            one = len(nets) == 1 and not expression.strip().startswith("{")
            names = [plain(pin)] if one else [f"{plain(pin)}[{bit}]" for bit in range(len(nets) - 1, -1, -1)]
            pairs = zip(names, nets, strict=True)
            connected += [(name, net) for name, net in pairs if constants or not CONSTANT.match(net)]
        yield Cell(plain(found.group(2)), found.group(1), tuple(connected))


def pins(modules: Mapping[str, NetlistModule], top: str) -> Iterator[tuple[str, str]]:
    """(instance/pin, net) of every connected pin of the leaves below ``top``, both with the instances above."""
    known: dict[str, list[Cell]] = {}

    def visit(name: str, above: str) -> Iterator[tuple[str, str]]:
        if name not in known:
            known[name] = list(cells(modules[name].text))
        for cell in known[name]:
            if cell.kind in modules:
                yield from visit(cell.kind, f"{above}{cell.name}/")
            else:
                for pin, net in cell.pins:
                    yield f"{above}{cell.name}/{pin}", f"{above}{net}"

    return visit(top, "")


def write(modules: Mapping[str, NetlistModule], top: str, nets: Mapping[str, Toggles], file: Path) -> tuple[int, int]:
    """Write "pin,density_hz,duty" of every pin whose net is known; returns (known, all) pins."""
    known = total = 0
    with file.open("w") as out:
        for pin, net in pins(modules, top):
            total += 1
            if net in nets:
                known += 1
                out.write(f"{pin},{nets[net].density_hz:.6g},{nets[net].duty:.6g}\n")
    return known, total
