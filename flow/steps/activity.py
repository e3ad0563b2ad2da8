"""From what a netlist's nets did in a simulation (SAIF) to the activity of its cells' pins, which power needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

SCOPE = re.compile(r"^\s*\(INSTANCE (?:\"[^\"]*\" )?(\S+)$")
COUNT = re.compile(r"^\s*\((\S+) \(T0 \d+\) \(T1 (\d+)\).*\(TC (\d+)\)\)")
CELL = re.compile(r"^\s*(\w+)\s+(\\\S+\s|\w+)\s*\(\s*(\..*?)\)\s*;", flags=re.M | re.S)
CONNECTION = re.compile(r"\.(\\\S+\s|\w+)\s*\(([^()]*)\)")
WIDE = re.compile(r"^\s*(?:input|output|wire)\s+\[(\d+):(\d+)\]\s*(\\\S+|\w+)\s*;", flags=re.M)
CONSTANT = re.compile(r"\d+'[bh]")


@dataclass(frozen=True)
class Toggles:
    """Share of time at 1, and changes per second."""

    duty: float
    density_hz: float


def plain(name: str) -> str:
    """A name without Verilog's or SAIF's escapes."""
    return name.replace("\\", "").replace(" ", "")


def read_saif(file: Path, scope: tuple[str, ...], begin_ps: int = 0) -> dict[str, Toggles]:
    """Activity of the nets of one scope of Verilator's SAIF file, whose recording began at ``begin_ps``.

    Verilator counts a file's duration from time 0; the time before the recording is taken off.
    """
    nets: dict[str, Toggles] = {}
    at: list[str] = []
    duration = 0.0
    for line in file.read_text().splitlines():
        if found := SCOPE.match(line):
            at.append(plain(found.group(1)))
        elif found := re.match(r"\(DURATION (\d+)\)", line):
            duration = (int(found.group(1)) - begin_ps) * 1e-12
        elif tuple(at) == scope and (found := COUNT.match(line)):
            ones, changes = int(found.group(2)) * 1e-12, int(found.group(3))
            nets[plain(found.group(1))] = Toggles(ones / duration, changes / duration)
        elif line.strip() == ")" and at and len(line) - len(line.lstrip()) == len(at):
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


def pins(module: str) -> Iterator[tuple[str, str]]:
    """(instance/pin, net) of every connected pin in a module's Verilog; constants are left out."""
    widths = {plain(name): (int(high), int(low)) for high, low, name in WIDE.findall(module)}
    body = module.split(");", 1)[1]
    for found in CELL.finditer(body):
        instance = plain(found.group(2))
        for pin, expression in CONNECTION.findall(found.group(3)):
            nets = bits(expression, widths)
            names = [plain(pin)] if len(nets) == 1 and not expression.strip().startswith("{") else [
                f"{plain(pin)}[{bit}]" for bit in range(len(nets) - 1, -1, -1)
            ]  # fmt: skip
            for name, net in zip(names, nets, strict=True):
                if not CONSTANT.match(net):
                    yield f"{instance}/{name}", net


def write(module: str, nets: Mapping[str, Toggles], file: Path) -> tuple[int, int]:
    """Write "pin,density_hz,duty" of every pin whose net is known; returns (known, all) pins."""
    known = total = 0
    with file.open("w") as out:
        for pin, net in pins(module):
            total += 1
            if net in nets:
                known += 1
                out.write(f"{pin},{nets[net].density_hz:.6g},{nets[net].duty:.6g}\n")
    return known, total
