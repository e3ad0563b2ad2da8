"""Places of macros: columns along the left and the right edge, the middle is left to cells.

Fast and the same every time, whatever the design's size; the shape that a macro with its pins on one side asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Box = tuple[float, float]  # width, height in um


class MacrosDoNotFit(ValueError):
    """The columns of both sides meet; the message is one line."""


@dataclass(frozen=True)
class Part:
    """A kind of macro: its outline, how many there are, and how it lies.

    ``gap_um``: free above it. ``grid_um``: its lower left corner is at multiples of these. ``faces``: its pins are at
    its left edge, so it is mirrored on the left side of the core; otherwise they are all around it.
    """

    kind: str
    box: Box
    number: int
    gap_um: float
    grid_um: Box
    faces: bool


@dataclass(frozen=True)
class Place:
    """Where a macro of a kind lies: its lower left corner in um, and whether it is mirrored (left to right)."""

    kind: str
    x_um: float
    y_um: float
    mirrored: bool


def place(core: tuple[float, float, float, float], parts: list[Part], channel_um: float) -> list[Place]:
    """Places of all macros, largest kinds first; ``core``: left, bottom, right, top in um.

    Each kind is dealt to both sides in turn, or all to the left one where the core is too narrow for two. A column is
    filled from the bottom with what fits; beside it there are ``channel_um``. Raises MacrosDoNotFit.
    """
    ordered = sorted(parts, key=lambda part: (-part.box[0] * part.box[1], part.kind))
    dealt = [part for part in ordered for _ in range(part.number)]
    width = core[2] - core[0]
    for sides in ([dealt[::2], dealt[1::2]], [dealt, []]):
        placed = [_side(core, channel_um, rest, mirrored=left) for rest, left in zip(sides, (True, False), strict=True)]
        reach = sum(edge for _, edge in placed)
        if reach <= width + channel_um:
            return [place for places, _ in placed for place in places]
    raise MacrosDoNotFit(
        f"columns of macros are {reach:.0f} um wide, the core is {width:.0f} um: lower the utilisation"
    )


def _side(
    core: tuple[float, float, float, float], channel_um: float, rest: list[Part], *, mirrored: bool
) -> tuple[list[Place], float]:
    """Places along one edge, the left one for ``mirrored``, and how far its columns reach into the core."""
    left, bottom, right, top = core
    places: list[Place] = []
    edge = 0.0
    while rest:
        column, rest = _fill(rest, bottom, top)
        if not column:
            kind, (_, height) = rest[0].kind, rest[0].box
            raise MacrosDoNotFit(f"macro {kind} is {height:g} um high, the core {top - bottom:.1f} um")
        width = max(part.box[0] for part, _ in column)
        for part, y in column:
            # The pins of all in one line, at the channel.
            x = left + edge + width - part.box[0] if mirrored else right - edge - width
            x = _snapped(x, part.grid_um[0], up=mirrored)
            places.append(Place(part.kind, x, y, part.faces and mirrored))
        edge += width + channel_um
    return places, edge


def _fill(rest: list[Part], bottom: float, top: float) -> tuple[list[tuple[Part, float]], list[Part]]:
    """One column, from the bottom: (part, y) of those that fit, and what is left."""
    column, left_over, y = [], [], bottom
    for part in rest:
        at = _snapped(y, part.grid_um[1], up=True)
        if at + part.box[1] <= top + 1e-6:
            column.append((part, at))
            y = at + part.box[1] + part.gap_um
        else:
            left_over.append(part)
    return column, left_over


def _snapped(value: float, grid: float, *, up: bool) -> float:
    """The next multiple of a grid, up or down."""
    steps = round(value / grid, 6)
    whole = -(-steps // 1) if up else steps // 1
    return round(whole * grid, 4)


def by_kind(places: list[Place]) -> Mapping[str, list[Place]]:
    """Places of each kind, in order."""
    kinds: dict[str, list[Place]] = {}
    for each in places:
        kinds.setdefault(each.kind, []).append(each)
    return kinds
