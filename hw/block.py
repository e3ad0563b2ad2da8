"""Blocks: components that become one Verilog module per kind, however often they are placed.

Amaranth elaborates and writes a component once per place, with the ports that its surroundings leave over. A ``Block``
is elaborated in place by Amaranth's simulator only. When Verilog is written (``VerilogPlatform``), each kind of block,
which is its class and the arguments of its constructor, is elaborated once, into a module with the ports of its
signature, and every place becomes an instance of that module.
"""

import re
from collections.abc import Hashable
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import ClockSignal, Elaboratable, Instance, ResetSignal, Value, ValueCastable
from amaranth.hdl._ir import Fragment, PortDirection
from amaranth.lib import wiring

from hw.memory.macro_model import MacroSpec

__all__ = ["Block", "Ports", "VerilogPlatform", "signature_ports"]

Ports = dict[str, tuple[Value, PortDirection]]


class Block(wiring.Component):
    """A component whose subclass describes itself in ``body``, as others do in ``elaborate``.

    What ``body`` builds depends on the constructor's arguments alone. The module's name is the attribute
    ``module_name``, else the class's name in snake case.
    """

    module_name: str | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> "Block":
        self: Block = super().__new__(cls, src_loc_at=1)
        self._arguments = (args, tuple(sorted(kwargs.items())))
        return self

    @property
    def kind(self) -> Hashable:
        """What blocks of one module share; a block whose arguments are tables and the like is a kind of its own."""
        kind = (type(self), *self._arguments)
        try:
            hash(kind)
        except TypeError:
            return self
        return kind

    def body(self, platform: Any) -> Elaboratable:
        """What is inside."""
        raise NotImplementedError

    def elaborate(self, platform: Any) -> Elaboratable:
        placed = isinstance(platform, VerilogPlatform) and platform.writing is not self
        return platform.instance(self) if placed else self.body(platform)


class VerilogPlatform:
    """Collects the modules of a design, as RTLIL text by name, children first; and its macros' shapes, by name.

    Modules of blocks have ports ``clk`` and ``rst`` when anything inside needs them: a block all of whose registers are
    ``reset_less`` has no reset pin.
    """

    def __init__(self) -> None:
        self.modules: dict[str, str] = {}
        self.macros: dict[str, MacroSpec] = {}
        self.writing: Any = None  # the component whose inside is wanted, not an instance
        self._names: dict[Hashable, str] = {}
        self._taken: set[str] = set()

    def macro(self, spec: MacroSpec) -> str:
        """Record that a macro is used; returns its module name."""
        self.macros[spec.name] = spec
        return spec.name

    def instance(self, block: Block) -> Instance:
        """An instance of the block's module, which is written when it is the first of its kind."""
        name = self._names.get(block.kind)
        if name is None:
            name = self._names[block.kind] = self._free_name(block)
            self.write(block, name)
        wires: dict[str, Value] = {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
        wires = {port: wire for port, wire in wires.items() if _declares(self.modules[name], port[2:])}
        for port, (value, direction) in signature_ports(block).items():
            wires[f"{'i' if direction is PortDirection.Input else 'o'}_{port}"] = value
        return Instance(name, **wires)

    def write(self, component: Any, name: str, ports: Ports | None = None) -> None:
        """Elaborate a component and add its module, and those of the blocks in it; ``ports`` None: its signature's."""
        self._taken.add(name)
        if ports is None:
            if not hasattr(component, "signature"):
                raise TypeError(f"{component!r} has no signature: give its ports")
            ports = signature_ports(component)
        self.writing = component
        fragment = Fragment.get(component, self)
        if "sync" in fragment.domains:  # of a component that needs its signals; else Amaranth adds domain and ports
            clock = fragment.domains["sync"]
            ports = {**ports, "clk": (clock.clk, PortDirection.Input), "rst": (clock.rst, PortDirection.Input)}
        design = fragment.prepare(ports=ports, hierarchy=(name,))
        self.modules[name] = _plain(rtlil.convert_fragment(design, emit_src=False)[0])

    def _free_name(self, block: Block) -> str:
        """The block's name; the second kind of that name gets a number: ``lane``, ``lane_2``."""
        words = re.sub(r"(?<!^)(?=[A-Z])", "_", type(block).__name__).lower()
        base = block.module_name or words
        name, number = base, 2
        while name in self._taken:
            name, number = f"{base}_{number}", number + 1
        return name


def signature_ports(component: Any) -> Ports:
    """Ports of a component by name (path joined by ``__``, as Amaranth does); those of no width are left out."""
    ports: Ports = {}
    for path, member, value in component.signature.flatten(component):
        value = value.as_value() if isinstance(value, ValueCastable) else value
        if len(value):
            direction = PortDirection.Input if member.flow == wiring.In else PortDirection.Output
            ports["__".join(map(str, path))] = (value, direction)
    return ports


def _declares(module: str, port: str) -> bool:
    """A module's RTLIL has this input."""
    return re.search(rf"^\s*wire .*input\s+\d+\s+\\{port}$", module, flags=re.M) is not None


def _plain(text: str) -> str:
    """RTLIL without what silicon has not, or other tools refuse.

    Registers lose their initial values (only reset gives one), ports their ``signed`` marks, which mean nothing beyond
    their declaration, names their odd characters (``q$3`` becomes ``q_3``), and a reset that resets nothing is no port.
    """
    lines = []
    unused_reset = len(re.findall(r"\\rst(?=\s)", text)) == 1
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["wire"]:
            if unused_reset and words[-1] == "\\rst":
                continue
            line = line.replace(" signed ", " ", 1)
        if words[:2] not in (["attribute", "\\init"], ["attribute", "\\top"]):
            lines.append(line)
    return _plain_names("\n".join(lines) + "\n")


def _plain_names(text: str) -> str:
    """Module text whose public names are plain identifiers."""
    pattern = r"(?<!\S)\\\S+"
    taken = set(re.findall(pattern, text))
    plain: dict[str, str] = {}
    for name in sorted(taken):
        new = "\\" + re.sub(r"\W", "_", name[1:])
        while new != name and new in taken:
            new += "_"
        taken.add(new)
        plain[name] = new
    return re.sub(pattern, lambda match: plain[match.group(0)], text)
