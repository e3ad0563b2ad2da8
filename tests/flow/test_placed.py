"""The picture of a placed design: each unit's cells in its colour, macros outlined, in proportion."""

import numpy as np
import pytest
from PIL import Image

from flow.steps import placed

DEFINITION = """VERSION 5.8 ;
DESIGN small ;
UNITS DISTANCE MICRONS 2000 ;
DIEAREA ( 0 0 ) ( 200000 100000 ) ;
COMPONENTS 6 ;
    - array\\/row_1/_1_ INV_X1 + PLACED ( 20000 20000 ) N ;
    - array/row_1/_2_ INV_X1 + SOURCE TIMING + PLACED ( 40000 20000 ) FS ;
    - array/row_1/_4_ INV_X1 + PLACED ( 60000 20000 ) FS ;
    - head/_3_ INV_X1 + PLACED ( 120000 60000 ) N ;
    - _9_ INV_X1 + PLACED ( 160000 60000 ) N ;
    - head/bank_0 sram + FIXED ( 20000 50000 ) MY ;
    - head/far INV_X1 + UNPLACED ;
END COMPONENTS
"""
BOXES = {"INV_X1": (10.0, 10.0), "sram": (30.0, 20.0)}


def share(image, colour):
    """Part of the picture that has exactly one colour."""
    rgb = np.round(np.array(placed.RGB[colour]) * 255)
    return np.mean(np.all(np.abs(image.astype(float) - rgb) <= 1, axis=-1))


def test_units_have_their_colours(tmp_path):
    """Three cells of the largest unit, one of the next, one of the design's own, in the proportion of their areas."""
    (tmp_path / "x.def").write_text(DEFINITION)
    placed.draw(tmp_path / "x.def", BOXES, {"sram"}, tmp_path / "x.png")
    image = np.asarray(Image.open(tmp_path / "x.png").convert("RGB"))
    array, head, own = (share(image, colour) for colour in (placed.COLOURS[0], placed.COLOURS[1], placed.OTHERS))
    assert own > 0.002
    assert array == pytest.approx(3 * own, rel=0.25) and head == pytest.approx(own, rel=0.5)


def test_a_file_without_a_die_is_refused(tmp_path):
    (tmp_path / "x.def").write_text("DESIGN small ;\n")
    with pytest.raises(ValueError, match=r"^x.def has no die$"):
        placed.draw(tmp_path / "x.def", BOXES, (), tmp_path / "x.png")


@pytest.mark.parametrize(
    ("name", "unit"), [("array/row/_1_", "array"), ("kda\\/tile/_1_", "kda"), ("_1_", ""), ("clkbuf_2", "")]
)
def test_unit_of_an_instance(name, unit):
    assert placed.unit_of(name) == unit
