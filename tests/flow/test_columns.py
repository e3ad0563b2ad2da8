"""Macros in columns: all placed, none over another, none with a pocket behind it, pins towards the cells, on grids."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow.steps.columns import Corner, MacrosDoNotFit, Part, by_kind, place

CORE = (2.85, 2.8, 602.85, 500.0)


def part(name, box, number, *, sram=True, corner=None, pins=0):
    gap, grid = (2.8, (0.19, 1.4)) if sram else (20.0, (5.32, 5.6))
    return Part(name, box, number, gap, grid, sram, corner, pins)


boxes = st.tuples(st.integers(20, 150).map(lambda n: n * 0.19), st.integers(5, 90).map(lambda n: n * 1.4))


corners = st.one_of(st.none(), st.builds(Corner, st.booleans(), st.booleans()))


@given(
    st.lists(st.tuples(boxes, st.integers(1, 6), st.booleans(), corners, st.integers(0, 500)), min_size=1, max_size=5),
    st.sampled_from([5.0, 20.0]),
)
@settings(max_examples=200, deadline=None)
def test_every_macro_has_a_place_of_its_own(kinds, channel):
    """Counts, bounds, grids, distances; or the one line that says that they do not fit."""
    parts = [
        part(f"m{i}", box, number, sram=sram, corner=corner, pins=pins)
        for i, (box, number, sram, corner, pins) in enumerate(kinds)
    ]
    try:
        places = place(CORE, parts, channel)
    except MacrosDoNotFit as problem:
        assert "\n" not in str(problem)
        assert sum(p.number * (p.box[0] + 25.32) * (p.box[1] + 25.6) for p in parts) > 0.2 * 600 * 497
        return
    known = {p.kind: p for p in parts}
    assert {kind: len(found) for kind, found in by_kind(places).items()} == {p.kind: p.number for p in parts}
    left, bottom, right, top = CORE
    spans = []
    for each in places:
        (width, height), grid = known[each.kind].box, known[each.kind].grid_um
        assert each.x_um >= left - 1e-6 and each.y_um >= bottom - 1e-6
        assert each.y_um + height <= top + 1e-6 and each.x_um + width <= right + grid[0]
        for value, step in ((each.x_um, grid[0]), (each.y_um, grid[1])):
            assert value / step == pytest.approx(round(value / step), abs=1e-3)
        spans.append((each.x_um, each.y_um, each.x_um + width, each.y_um + height))
    for i, a in enumerate(spans):
        for b in spans[:i]:
            apart = max(a[0] - b[2], b[0] - a[2], a[1] - b[3], b[1] - a[3])
            assert apart > -1e-6, (a, b)


def behind(places, sizes, one):
    """How much is free between a macro and what is behind it: another one, or the edge of the core."""
    left, _, right, _ = CORE
    (width, height), found = sizes[one.kind], []
    for other in places:
        w, h = sizes[other.kind]
        if other.y_um < one.y_um + height and one.y_um < other.y_um + h:
            found += [one.x_um - other.x_um - w, other.x_um - one.x_um - width]
    return min(d for d in [one.x_um - left, right - one.x_um - width, *found] if d > -1e-6)


def test_pins_look_at_the_middle():
    """Macros with pins at their left edge are mirrored on the left; blocks never are."""
    places = place(
        CORE, [part("a", (95.0, 140.0), 4), part("b", (57.0, 140.0), 2), part("t", (57.0, 56.0), 2, sram=False)], 20.0
    )
    found = by_kind(places)
    assert sorted(p.mirrored for p in found["a"]) == [False, False, True, True]
    assert not any(p.mirrored for p in found["t"])
    for each in (*found["a"], *found["b"]):
        assert each.mirrored == (each.x_um < 300)


def test_nothing_fits_behind_a_macro():
    """One lower than its neighbour stands at the edge too: cells behind a wall would have to cross it."""
    sizes = {"a": (95.0, 140.0), "b": (57.0, 98.0), "c": (28.5, 70.0)}
    numbers = {"a": 5, "b": 3, "c": 4}
    places = place(CORE, [part(kind, sizes[kind], numbers[kind]) for kind in sizes], 12.0)
    assert all(behind(places, sizes, one) <= 12.0 + 0.19 for one in places)


@pytest.mark.parametrize("side,end", [(s, e) for s in ("left", "right") for e in ("top", "bottom")])
def test_a_kind_gathers_in_its_corner(side, end):
    """All of it; what goes to both sides makes up for its area."""
    parts = [part("w", (95.0, 98.0), 4), part("k", (76.0, 98.0), 3, corner=Corner.of(side, end))]
    found = by_kind(place(CORE, parts, 12.0))
    assert {p.x_um < 300 for p in found["k"]} == {side == "left"}
    assert sum((p.x_um < 300) == (side == "left") for p in found["w"]) < 2
    (alone,) = place(CORE, [part("k", (76.0, 98.0), 1, corner=Corner.of(side, end))], 12.0)
    assert (alone.y_um > 250) == (end == "top")


def test_pins_of_a_stack_are_limited():
    """A third macro in front of two goes elsewhere where their many wires have to cross it."""
    corner = Corner.of("left", "bottom")

    def third(pins):
        boxes = {"a": (95.0, 497.0), "b": (19.0, 238.0), "c": (9.5, 238.0)}
        places = place(CORE, [part(kind, box, 1, corner=corner, pins=pins) for kind, box in boxes.items()], 12.0)
        return next(p for p in places if p.kind == "c")

    assert third(100).y_um == pytest.approx(2.8)
    assert third(1000).y_um > 238


def test_blocks_stand_in_the_middle():
    """In columns, filled from the bottom; memories are spread along the edges, their pins at the blocks."""
    parts = [part("t", (85.12, 89.6), 8, sram=False), part("m", (57.0, 70.0), 4)]
    found = by_kind(place(CORE, parts, 20.0))
    xs = sorted({p.x_um for p in found["t"]})
    assert len(xs) == 2 and [sum(p.x_um == x for p in found["t"]) for x in xs] == [4, 4]
    assert xs[0] - 2.85 == pytest.approx(602.85 - xs[1] - 85.12, abs=2 * 5.32)
    assert found["t"][0].x_um == xs[0] and found["t"][0].y_um < found["t"][1].y_um
    for left in (True, False):
        low, high = sorted(p.y_um for p in found["m"] if p.mirrored == left)
        assert high - low > 200
    with pytest.raises(MacrosDoNotFit, match="columns of macros are"):
        place(CORE, [part("t", (85.12, 89.6), 8, sram=False), part("m", (190.0, 70.0), 4)], 20.0)
    with pytest.raises(MacrosDoNotFit, match="columns of macros are"):
        place(CORE, [part("t", (285.0, 400.4), 4, sram=False)], 20.0)
    with pytest.raises(MacrosDoNotFit, match="macro t is 600.6 um high"):
        place(CORE, [part("t", (85.12, 600.6), 1, sram=False)], 20.0)


def test_blocks_can_stand_further_apart():
    """From each other, and from the lower and upper edge by half of it; memories stay where they were."""
    parts = [part("t", (85.12, 89.6), 4, sram=False), part("m", (57.0, 70.0), 4)]
    near, far = (
        by_kind(place(CORE, parts, 20.0)),
        by_kind(place(CORE, [replace(parts[0], gap_um=80.0), parts[1]], 20.0, 80.0)),
    )
    assert near["m"] == far["m"]
    ys = sorted({p.y_um for p in far["t"]})
    assert len(ys) == 2 and ys[0] - CORE[1] >= 40.0 and ys[1] - ys[0] - 89.6 >= 80.0
    xs = sorted({p.x_um for p in far["t"]})
    assert len(xs) == 2 and xs[1] - xs[0] - 85.12 >= 80.0 - 5.32
    with pytest.raises(MacrosDoNotFit, match="columns of macros are"):
        place(CORE, parts, 20.0, 200.0)


@pytest.mark.parametrize("number", range(1, 11))
def test_columns_of_blocks_are_few_and_even(number):
    """No column is more than one block higher than another, and one fewer would not hold them all."""
    most = max(n for n in range(1, 11) if len(columns_of(n)) == 1)
    heights = columns_of(number)
    assert sum(heights) == number and max(heights) - min(heights) <= -number % len(heights)
    assert len(heights) == -(-number // most)


def columns_of(number):
    """Blocks in each column."""
    places = place(CORE, [part("t", (85.12, 89.6), number, sram=False)], 20.0)
    return [sum(p.x_um == x for p in places) for x in sorted({p.x_um for p in places})]


def test_one_side_where_the_core_is_narrow():
    """Two wide macros stand one over the other where they do not fit beside each other."""
    places = place((0.0, 0.0, 130.0, 300.0), [part("a", (95.0, 140.0), 2)], 20.0)
    assert len({p.x_um for p in places}) == 1
    with pytest.raises(MacrosDoNotFit, match="columns of macros are .* lower the utilisation"):
        place((0.0, 0.0, 130.0, 200.0), [part("a", (95.0, 140.0), 2)], 20.0)
    with pytest.raises(MacrosDoNotFit, match="macro a is 140 um high, the core has room for 100.0 um"):
        place((0.0, 0.0, 130.0, 100.0), [part("a", (95.0, 140.0), 2)], 20.0)
