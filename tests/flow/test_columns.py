"""Macros in columns: all placed, none over another, pins towards the cells, on their grids."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow.steps.columns import MacrosDoNotFit, Part, by_kind, place

CORE = (2.85, 2.8, 602.85, 500.0)


def part(name, box, number, *, sram=True):
    return Part(name, box, number, 2.8 if sram else 20.0, (0.19, 1.4) if sram else (5.32, 5.6), sram)


boxes = st.tuples(st.integers(20, 150).map(lambda n: n * 0.19), st.integers(5, 90).map(lambda n: n * 1.4))


@given(
    st.lists(st.tuples(boxes, st.integers(1, 6), st.booleans()), min_size=1, max_size=5), st.sampled_from([5.0, 20.0])
)
@settings(max_examples=200, deadline=None)
def test_every_macro_has_a_place_of_its_own(kinds, channel):
    """Counts, bounds, grids, distances; or the one line that says that they do not fit."""
    parts = [part(f"m{i}", box, number, sram=sram) for i, (box, number, sram) in enumerate(kinds)]
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


def test_pins_look_at_the_middle():
    """Macros with pins at their left edge are mirrored on the left, in one line at the channel; blocks never are."""
    places = place(
        CORE, [part("a", (95.0, 140.0), 4), part("b", (57.0, 140.0), 2), part("t", (57.0, 56.0), 2, sram=False)], 20.0
    )
    found = by_kind(places)
    assert sorted(p.mirrored for p in found["a"]) == [False, False, True, True]
    assert not any(p.mirrored for p in found["t"])
    for kind, width in (("a", 95.0), ("b", 57.0)):
        for p in found[kind]:
            assert (
                (p.x_um + width == pytest.approx(2.85 + 95.0, abs=0.2))
                if p.mirrored
                else p.x_um == pytest.approx(507.87, abs=0.2)
            )


def test_one_side_where_the_core_is_narrow():
    """Two wide macros stand one over the other where they do not fit beside each other."""
    places = place((0.0, 0.0, 130.0, 300.0), [part("a", (95.0, 140.0), 2)], 20.0)
    assert len({p.x_um for p in places}) == 1
    with pytest.raises(MacrosDoNotFit, match="columns of macros are .* lower the utilisation"):
        place((0.0, 0.0, 130.0, 200.0), [part("a", (95.0, 140.0), 2)], 20.0)
    with pytest.raises(MacrosDoNotFit, match="macro a is 140 um high, the core 100.0 um"):
        place((0.0, 0.0, 130.0, 100.0), [part("a", (95.0, 140.0), 2)], 20.0)
