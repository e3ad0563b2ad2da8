"""Give every component the ports of its signature when Verilog is generated.

Amaranth derives a module's ports from the nets that cross its boundary: an input tied to a constant vanishes, two
inputs with one driver become one port, an input whose bits come from different cells becomes several. Equal components
then get different modules, which cannot be merged or hardened once. ``isolate`` puts an opaque cell in front of every
input of a component and behind every output; ``hw.dedup.parse`` turns those cells into plain connections once the ports
are fixed.
"""

from collections.abc import Iterator
from typing import Any

from amaranth.hdl import Instance, Signal, Value, ValueCastable
from amaranth.hdl._ast import Part, SignalDict, SignalSet, SwitchValue
from amaranth.hdl._ir import Fragment
from amaranth.hdl._xfrm import StatementTransformer, ValueTransformer
from amaranth.lib import wiring

PORT_CELL = "nanok3_port"  # connects A to Y
USE_CELL = "nanok3_use"  # uses A


class _LeftSide(ValueTransformer):
    """Replace signals on the left side of assignments."""

    def __init__(self, drivers: SignalDict) -> None:
        self.drivers = drivers

    def on_Signal(self, value: Signal) -> Signal:
        return self.drivers.get(value, value)

    def on_Part(self, value: Part) -> Part:
        return Part(self.on_value(value.value), value.offset, value.width, value.stride)

    def on_SwitchValue(self, value: SwitchValue) -> SwitchValue:
        return SwitchValue(value.test, [(patterns, self.on_value(case)) for patterns, case in value.cases])


class _Drivers(StatementTransformer):
    """Assign to the drivers of isolated signals instead of to the signals."""

    def __init__(self, drivers: SignalDict) -> None:
        self.left = _LeftSide(drivers)

    def on_Assign(self, stmt: Any) -> Any:
        return type(stmt)(self.left(stmt.lhs), stmt.rhs)


def _fragments(fragment: Fragment) -> Iterator[Fragment]:
    """A fragment and all below it."""
    yield fragment
    for child, *_ in fragment.subfragments:
        yield from _fragments(child)


def _members(fragment: Fragment) -> Iterator[tuple[bool, Signal]]:
    """(is an input, signal) of every port of the components that a fragment was made from."""
    for origin in fragment.origins or ():
        if isinstance(origin, wiring.Component):
            for _, member, value in origin.signature.flatten(origin):
                value = value.as_value() if isinstance(value, ValueCastable) else value
                if type(value) is Signal and len(value):
                    yield member.flow == wiring.In, value


def _driven_by_instances(top: Fragment) -> SignalSet:
    """Signals that are outputs of instances; they have no assignment that could be moved."""
    signals = SignalSet()
    for fragment in _fragments(top):
        if isinstance(fragment, Instance):
            for value, kind in fragment.ports.values():
                if kind == "o" and isinstance(value, Value):
                    signals.update(value._lhs_signals())
    return signals


def isolate(top: Fragment) -> None:
    """Isolate the ports of every component below ``top``, in place; what the design does stays the same."""
    done = _driven_by_instances(top)
    drivers = SignalDict()
    for parent in list(_fragments(top)):
        for child, *_ in list(parent.subfragments):
            for is_input, signal in _members(child):
                if signal in done:
                    continue
                done.add(signal)
                if is_input:
                    drivers[signal] = driver = Signal.like(signal, name=signal.name)
                    parent.add_subfragment(Instance(PORT_CELL, p_WIDTH=len(signal), i_A=driver, o_Y=signal))
                else:
                    parent.add_subfragment(Instance(USE_CELL, p_WIDTH=len(signal), i_A=signal))
    move = _Drivers(drivers)
    for fragment in _fragments(top):
        for domain, statements in fragment.statements.items():
            fragment.statements[domain] = move(statements)
