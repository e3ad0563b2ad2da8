"""A netlist after layout is the netlist before it, cell for cell, as far as what it computes goes.

Layout puts buffers in, takes buffers out, gives cells other sizes, copies cells for far loads, swaps pins that mean the
same, and hangs loads on clock nets. What it may not do is change a function. Both netlists are taken as they are below
their buffers: each cell of the first is looked for by its name in the second, must be of the same kind in any size, and
each of its inputs must come from the same output of the same cell. That is linear in the size of the netlist and needs
no simulation; where the first netlist has been simulated, the second has been with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flow.netlist import NetlistError, NetlistModule
from flow.steps import activity

SIZE = re.compile(r"_X\d+$")
BUFFER = re.compile(r"(?:CLK)?BUF_X\d+$")
CONSTANTS = {"LOGIC0": "0", "LOGIC1": "1"}
MODULE = re.compile(r"^\s*module\s+(\w+)\b(.*?)^\s*endmodule", flags=re.M | re.S)
OUTPUT = re.compile(r"\boutput\s+(?:wire\s+|reg\s+)?(?:\[[^\]]*\]\s*)?(\w+)")
# Inputs of one letter are alike in all of them: A1 and A2 of an OAI21, all of a NAND4. Others stand for themselves.
ALIKE = re.compile(r"(?:NAND|NOR|AND|OR|XOR|XNOR|AOI|OAI)\d+$")

LONGEST = 10_000  # buffers one after the other

Source = tuple[str, str]  # (cell, output pin); ("", name) of an input port; ("", "0") or ("", "1")


def outputs(models: list[Path]) -> dict[str, frozenset[str]]:
    """Output pins by kind of cell or macro, from their Verilog models; buses without their bits."""
    text = "".join(file.read_text() for file in models)
    return {kind: frozenset(OUTPUT.findall(body)) for kind, body in MODULE.findall(text)}


@dataclass
class Flat:
    """A netlist without hierarchy: kind and inputs of each cell, who drives each net, nets that are the same."""

    pins_out: Mapping[str, frozenset[str]]
    kinds: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, list[tuple[str, str]]] = field(default_factory=dict)  # (pin, net)
    drivers: dict[str, Source] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)
    fought_over: list[str] = field(default_factory=list)  # nets with two drivers

    def source(self, net: str) -> Source:
        """What drives a net, buffers and other names left out."""
        for _ in range(LONGEST):
            if net in self.same:
                net = self.same[net]
                continue
            if activity.CONSTANT.match(net):
                return "", net[-1]
            if net not in self.drivers:
                return "", net
            cell, pin = self.drivers[net]
            kind = self.kinds[cell]
            if SIZE.sub("", kind) in CONSTANTS:
                return "", CONSTANTS[SIZE.sub("", kind)]
            if not BUFFER.match(kind):
                return cell, pin
            if not self.inputs[cell]:
                break
            net = self.inputs[cell][0][1]
        return "", net  # a buffer without an input, or buffers in a ring

    def signature(self, cell: str, known: Mapping[str, str] | None = None) -> tuple[object, ...]:
        """Function of a cell and where its inputs come from; ``known``: names of cells that are copies of others."""
        kind = SIZE.sub("", self.kinds[cell])
        found = []
        for pin, net in self.inputs[cell]:
            source, output = self.source(net)
            name = known.get(source, source) if known else source
            found.append((pin[0] if ALIKE.match(kind) else pin, name, output))
        return kind, *sorted(found)


def flat(modules: Mapping[str, NetlistModule], top: str, pins_out: Mapping[str, frozenset[str]]) -> Flat:
    """Take the hierarchy out of a netlist; names are those of the instances joined with slashes.

    Raises NetlistError where a cell has no model.
    """
    made = Flat(pins_out)
    cells: dict[str, list[activity.Cell]] = {}
    assigns: dict[str, list[tuple[str, str]]] = {}

    def visit(module: str, above: str, outer: Mapping[str, str]) -> None:
        if module not in cells:
            cells[module] = list(activity.cells(modules[module].text, constants=True))
            assigns[module] = list(activity.assignments(modules[module].text))

        def name(net: str) -> str:
            return net if activity.CONSTANT.match(net) else outer.get(net) or f"{above}{net}"

        for target, value in assigns[module]:
            if name(target) in made.same:
                made.fought_over.append(name(target))
            made.same[name(target)] = name(value)
        for cell in cells[module]:
            full = f"{above}{cell.name}"
            if full in made.kinds:
                raise NetlistError(f"two cells are called {full}")
            if cell.kind in modules:
                visit(cell.kind, f"{full}/", {pin: name(net) for pin, net in cell.pins})
                continue
            if cell.kind not in pins_out:
                raise NetlistError(f"no model of {cell.kind}, which {full} is")
            driven = pins_out[cell.kind]
            made.kinds[full] = cell.kind
            made.inputs[full] = []
            for pin, net in cell.pins:
                if pin.partition("[")[0] in driven:
                    if name(net) in made.drivers:
                        made.fought_over.append(name(net))
                    made.drivers[name(net)] = full, pin
                else:
                    made.inputs[full].append((pin, name(net)))

    visit(top, "", {})
    made.fought_over += made.same.keys() & made.drivers.keys()
    return made


def _idle(kind: str) -> bool:
    """Whether a cell computes nothing: buffers, constants."""
    return bool(BUFFER.match(kind)) or SIZE.sub("", kind) in CONSTANTS


def copies(before: Flat, after: Flat) -> dict[str, str]:
    """Cells that only the second netlist has, by the cell of the first that each is a copy of; loads drive nothing."""
    driving = {cell for cell, _ in after.drivers.values()}
    added = [cell for cell in driving - before.kinds.keys() if not _idle(after.kinds[cell])]
    if not added:
        return {}
    originals = {before.signature(cell): cell for cell, kind in before.kinds.items() if not _idle(kind)}
    known: dict[str, str] = {}
    for _ in range(len(added)):  # a copy may feed another
        fresh = {cell: originals.get(after.signature(cell, known)) for cell in added if cell not in known}
        found = {cell: original for cell, original in fresh.items() if original is not None}
        if not found:
            break
        known |= found
    return known


def differences(before: Flat, after: Flat, ins: list[str], outs: list[str]) -> Iterator[str]:
    """What the second netlist computes otherwise, a line each; ``ins``, ``outs``: bits of the design's ports."""
    known = copies(before, after)
    yield from (f"net {net} has two drivers" for net in after.fought_over)
    yield from (f"input {net} is driven" for net in ins if net in after.drivers or net in after.same)

    def named(source: Source) -> Source:
        return known.get(source[0], source[0]), source[1]

    for cell, kind in before.kinds.items():
        if _idle(kind):
            continue
        if cell not in after.kinds:
            yield f"{cell} is gone"
        elif before.signature(cell) != after.signature(cell, known):
            yield f"{cell} is another function, or of other inputs"
    for port in outs:
        if before.source(port) != named(after.source(port)):
            yield f"output {port} is driven by {after.source(port)[0]}"


def carried_over(before: Flat, after: Flat, nets: Mapping[str, activity.Toggles]) -> dict[str, activity.Toggles]:
    """Activity of the second netlist's nets from that of the first's: a net does what its source does."""
    known = copies(before, after)
    of = {("", net): toggles for net, toggles in nets.items() if net not in before.drivers}
    of |= {source: nets[net] for net, source in before.drivers.items() if net in nets}
    of |= {("", value): activity.Toggles(float(value), 0.0) for value in CONSTANTS.values()}
    found = {}
    for net in {*after.drivers, *(net for inputs in after.inputs.values() for _, net in inputs)}:
        cell, pin = after.source(net)
        if (toggles := of.get((known.get(cell, cell), pin))) is not None:
            found[net] = toggles
    return found
