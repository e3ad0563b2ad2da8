"""Places of macros: stacked against the left and the right edge, without pockets; cells and blocks are between.

A wall of macros with cells on both sides of it must be crossed by all wires between these; one at the edge by none.
Fast and the same every time, whatever the design's size; the shape that a macro with its pins on one side asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

Box = tuple[float, float]  # width, height in um
PULL = 0.2  # um into the core that a macro goes for each um that it comes nearer to its corner
PINS_PER_UM = 3.9  # of an edge: what can cross a macro on the metals above it; more behind one is the last choice
TINY = 1e-6


class MacrosDoNotFit(ValueError):
    """The macros of both sides meet; the message is one line."""


@dataclass(frozen=True)
class Corner:
    """Where macros belong that should lie together: ``left`` side or right, ``top`` end of it or bottom."""

    left: bool
    top: bool

    @classmethod
    def of(cls, side: str, end: str) -> Corner:
        """From words: "left" or "right", "top" or "bottom"."""
        return cls(side == "left", end == "top")


@dataclass(frozen=True)
class Part:
    """A kind of macro: its outline, how many there are, and how it lies.

    ``gap_um``: free above it. ``grid_um``: its lower left corner is at multiples of these. ``faces``: its pins are at
    its left edge, so it is mirrored on the left side of the core; a block has them all around. ``corner``: where
    all of the kind go; None: to both sides in balance. ``pins``: signals of one.
    """

    kind: str
    box: Box
    number: int
    gap_um: float
    grid_um: Box
    faces: bool
    corner: Corner | None = None
    pins: int = 0


@dataclass(frozen=True)
class Place:
    """Where a macro of a kind lies: its lower left corner in um, and whether it is mirrored (left to right)."""

    kind: str
    x_um: float
    y_um: float
    mirrored: bool


def place(
    core: tuple[float, float, float, float], parts: list[Part], channel_um: float, between_um: float | None = None
) -> list[Place]:
    """Places of all macros; ``core``: left, bottom, right, top in um.

    Those with pins on one side go to the edges, largest kinds first, each where it reaches least far into the core, or
    where that and the way to its corner are least; ``channel_um`` are left in front of the pins of those behind. All go
    to the left side where the core is too narrow for two. Those with pins all around stand in columns in the middle,
    ``between_um`` (None: ``channel_um``) apart, and half their gap from the core's lower and upper edge; then all keep
    a channel from the core's edges, where the design's own pins are. Raises MacrosDoNotFit.
    """
    ordered = sorted(parts, key=lambda part: (-part.box[0] * part.box[1], part.kind))
    if not all(part.faces for part in parts):
        core = (core[0] + channel_um, core[1] + channel_um, core[2] - channel_um, core[3] - channel_um)
    between_um = channel_um if between_um is None else between_um
    edge = max([0.0, *(part.gap_um / 2 - channel_um for part in ordered if not part.faces)])
    inner = (core[0], core[1] + edge, core[2], core[3] - edge)
    around, middle = _middle(inner, [part for part in ordered if not part.faces], between_um)
    ordered = [part for part in ordered if part.faces]
    width = core[2] - core[0] - around
    both = _dealt(ordered)
    for sides in (both, ([part for part in ordered for _ in range(part.number)], [])):
        walls = [_Wall(core, channel_um, left=left) for left in (True, False)]
        for wall, rest in zip(walls, sides, strict=True):
            for part in _spread(core, rest) if middle else rest:
                wall.add(part)
        reach = sum(wall.reach + channel_um for wall in walls if wall.places)
        if reach <= width + channel_um and (not middle or all(2 * wall.reach <= width for wall in walls)):
            return [place for wall in walls for place in wall.places] + middle
    raise MacrosDoNotFit(
        f"columns of macros are {reach + around:.0f} um wide, the core is {core[2] - core[0]:.0f} um:"
        " lower the utilisation"
    )


def _middle(core: tuple[float, float, float, float], parts: list[Part], channel_um: float) -> tuple[float, list[Place]]:
    """Columns of blocks in the middle of the core, and how much of its width they and their channels take.

    As few columns as hold them, as even as can be.
    Room for wires is on both sides of them, where memories and ports are.
    """
    left, _, right, _ = core
    number = sum(part.number for part in parts)
    fewest = len(_filled(core, parts, number))
    columns = _filled(core, parts, -(-number // fewest)) if fewest else []
    widths = [max(part.box[0] for part, _ in column) for column in columns]
    taken = sum(width + channel_um for width in widths) + channel_um if columns else 0.0
    if taken > right - left + 2 * channel_um:
        raise MacrosDoNotFit(
            f"columns of macros are {taken:.0f} um wide, the core is {right - left:.0f} um: lower the utilisation"
        )
    places, x = [], (left + right - taken) / 2 + channel_um
    for column, width in zip(columns, widths, strict=True):
        places += [Place(part.kind, _snapped(x, part.grid_um[0], up=True), y, False) for part, y in column]
        x += width + channel_um
    return taken, places


def _filled(core: tuple[float, float, float, float], parts: list[Part], most: int) -> list[list[tuple[Part, float]]]:
    """(block, its lower edge) of each column, filled from the bottom with no more than ``most`` blocks."""
    _, bottom, _, top = core
    columns: list[list[tuple[Part, float]]] = []
    for part in (one for one in parts for _ in range(one.number)):
        above = bottom
        if columns and len(columns[-1]) < most:
            below, y = columns[-1][-1]
            above = y + below.box[1] + part.gap_um
        y = _snapped(above, part.grid_um[1], up=True)
        if not columns or len(columns[-1]) == most or y + part.box[1] > top + TINY:
            y = _snapped(bottom, part.grid_um[1], up=True)
            columns.append([])
        if y + part.box[1] > top + TINY:
            raise _too_high(part, core)
        columns[-1].append((part, y))
    return columns


def _spread(core: tuple[float, float, float, float], side: list[Part]) -> list[Part]:
    """The macros of a side with what is left of its height between them: blocks opposite all along it."""
    free = core[3] - core[1] - sum(part.box[1] + part.gap_um for part in side)
    return [replace(part, gap_um=part.gap_um + max(0.0, free) / len(side)) for part in side]


def _dealt(ordered: list[Part]) -> tuple[list[Part], list[Part]]:
    """Macros of the left and the right side: those with a corner where they belong, the others to the emptier one."""
    area = {
        left: sum(_area(p) * p.number for p in ordered if p.corner and p.corner.left == left) for left in (True, False)
    }
    sides: dict[bool, list[Part]] = {True: [], False: []}
    for part in ordered:
        for _ in range(part.number):
            left = part.corner.left if part.corner else area[True] <= area[False]
            sides[left].append(part)
            if part.corner is None:
                area[left] += _area(part)
    return sides[True], sides[False]


def _too_high(part: Part, core: tuple[float, float, float, float]) -> MacrosDoNotFit:
    room = max(0.0, core[3] - core[1])
    return MacrosDoNotFit(f"macro {part.kind} is {part.box[1]:g} um high, the core has room for {room:.1f} um")


def _area(part: Part) -> float:
    return part.box[0] * part.box[1]


@dataclass(frozen=True)
class _Taken:
    """A macro of a wall: from ``low`` to ``high`` and free above; how far into the core; pins at it and behind it."""

    low: float
    high: float
    gap: float
    depth: float
    pins_per_um: float


@dataclass
class _Wall:
    """The macros along one edge."""

    core: tuple[float, float, float, float]
    channel_um: float
    left: bool
    taken: list[_Taken] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)

    @property
    def reach(self) -> float:
        """How far the macros come into the core."""
        return max((one.depth for one in self.taken), default=0.0)

    def add(self, part: Part) -> None:
        """Place one macro. Raises MacrosDoNotFit when it is higher than the core."""
        height = part.box[1]
        _, bottom, _, top = self.core
        found = []
        for y in self._levels(part):
            behind = [
                one for one in self.taken if y < one.high + one.gap - TINY and one.low < y + height + part.gap_um - TINY
            ]
            x, depth = self._across(max((one.depth + self.channel_um for one in behind), default=0.0), part)
            pins = max((one.pins_per_um for one in behind), default=0.0)
            away = top - y - height if part.corner and part.corner.top else y - bottom
            cost = depth + PULL * away if part.corner else depth
            taken = _Taken(y, y + height, part.gap_um, depth, pins + part.pins / height)
            found.append((pins > PINS_PER_UM, round(cost, 3), away, x, y, taken))
        if not found:
            raise _too_high(part, self.core)
        *_, x, y, taken = min(found, key=lambda one: one[:4])
        self.taken.append(taken)
        self.places.append(Place(part.kind, x, y, self.left))

    def _levels(self, part: Part) -> Iterator[float]:
        """Lower edges to try: at the ends of the core, above and below each macro that is there."""
        _, bottom, _, top = self.core
        height, grid = part.box[1], part.grid_um[1]
        above = [bottom, *(one.high + one.gap for one in self.taken)]
        below = [top, *(one.low - part.gap_um for one in self.taken)]
        for y in (*(_snapped(y, grid, up=True) for y in above), *(_snapped(y - height, grid, up=False) for y in below)):
            if bottom - TINY <= y and y + height <= top + TINY:
                yield y

    def _across(self, behind: float, part: Part) -> tuple[float, float]:
        """Left edge of a macro with so much behind it, and how far into the core it comes."""
        left, _, right, _ = self.core
        width, grid = part.box[0], part.grid_um[0]
        if self.left:
            x = _snapped(left + behind, grid, up=True)
            return x, x + width - left
        x = _snapped(right - behind - width, grid, up=False)
        return x, right - x


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
