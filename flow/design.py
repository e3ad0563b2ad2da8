"""What the flow lays out: a preset's chip, one of its units, or a tile: modules of the chip's Verilog.

The hierarchy is that of ``hw.hierarchy``: a tile is laid out once, units over their tiles, the chip over its units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flow import netlist
from flow.commands.common import CommandError
from hw import hierarchy


@dataclass(frozen=True)
class Design:
    """One design: module ``top`` of the Verilog in ``rtl`` (as ``hw.emit`` writes it).

    ``blocks``: designs in it that are laid out before it, and taken as macros. ``level``: 0 for a design without blocks
    that is one itself, and one more than the highest of its blocks; it decides which metal is whose. ``corners``: of
    a chip, the corner (side, end) where macros of a kind gather.
    """

    preset: str
    unit: str | None
    top: str
    rtl: Path
    blocks: tuple[Design, ...] = ()
    level: int = 0
    corners: Mapping[str, tuple[str, str]] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.preset if self.unit is None else f"{self.preset}.{self.unit}"

    @property
    def block_names(self) -> tuple[str, ...]:
        """Modules of the blocks."""
        return tuple(block.top for block in self.blocks)

    def in_order(self) -> list[Design]:
        """The blocks below, once each and the lowest first, then the design itself."""
        found = {design.name: design for block in self.blocks for design in block.in_order()}
        return [*found.values(), self]


def make(config: str, unit: str | None = None, *, flat: bool = False) -> Design:
    """A preset's chip, or the unit or tile of that name; emits the chip's Verilog. ``flat``: without blocks.

    The chip's blocks are the units that hold tiles; a unit's blocks are those tiles.
    """
    from flow import rtl
    from hw.params import from_preset

    p = from_preset(config)
    folder = rtl.emitted(rtl.make(p)).resolve()
    modules = netlist.read(folder / rtl.VERILOG)
    units = [name for name in hierarchy.UNITS if name in modules]
    tiles = [name for name in hierarchy.TILES if name in modules]

    def part(name: str) -> Design:
        below = set(netlist.reachable(modules, name)[1:])
        blocks = () if flat else tuple(part(kind) for kind in tiles if kind in below)
        return Design(p.model.name, name, name, folder, blocks, 1 if blocks else 0)

    if unit is not None and unit not in (*units, *tiles):
        raise CommandError(f"{p.model.name} has no unit {unit}: it has {', '.join([*units, *tiles])}")
    if unit is not None:
        return part(unit)
    blocks = () if flat else tuple(block for block in map(part, units) if block.blocks)
    return Design(p.model.name, None, rtl.TOP, folder, blocks, 2, _corners(modules))


def _corners(modules: Mapping[str, netlist.NetlistModule]) -> dict[str, tuple[str, str]]:
    """Corners of ``hw.hierarchy`` by unit, and by kind of macro in it."""
    found: dict[str, tuple[str, str]] = {}
    for unit, corner in hierarchy.CORNERS.items():
        if unit in modules:
            found |= {kind: corner for kind in (unit, *netlist.cells(modules, unit)) if kind not in found}
    return found
