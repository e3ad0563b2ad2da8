"""LEF of the SRAM macros, read back by KLayout: outline, pins on tracks, straps, obstructions."""

import re

import klayout.db as db
import pytest

from flow.nangate45 import library as nangate45
from flow.nangate45 import platform
from flow.steps import gds
from hw.memory import lef
from hw.memory.macro_model import MacroSpec, outline

SPECS = [
    MacroSpec("1rw", 4, 64, 32),
    MacroSpec("1rw", 64, 16),
    MacroSpec("1rw", 926, 64, 32),
    MacroSpec("1r1w", 48, 128, 32),
    MacroSpec("1rw", 2048, 39),
    MacroSpec("1rw", 16, 128, 1),  # so many pins that they take both edges
]


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    """All macros as KLayout reads them from LEF."""
    folder = tmp_path_factory.mktemp("lef")
    (folder / "macros.lef").write_text(lef.lef(SPECS))
    gds.macro_shapes(nangate45.locate().tech_lef, folder / "macros.lef", folder / "macros.gds", obstructions=True)
    found = db.Layout()
    found.read(str(folder / "macros.gds"))
    return found


def shapes(layout, spec, layer):
    """Merged metal of one layer of a macro, um."""
    index = layout.find_layer(platform.GDS_LAYERS[layer], 0)
    region = db.Region(layout.cell(spec.name).begin_shapes_rec(index)) if index is not None else db.Region()
    return region.merged()


def labels(layout, spec, layer):
    """Pin names that KLayout found on a layer, with their places in um."""
    index = layout.find_layer(platform.GDS_LAYERS[layer], 1)
    texts = [shape.dtext for shape in layout.cell(spec.name).shapes(index).each() if shape.is_text()]
    return [(text.string, text.x, text.y) for text in texts]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_pin_is_there_and_on_a_track(layout, spec):
    """All bits of all ports, on metal3 at the macro's edge, centred on tracks also when the macro is mirrored."""
    width, height = outline(spec)
    expected = {
        name if bits == 1 and name in ("clk", "en", "we", "r_en", "w_en") else f"{name}[{bit}]"
        for name, _, bits in spec.pins()
        for bit in range(bits)
    }
    places = lef.pin_places(spec)
    assert {name for name, *_ in places} == expected and len(places) == len(expected)
    assert {name for name, *_ in labels(layout, spec, "metal3")} == expected
    metal3 = platform.LAYERS[2]
    for _, _, left, centre in places:
        assert left in (0.0, round(width - lef.PIN_LENGTH_UM, 3))
        for height_of_track in (centre, height - centre):
            tracks = (height_of_track - platform.Y_OFFSET_UM) / metal3.y_pitch_um
            assert tracks == pytest.approx(round(tracks), abs=1e-6)
    for _, x, y in labels(layout, spec, "metal3"):
        assert x < lef.PIN_LENGTH_UM or x > width - lef.PIN_LENGTH_UM
        tracks = (y - platform.Y_OFFSET_UM) / metal3.y_pitch_um
        assert tracks == pytest.approx(round(tracks), abs=1e-3)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_outline_is_on_the_placement_grid(layout, spec):
    """Whole sites by whole rows, the same as the area model's."""
    box = layout.cell(spec.name).dbbox()
    assert (box.width(), box.height()) == pytest.approx(outline(spec))
    assert box.width() / platform.SITE_UM == pytest.approx(round(box.width() / platform.SITE_UM))
    assert box.height() / platform.ROW_UM == pytest.approx(round(box.height() / platform.ROW_UM))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_power_straps_run_from_edge_to_edge(layout, spec):
    """At least one VDD and one VSS strap; on metal4 nothing is nearer than its spacing to a strap."""
    _, height = outline(spec)
    nets = [net for net, _ in lef.straps(spec)]
    assert nets.count("VDD") == nets.count("VSS") >= 1
    dbu = layout.dbu
    metal4 = shapes(layout, spec, "metal4")
    for _, left in lef.straps(spec):
        strap = db.Box(round(left / dbu), 0, round((left + lef.STRAP_WIDTH_UM) / dbu), round(height / dbu))
        assert db.Region(strap).not_inside(metal4).is_empty()
        near = metal4 & (db.Region(strap).sized(round(lef.POWER_SPACING_UM / dbu) - 1) - db.Region(strap))
        assert near.is_empty()


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_wires_keep_out_but_reach_the_pins(layout, spec):
    """metal1 and metal2 are blocked whole; metal3 has no spacing error, so a wire from outside meets pins only."""
    width, height = outline(spec)
    for layer in ("metal1", "metal2"):
        assert shapes(layout, spec, layer).area() * layout.dbu**2 == pytest.approx(width * height)
    errors = shapes(layout, spec, "metal3").space_check(round(lef.SIGNAL_SPACING_UM / layout.dbu))
    assert errors.count() == 0
    assert all(shapes(layout, spec, layer).is_empty() for layer in ("metal5", "metal6"))


def test_more_pins_than_tracks_are_refused(monkeypatch):
    """A macro whose edges hold no more pins is refused with one line."""
    monkeypatch.setattr(lef, "outline", lambda spec: (20.0, 14.0))
    with pytest.raises(lef.PinsDoNotFit, match=r"sram_1rw_64x64: \d+ pins, but its two edges of 14 um hold \d+"):
        lef.pin_places(MacroSpec("1rw", 64, 64))


def test_technology_is_the_one_that_the_macros_assume():
    """Pitch, width, spacing and direction of metal3 and metal4 in the installed technology LEF."""
    text = nangate45.locate().tech_lef.read_text()
    layer = {
        name: re.search(rf"^LAYER {name}\n(.*?)^END {name}", text, flags=re.M | re.S).group(1)
        for name in ("metal3", "metal4")
    }
    assert re.search(r"PITCH 0.14", layer["metal3"]) and "DIRECTION HORIZONTAL" in layer["metal3"]
    assert re.search(r"OFFSET 0.095 0.07", layer["metal3"]) and re.search(
        r"^\s+WIDTH 0.07 ;", layer["metal3"], flags=re.M
    )
    assert "DIRECTION VERTICAL" in layer["metal4"] and "0.1400" in layer["metal4"]
    assert f"SIZE {platform.SITE_UM} BY {platform.ROW_UM}" in text
