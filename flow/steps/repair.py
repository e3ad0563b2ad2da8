"""Buffers on nets that are too heavy for their driver, across the modules of a mapped design.

ABC sees one module at a time: it does not know that an output feeds sixteen tiles. Here the capacitance of every net
is added up through the hierarchy, children first (pins from Liberty, wires from the wire-load model), and where it is
more than the driver may carry, buffers are put in: each drives a part of the sinks, in as many levels as it takes.
Clock nets are left alone; the layout builds their tree.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flow.steps.rtlil import RtlilModule
from hw.memory.macro_model import MacroSpec, cost

BUFFER_CELL = "BUF_X4"
GROUP_FF = 120.0  # load of one buffer: half of what BUF_X4 may carry
INPUT_FF = 60.0  # load behind an input of a module: what a flip-flop outside may carry


@dataclass(frozen=True)
class Pin:
    """One pin of a cell: capacitance of an input, largest load of an output (fF)."""

    direction: str
    cap_ff: float = 0.0
    max_load_ff: float = 1e9
    clock: bool = False


@dataclass(frozen=True)
class WireLoad:
    """A wire-load model: length by fanout, slope beyond the table, capacitance per length."""

    cap_per_length: float
    slope: float
    lengths: tuple[tuple[int, float], ...]

    def cap_ff(self, fanout: int) -> float:
        """Capacitance of a net of ``fanout`` pins, straight lines between the table's points."""
        if fanout <= 0:
            return 0.0
        below = (0, 0.0)
        for point in self.lengths:
            if fanout <= point[0]:
                part = (fanout - below[0]) / (point[0] - below[0])
                return self.cap_per_length * (below[1] + part * (point[1] - below[1]))
            below = point
        return self.cap_per_length * (below[1] + self.slope * (fanout - below[0]))


def read_pins(liberty: Path) -> dict[str, dict[str, Pin]]:
    """Pins of every cell of Nangate's Liberty file."""
    cells: dict[str, dict[str, Pin]] = {}
    raw: dict[str, dict[str, str]] = {}
    pin: dict[str, str] = {}
    for line in liberty.read_text().splitlines():
        if match := re.match(r"\s*cell\s*\(\s*(\w+)\s*\)", line):
            cells[match.group(1)], raw = {}, {}
            name = match.group(1)
        elif match := re.match(r"\s*pin\s*\(\s*(\w+)\s*\)", line):
            pin = raw.setdefault(match.group(1), {})
        elif match := re.match(r"\s*(direction|capacitance|max_capacitance|clock)\s*:\s*\"?([\w.]+)", line):
            pin.setdefault(match.group(1), match.group(2))
            for pin_name, values in raw.items():
                if values is pin:
                    cells[name][pin_name] = Pin(
                        pin.get("direction", "input"),
                        float(pin.get("capacitance", 0.0)),
                        float(pin.get("max_capacitance", 1e9)),
                        pin.get("clock") == "true",
                    )
    return cells


def read_wire_load(liberty: Path, name: str) -> WireLoad:
    """One wire-load model of a Liberty file."""
    text = liberty.read_text()
    match = re.search(rf'wire_load\s*\(\s*"?{name}"?\s*\)\s*{{(.*?)}}', text, flags=re.S)
    if match is None:
        raise ValueError(f"the library has no wire-load model {name}")
    body = match.group(1)

    def number(key: str) -> float:
        found = re.search(rf"{key}\s*:\s*([\d.e+-]+)", body)
        return float(found.group(1)) if found else 0.0

    lengths = re.findall(r"fanout_length\s*\(\s*(\d+)\s*,\s*([\d.]+)", body)
    return WireLoad(number("capacitance"), number("slope"), tuple((int(n), float(length)) for n, length in lengths))


def macro_pins(macro: Mapping[str, Any]) -> dict[str, Pin]:
    """Pins of one macro of ``macros.json``."""
    spec = MacroSpec(macro["ports"], macro["depth"], macro["width"], macro["granularity"])
    model = cost(spec)
    return {
        name: Pin(
            direction,
            model.clock_pin_ff if name == "clk" else model.signal_pin_ff,
            model.max_load_ff,
            name == "clk",
        )
        for name, direction, _ in spec.pins()
    }


@dataclass
class PortLoad:
    """One bit of a module's port seen from outside: capacitance and pins behind an input, strength of an output."""

    direction: str
    cap_ff: float = 0.0
    pins: int = 0
    max_load_ff: float = INPUT_FF
    clock: bool = False


@dataclass
class _Sink:
    """Where a net ends: bit of a cell's connection (line of the module's body), what is behind it."""

    line: int
    bit: int
    cap_ff: float
    pins: int
    clock: bool


@dataclass
class _Net:
    max_load_ff: float = INPUT_FF
    sinks: list[_Sink] = field(default_factory=list)


def _bits(sigspec: str, widths: Mapping[str, int]) -> list[str]:
    """Single bits of a signal, lowest first: ``\\name``, ``\\name [3]``, or constants."""
    tokens = sigspec.split()
    bits: list[str] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        index += 1
        if token in "{}":
            continue
        part: list[str]
        if token[0] in "\\$":
            following = tokens[index] if index < len(tokens) else ""
            if match := re.fullmatch(r"\[(\d+)(?::(\d+))?\]", following):
                index += 1
                high = int(match.group(1))
                low = int(match.group(2) or high)
                part = [f"{token} [{i}]" for i in range(high, low - 1, -1)]
            elif widths[token] == 1:
                part = [token]
            else:
                part = [f"{token} [{i}]" for i in range(widths[token] - 1, -1, -1)]
        else:
            part = [f"1'{digit}" for digit in token.split("'")[1]]
        bits += part
    return bits[::-1]


def _sigspec(bits: list[str]) -> str:
    """Text of a signal from its bits, lowest first."""
    return bits[0] if len(bits) == 1 else "{ " + " ".join(reversed(bits)) + " }"


class _Module:
    """Nets and ports of one module's text."""

    def __init__(self, module: RtlilModule, parts: Mapping[str, Mapping[str, list[PortLoad]]]) -> None:
        self.module = module
        self.widths: dict[str, int] = {}
        self.ports: dict[str, str] = {}
        self.connections: dict[int, list[str]] = {}
        self.nets: dict[str, _Net] = {}
        self._read_wires()
        self._read_cells(parts)

    def _read_wires(self) -> None:
        for line in self.module.body:
            if line.startswith("wire "):
                words = line.split()
                self.widths[words[-1]] = int(words[words.index("width") + 1]) if "width" in words else 1
                for direction in ("input", "output"):
                    if direction in words:
                        self.ports[words[-1]] = direction

    def _read_cells(self, parts: Mapping[str, Mapping[str, list[PortLoad]]]) -> None:
        cell: str | None = None
        for index, line in enumerate(self.module.body):
            words = line.split(" ", 2)
            if words[0] == "cell":
                cell = words[1][1:]
            elif words[0] == "end":
                cell = None
            elif words[0] == "connect" and cell is not None:
                self._connect(index, _bits(words[2], self.widths), parts[cell][words[1][1:]])

    def _connect(self, line: int, bits: list[str], loads: list[PortLoad]) -> None:
        self.connections[line] = bits
        for bit, (name, load) in enumerate(zip(bits, loads, strict=True)):
            if "'" in name:
                continue
            net = self.nets.setdefault(name, _Net())
            if load.direction == "output":
                net.max_load_ff = load.max_load_ff
            else:
                net.sinks.append(_Sink(line, bit, load.cap_ff, load.pins, load.clock))

    def port_loads(self, wire: WireLoad) -> dict[str, list[PortLoad]]:
        """The module's ports as its parents see them; an output may carry what its driver has left."""
        loads: dict[str, list[PortLoad]] = {}
        for name, direction in self.ports.items():
            loads[name[1:]] = []
            for bit in _bits(name, self.widths):
                net = self.nets.get(bit, _Net())
                inside = sum(sink.cap_ff for sink in net.sinks)
                pins = sum(sink.pins for sink in net.sinks)
                if direction == "input":
                    clock = any(sink.clock for sink in net.sinks)
                    loads[name[1:]].append(PortLoad("input", inside, pins, clock=clock))
                else:
                    left = max(net.max_load_ff - inside - wire.cap_ff(pins), 5.0)
                    loads[name[1:]].append(PortLoad("output", max_load_ff=left))
        return loads

    def insert_buffers(self, wire: WireLoad, buffer_pins: Mapping[str, Pin]) -> int:
        """Put buffers on nets that are too heavy; returns how many."""
        _, entry, exit_pin = buffer_pin_names(buffer_pins)
        wires: list[str] = []
        added: list[str] = []
        count = 0
        for name in list(self.nets):
            net = self.nets[name]
            if any(sink.clock for sink in net.sinks):
                continue
            while len(net.sinks) > 1 and _load(net.sinks, wire) > min(net.max_load_ff, 2 * GROUP_FF):
                groups = list(_groups(net.sinks, wire))
                sinks = []
                for group in groups:
                    new = f"\\repair_{count}"
                    count += 1
                    for sink in group:
                        self.connections[sink.line][sink.bit] = new
                    line = len(self.module.body) + len(added) + 1
                    wires.append(f"wire {new}")
                    added += [f"cell \\{BUFFER_CELL} {new}_buffer"]
                    added += [f"connect \\{entry} {name}", f"connect \\{exit_pin} {new}", "end"]
                    self.connections[line] = [name]
                    sinks.append(_Sink(line, 0, buffer_pins[entry].cap_ff, 1, False))
                if len(sinks) >= len(net.sinks):
                    break
                net.sinks = sinks
        if count:
            self.module.body += added
            self._write_connections()
            self.module.body = wires + self.module.body
        return count

    def _write_connections(self) -> None:
        for line, bits in self.connections.items():
            words = self.module.body[line].split(" ", 2)
            self.module.body[line] = f"{words[0]} {words[1]} {_sigspec(bits)}"


def buffer_pin_names(pins: Mapping[str, Pin]) -> tuple[str, str, str]:
    """(cell, input, output) names of the buffer."""
    entry = next(name for name, pin in pins.items() if pin.direction == "input")
    exit_pin = next(name for name, pin in pins.items() if pin.direction == "output")
    return BUFFER_CELL, entry, exit_pin


def _load(sinks: list[_Sink], wire: WireLoad) -> float:
    return sum(sink.cap_ff for sink in sinks) + wire.cap_ff(sum(sink.pins for sink in sinks))


def _groups(sinks: list[_Sink], wire: WireLoad) -> Iterator[list[_Sink]]:
    """Sinks in their order, in groups of at most GROUP_FF."""
    group: list[_Sink] = []
    for sink in sinks:
        if group and _load([*group, sink], wire) > GROUP_FF:
            yield group
            group = []
        group.append(sink)
    if group:
        yield group


def repair(
    modules: list[RtlilModule],
    cells: Mapping[str, Mapping[str, Pin]],
    macros: Mapping[str, Mapping[str, Any]],
    wire: WireLoad,
) -> dict[str, int]:
    """Insert buffers into mapped modules, in place; returns the number added by module.

    ``modules``: RTLIL with cells of the library, macros and each other only, nets split into bits.
    """
    by_name = {module.name[1:]: module for module in modules}
    parts: dict[str, dict[str, list[PortLoad]]] = {
        name: {pin: [_cell_port(value)] for pin, value in pins.items()} for name, pins in cells.items()
    }
    for name, macro in macros.items():
        spec = MacroSpec(macro["ports"], macro["depth"], macro["width"], macro["granularity"])
        pins = macro_pins(macro)
        parts[name] = {pin: [_cell_port(pins[pin])] * width for pin, _, width in spec.pins()}
    added: dict[str, int] = {}

    def visit(name: str) -> None:
        if name in added:
            return
        for _, kind in by_name[name].cells():
            if kind[1:] in by_name:
                visit(kind[1:])
        added[name] = 0
        module = _Module(by_name[name], parts)
        added[name] = module.insert_buffers(wire, cells[BUFFER_CELL])
        parts[name] = module.port_loads(wire)

    for name in by_name:
        visit(name)
    return added


def _cell_port(pin: Pin) -> PortLoad:
    """A library pin as a port of one bit."""
    return PortLoad(pin.direction, pin.cap_ff, 1, pin.max_load_ff, pin.clock)
