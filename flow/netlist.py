"""Structural Verilog as synthesis and layout write it: the modules of a design and the cells in them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# "  CELL name (" or "  CELL \name  (" at the start of an instance
INSTANCE = re.compile(r"^\s+(\\\S+|[A-Za-z_]\w*)\s+(\\\S+\s|[A-Za-z_]\w*(?:\[\d+\])?)\s*\(", flags=re.M)
MODULE = re.compile(r"^module\s+(\\\S+|\w+)\s*\((.*?)\);(.*?)^endmodule", flags=re.M | re.S)
WORDS = {"input", "output", "inout", "wire", "assign", "module"}


class NetlistError(RuntimeError):
    """A netlist lacks what was asked of it; one line."""


@dataclass(frozen=True)
class NetlistModule:
    """Text of one module and its instances, counted by cell or module."""

    text: str
    instances: Counter[str]


def read(file: Path) -> dict[str, NetlistModule]:
    """Modules of a netlist by name."""
    modules = {}
    for match in MODULE.finditer(file.read_text()):
        kinds = (kind for kind, _ in INSTANCE.findall(match.group(3)))
        modules[match.group(1)] = NetlistModule(match.group(0), Counter(kind for kind in kinds if kind not in WORDS))
    return modules


def reachable(modules: Mapping[str, NetlistModule], top: str, without: Collection[str] = ()) -> list[str]:
    """Modules below ``top``, itself first; those in ``without`` and what is only below them are left out."""
    if top not in modules:
        raise NetlistError(f"the netlist has no module {top}")
    found: dict[str, None] = {}

    def visit(name: str) -> None:
        found[name] = None
        for kind in modules[name].instances:
            if kind in modules and kind not in found and kind not in without:
                visit(kind)

    visit(top)
    return list(found)


def instances(modules: Mapping[str, NetlistModule], top: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """(instances down to it, module) of every instance of a module below ``top``, which comes first as ((), top)."""
    inner: dict[str, list[tuple[str, str]]] = {}

    def visit(name: str, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
        if name not in inner:
            found = INSTANCE.findall(modules[name].text)
            inner[name] = [(kind, instance.strip().lstrip("\\")) for kind, instance in found if kind in modules]
        yield above, name
        for kind, instance in inner[name]:
            yield from visit(kind, (*above, instance))

    return visit(top, ())


def cells(modules: Mapping[str, NetlistModule], top: str, without: Collection[str] = ()) -> Counter[str]:
    """Leaves below ``top``, counted through the hierarchy: library cells, macros, and the modules in ``without``."""
    known: dict[str, Counter[str]] = {}

    def count(name: str) -> Counter[str]:
        if name not in known:
            total: Counter[str] = Counter()
            for kind, number in modules[name].instances.items():
                inner = count(kind) if kind in modules and kind not in without else Counter({kind: 1})
                for leaf, each in inner.items():
                    total[leaf] += number * each
            known[name] = total
        return known[name]

    if top not in modules:
        raise NetlistError(f"the netlist has no module {top}")
    return count(top)


def write(modules: Mapping[str, NetlistModule], names: Collection[str], file: Path) -> None:
    """Write some modules as a netlist of their own."""
    file.write_text("\n\n".join(modules[name].text for name in names) + "\n")


def ports(modules: Mapping[str, NetlistModule], name: str) -> set[str]:
    """Names of a module's ports."""
    return listed(modules[name].text)


def listed(module: str) -> set[str]:
    """Names in the head of a module's Verilog."""
    head = module.split(");", 1)[0].split("(", 1)[1]
    return {port.strip().lstrip("\\") for port in head.split(",")}
