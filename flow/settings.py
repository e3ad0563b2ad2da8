"""Settings of the layout flow: few, wide, the same for every design unless a design overrides them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flow.steps.sta import Constraints


@dataclass(frozen=True)
class Corner:
    """A process corner: name and the cell library's Liberty file."""

    name: str
    liberty: Path


UTILISATION = (0.80, 0.65, 0.80)  # by level: cells; blocks, macros and cells; units and macros
# Of tiles that cannot be routed at their level's: they are full of wide gates, and a row of the array has 2,156 pins.
UTILISATION_OF = {"array_row": 0.65, "mla_latent_lanes": 0.68, "mla_rope_lanes": 0.68, "vector_tile": 0.68}


@dataclass(frozen=True)
class FlowSettings:
    """Lengths in um, times in ns, shares 0 to 1.

    ``utilisation``: area of cells and macros over the core's, after synthesis; by level: a design over blocks needs
    room between them. ``density``: of placement bins; None: as even as the core allows plus a tenth of what is left.
    ``macro_channel_um``: between macros; where there are blocks, ``wall_channel_um``, and ``block_channel_um`` between
    the blocks, for their wires. ``padding``: sites kept free beside a cell while it is placed.
    ``routability``: cells are placed further apart where their wires would not fit; among blocks, where most wires are
    not the cells', that can drive them away.
    ``detailed_cells``: a larger design ends with its global route, which then makes ``rough_iterations`` against
    congestion: one takes minutes at a million nets.
    """

    constraints: Constraints = field(default_factory=Constraints)
    utilisation: float = UTILISATION[0]
    aspect: float = 1.0
    margin_um: float = 2.8
    macro_channel_um: float = 5.0
    wall_channel_um: float = 40.0
    block_channel_um: tuple[float, float] = (40.0, 40.0)  # between columns of blocks, and in them
    density: float | None = None
    padding: int = 0
    routability: bool = True
    setup_margin_ns: float = 0.1
    hold_margin_ns: float = 0.05
    max_wire_um: float = 800.0
    die_um: tuple[float, float] | None = None  # None: from utilisation
    pin_layers: tuple[tuple[str, ...], tuple[str, ...]] = (("metal3", "metal5"), ("metal4", "metal6"))
    route_iterations: int = 64
    rough_iterations: int = 20
    detailed_cells: int = 250_000
    rcx_rules: Path | None = None
    slow: Path | None = None
    fast: Path | None = None

    def corners(self, typical: Path) -> list[Corner]:
        """Typical first; slow and fast where their Liberty was given."""
        given = [("typical", typical), ("slow", self.slow), ("fast", self.fast)]
        return [Corner(name, file) for name, file in given if file is not None]

    def plain(self) -> dict[str, Any]:
        """JSON values; files by their names."""
        return {name: value.name if isinstance(value, Path) else value for name, value in asdict(self).items()}
