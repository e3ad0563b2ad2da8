"""The macro model: its fit, its errors, its monotony, and the Liberty text made from it."""

import itertools
import re

import pytest

from hw.memory import macro_model, views
from hw.memory.macro_model import MacroSpec, cost, errors, fit, outline, split


def test_constants_are_the_fit():
    """The constants in the file are what the least squares finds in the reference values."""
    for name, value in fit().items():
        assert getattr(macro_model, name) == pytest.approx(value, rel=2e-3), name


def test_errors_are_bounded():
    """The model's errors: the reference itself scatters (64x64 is as large as 64x96), hence the wide bounds."""
    table = errors()
    for key, worst, rms in (("area_error", 0.38, 0.17), ("clk_to_q_error", 0.09, 0.05), ("energy_error", 0.26, 0.14)):
        values = [row[key] for row in table]
        assert max(map(abs, values)) < worst
        assert (sum(value**2 for value in values) / len(values)) ** 0.5 < rms
    assert len(macro_model.error_table().splitlines()) == len(table) + 1


def test_the_chips_macros_are_not_flattered():
    """The two macros closest to the chip's weight banks are modelled larger than they are."""
    for row in errors():
        if (row["depth"], row["width"]) in ((512, 64), (1024, 32)):
            assert 0 < row["area_error"] < 0.17


@pytest.mark.parametrize("ports", macro_model.PORTS)
def test_larger_costs_more(ports):
    """Every cost grows with depth and with width, from the smallest macros on."""
    shapes = list(itertools.product((2, 16, 64, 128, 256, 512), (16, 32, 64, 96, 128)))
    for depth, width in shapes:
        base = cost(MacroSpec(ports, depth, width))
        for more_depth, more_width in ((2 * depth, width), (depth, width + 16)):
            if more_width > macro_model.MAX_WIDTH or more_depth * more_width > macro_model.MAX_BITS:
                continue
            larger = MacroSpec(ports, more_depth, more_width)
            grown = cost(larger)
            assert grown.area_um2 > base.area_um2
            assert grown.clk_to_q_ns > base.clk_to_q_ns
            assert grown.read_energy_fj > base.read_energy_fj
            assert grown.leakage_nw > base.leakage_nw


def test_two_ports_cost_the_stated_factor():
    one, two = MacroSpec("1rw", 256, 64), MacroSpec("1r1w", 256, 64)
    assert macro_model.cell_area(two) == pytest.approx(1.6 * macro_model.cell_area(one))


def test_outline_is_on_the_grid_and_holds_the_area():
    for depth, width in ((64, 32), (1024, 64), (16, 16), (2048, 39)):
        spec = MacroSpec("1rw", depth, width)
        x, y = outline(spec)
        assert x / macro_model.SITE_UM == pytest.approx(round(x / macro_model.SITE_UM), abs=1e-6)
        assert y / macro_model.ROW_UM == pytest.approx(round(y / macro_model.ROW_UM), abs=1e-6)
        assert macro_model.cell_area(spec) <= x * y < 1.06 * macro_model.cell_area(spec)


@pytest.mark.parametrize(
    ("width", "depth", "granularity"),
    [
        (w, d, g)
        for w in (1, 16, 64, 96, 200, 2176)
        for d in (16, 1024)
        for g in (0, 1, 8, 32, w)
        if not g or w % g == 0
    ],
)
def test_split(width, depth, granularity):
    """Banks cover the word, are as wide as macros can be, and hold whole lanes or whole fractions of one."""
    banks, bank = split(width, depth, "1rw", granularity)
    assert banks * bank >= width > (banks - 1) * bank
    assert 16 <= bank <= 128 and bank * depth <= macro_model.MAX_BITS
    assert not granularity or bank % granularity == 0 or granularity % bank == 0


def test_split_of_the_weight_memory():
    """2,176 bits by 1,024 words: 32 banks of 68 bits, within 0.1 % of 34 banks of 64."""
    assert split(2176, 1024) == (32, 68)
    areas = [n * macro_model.cell_area(MacroSpec("1rw", 1024, w)) for n, w in ((32, 68), (34, 64))]
    assert areas[0] < areas[1] < 1.001 * areas[0]


def test_liberty_is_balanced_and_complete():
    """Braces match, and every pin of every macro has its capacitance or load limit."""
    specs = [MacroSpec("1rw", 64, 32), MacroSpec("1r1w", 128, 96, 8)]
    text = views.liberty(specs)
    assert text.count("{") == text.count("}") and text.count("(") == text.count(")")
    for spec in specs:
        cell = text[text.index(f"cell({spec.name})") :]
        area = float(re.search(r"area : ([\d.]+);", cell).group(1))
        assert area == cost(spec).area_um2
        for name, direction, _ in spec.pins():
            pin = cell[re.search(rf"(pin|bus)\({name}\)", cell).start() :]
            assert re.search(r"max_capacitance|capacitance", pin) and f"direction : {direction}" in pin
