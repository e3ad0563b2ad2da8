"""Merge equal modules of an RTLIL design.

Amaranth writes one module per instance, even of equal components. ``deduplicate`` keeps one of each set of modules that
differ only in their name, the names of their wires, ports and cells, and ``src`` attributes; parents then instantiate
the kept one. It works bottom-up on the text, so that a parent whose children were merged can be merged too, and gives
the same output for the same input.

What Amaranth does to the ports of equal components by what is around them is undone before, by ``hw.boundary``.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hw.boundary import PORT_CELL, USE_CELL

_NAME = re.compile(r"(?<!\S)[\\$]\S+")
_PORT = re.compile(r"\b(input|output|inout) \d+ ")


@dataclass
class RtlilModule:
    """One module of RTLIL text: its name, its lines from ``module`` to ``end`` and the attribute lines before it."""

    name: str
    attributes: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)

    def cells(self) -> list[tuple[int, str]]:
        """(line index, type) of every cell."""
        found = []
        for index, line in enumerate(self.body):
            words = line.split()
            if words and words[0] == "cell":
                found.append((index, words[1]))
        return found

    def text(self) -> str:
        return "\n".join([*self.attributes, f"module {self.name}", *self.body, "end"])


def parse(rtlil: str) -> list[RtlilModule]:
    """Split RTLIL text into modules; blank lines, ``src`` attributes and ``signed`` marks of wires are dropped.

    The ``signed`` mark has no meaning beyond the text of port declarations, which readers of other tools refuse.
    """
    modules: list[RtlilModule] = []
    pending: list[str] = []
    current: RtlilModule | None = None
    depth = 0
    for raw in rtlil.splitlines():
        line = raw.strip()
        keyword = line.split(" ", 1)[0]
        if not line or keyword in ("#", "autoidx") or line.startswith("attribute \\src "):
            continue
        if current is None:
            if keyword == "module":
                current = RtlilModule(line.split()[1], pending)
                modules.append(current)
                pending, depth = [], 1
            else:
                pending.append(line)
            continue
        if keyword in ("cell", "process", "switch"):
            depth += 1
        elif keyword == "end":
            depth -= 1
            if depth == 0:
                current = None
                continue
        elif keyword == "wire":
            line = line.replace(" signed ", " ", 1)
        current.body.append(line)
    for module in modules:
        _join_ports(module)
    return modules


def _join_ports(module: RtlilModule) -> None:
    """Replace the cells of ``hw.boundary`` by connections."""
    body: list[str] = []
    cell: str | None = None
    ends: dict[str, str] = {}
    for line in module.body:
        words = line.split(" ", 2)
        if words[0] == "cell" and words[1][1:] in (PORT_CELL, USE_CELL):
            cell, ends = words[1][1:], {}
        elif cell is None:
            body.append(line)
        elif words[0] == "connect":
            ends[words[1][1:]] = words[2]
        elif words[0] == "end":
            if cell == PORT_CELL:
                body.append(f"connect {ends['Y']} {ends['A']}")
            cell = None
    module.body = body


def drop_initial_values(modules: Iterable[RtlilModule]) -> None:
    """Remove the ``init`` attributes of registers: silicon powers up with random ones, only reset gives a value."""
    for module in modules:
        module.body = [line for line in module.body if not line.startswith("attribute \\init ")]


def _wire_declarations(module: RtlilModule) -> dict[str, str]:
    """Declaration of every wire without name and port number, by name."""
    wires = {}
    for line in module.body:
        if line.startswith("wire "):
            head, name = line.rsplit(" ", 1)
            wires[name] = " ".join(_PORT.sub(r"\1 ", head + " ").split())
    return wires


def _bottom_up(modules: Mapping[str, RtlilModule]) -> list[str]:
    """Names of the modules, children before parents, otherwise in the order of the text."""
    order: dict[str, None] = {}

    def visit(name: str) -> None:
        if name in order:
            return
        for _, kind in modules[name].cells():
            if kind in modules:
                visit(kind)
        order[name] = None

    for name in modules:
        visit(name)
    return list(order)


def _local_names(module: RtlilModule) -> set[str]:
    """Names of the module's wires, cells, memories and processes."""
    return {words[-1] for line in module.body if (words := line.split())[0] in ("wire", "cell", "memory", "process")}


def canonical(module: RtlilModule, ports_of: Mapping[str, Mapping[str, str]]) -> tuple[str, dict[str, str]]:
    """(text that equal modules share, canonical names of the module's wires).

    Local names are numbered by first appearance. ``ports_of``: canonical port names by module, for cells whose type
    is in the design; connections of those are sorted, since the order of a component's ports depends on what is
    around it.
    """
    wires = _wire_declarations(module)
    local = _local_names(module)
    table: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        name = match.group(0)
        return table.setdefault(name, f"%{len(table)}") if name in local else name

    lines: list[str] = []
    marks: dict[str, list[str]] = {}
    pending: list[str] = []
    cell: str | None = None
    connections: list[tuple[str, str]] = []
    for line in module.body:
        words = line.split(" ", 2)
        if words[0] == "attribute":
            pending.append(line)
        elif words[0] == "wire":
            marks[line.rsplit(" ", 1)[1]], pending = pending, []
        elif words[0] == "cell":
            cell, connections = words[1], []
            lines += [*pending, f"cell {cell} {_NAME.sub(number, words[2])}"]
            pending = []
        elif cell is not None and words[0] == "connect":
            connections.append((ports_of.get(cell, {}).get(words[1], words[1]), words[2]))
        elif cell is not None and words[0] == "end":
            for port, signal in sorted(connections) if cell in ports_of else connections:
                lines.append(f"connect {port} {_NAME.sub(number, signal)}")
            lines.append("end")
            cell = None
        else:
            lines += [*pending, line if words[0] == "parameter" else _NAME.sub(number, line)]
            pending = []
    for name in sorted(wires, key=lambda wire: (wires[wire], wire)):
        table.setdefault(name, f"%{len(table)}")
    header = sorted(f"{wires[name]} {table[name]} {' '.join(marks[name])}" for name in wires)
    return "\n".join([*module.attributes, *header, *lines]), {name: table[name] for name in wires}


def _rewrite_cells(module: RtlilModule, kept: Mapping[str, str], ports: Mapping[str, Mapping[str, str]]) -> None:
    """Point the module's cells to the kept modules: types and port names."""
    rename: Mapping[str, str] | None = None
    for index, line in enumerate(module.body):
        words = line.split(" ", 2)
        if words[0] == "cell":
            rename = ports.get(words[1])
            if words[1] in kept:
                module.body[index] = f"cell {kept[words[1]]} {words[2]}"
        elif words[0] == "end":
            rename = None
        elif words[0] == "connect" and rename is not None:
            module.body[index] = f"connect {rename.get(words[1], words[1])} {words[2]}"


def merge(modules: list[RtlilModule]) -> tuple[list[RtlilModule], dict[str, str]]:
    """(the modules that remain, kept name of every module)."""
    by_name = {module.name: module for module in modules}
    first: dict[str, tuple[str, dict[str, str]]] = {}
    kept: dict[str, str] = {}
    canonical_ports: dict[str, dict[str, str]] = {}
    renamed_ports: dict[str, dict[str, str]] = {}
    for name in _bottom_up(by_name):
        module = by_name[name]
        _rewrite_cells(module, kept, renamed_ports)
        text, names = canonical(module, canonical_ports)
        if text in first:
            kept[name], kept_names = first[text]
            back = {canon: original for original, canon in kept_names.items()}
            renamed_ports[name] = {original: back[canon] for original, canon in names.items()}
        else:
            first[text] = name, names
            kept[name] = name
            canonical_ports[name] = names
    return [module for module in modules if kept[module.name] == module.name], kept


def rename_modules(modules: list[RtlilModule], names: Mapping[str, str]) -> None:
    """Give modules new names (``\\``-prefixed), in place."""
    for module in modules:
        module.name = names.get(module.name, module.name)
        for index, kind in module.cells():
            if kind in names:
                instance = module.body[index].split()[2]
                module.body[index] = f"cell {names[kind]} {instance}"


def readable_names(
    modules: list[RtlilModule], wanted: Mapping[str, str], reserved: Iterable[str] = ()
) -> dict[str, str]:
    """New names of modules: the wanted one (a plain identifier), or the instance's own without its index.

    A name that is taken gets a number: ``lane``, ``lane_2``, ``lane_3``.
    """
    taken = set(reserved)
    names: dict[str, str] = {}
    for module in modules:
        base = wanted.get(module.name) or _identifier(module.name[1:].split(".")[-1])
        name, number = base, 2
        while name in taken:
            name, number = f"{base}_{number}", number + 1
        taken.add(name)
        names[module.name] = "\\" + name
    return names


def _identifier(name: str) -> str:
    """A plain Verilog identifier: an index at the end and odd characters removed."""
    plain = re.sub(r"\W", "_", re.sub(r"[_\[$]\d+\]?$", "", name) or name)
    return plain if re.match(r"[A-Za-z_]", plain) else f"m_{plain}"


def plain_names(modules: list[RtlilModule]) -> None:
    """Make the names of wires, ports and cells plain Verilog identifiers, in place: ``q$3`` becomes ``q_3``."""
    renamed = {module.name: _plain_locals(module) for module in modules}
    for module in modules:
        names = renamed[module.name]
        cell: str | None = None
        for index, line in enumerate(module.body):
            words = line.split(" ", 2)
            if words[0] in ("attribute", "parameter"):
                continue
            if words[0] == "cell":
                cell = words[1]
                module.body[index] = f"cell {cell} {names.get(words[2], words[2])}"
            elif cell is not None and words[0] == "connect":
                port = renamed.get(cell, {}).get(words[1], words[1])
                module.body[index] = f"connect {port} {_renamed(words[2], names)}"
            else:
                module.body[index] = _renamed(line, names)
                if words[0] == "end":
                    cell = None


def _plain_locals(module: RtlilModule) -> dict[str, str]:
    """New names of the module's public names that are not plain."""
    local = _local_names(module)
    taken = set(local)
    names = {}
    for name in sorted(local):
        plain = "\\" + re.sub(r"\W", "_", name[1:])
        if name.startswith("$") or plain == name:
            continue
        while plain in taken:
            plain += "_"
        taken.add(plain)
        names[name] = plain
    return names


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """Text with the names replaced."""
    return _NAME.sub(lambda match: names.get(match.group(0), match.group(0)), text)


def deduplicate(rtlil: str, wanted: Mapping[str, str] | None = None, reserved: Iterable[str] = ()) -> str:
    """RTLIL text with equal modules merged and modules named readably; registers lose their initial values.

    ``wanted``: names by Amaranth's dotted module name (without backslash), for example the component's class.
    ``reserved``: names of modules outside the text, such as macros.
    """
    modules = parse(rtlil)
    drop_initial_values(modules)
    remaining, _ = merge(modules)
    chosen = {"\\" + name: plain for name, plain in (wanted or {}).items()}
    rename_modules(remaining, readable_names(remaining, chosen, reserved))
    plain_names(remaining)
    return "\n\n".join(module.text() for module in remaining) + "\n"
