"""LEF of the SRAM macros: outline, pins on the routing tracks, power straps, obstructions.

The picture, for every macro:

* Outline: ``macro_model.outline``, whole placement sites by whole rows, so that a macro placed on a site and a row has
  its pins on tracks. It may be mirrored, not turned (the pins would leave the tracks, the straps their direction).
* Signal pins: metal3, at the left edge, centred on horizontal tracks, at least every second track, so that a via fits
  beside a via. Bit i of the written word lies beside bit i of the read word; clock, enables and address are in the
  middle. What the left edge cannot hold goes to the right edge.
* Power pins: metal4 straps from bottom to top, VDD and VSS in turn; the power grid above connects to them.
* Obstructions: metal1 to metal4, clear of the pins by the layers' spacing. metal5 and above are free.

Directions, pitches and spacings are those of Nangate 45's technology LEF.
"""

from collections.abc import Iterable

from hw.memory.macro_model import MacroSpec, outline

SIGNAL_LAYER, POWER_LAYER = "metal3", "metal4"
BLOCKED = ("metal1", "metal2")
TRACK_PITCH_UM, TRACK_OFFSET_UM = 0.14, 0.07  # of metal3
PIN_PITCH_TRACKS = 2
PIN_WIDTH_UM, PIN_LENGTH_UM = 0.07, 0.28  # metal3's width; long enough for a via3 and its metal
SIGNAL_SPACING_UM = 0.07  # metal3
EDGE_UM = 1.4  # no pins this near to a corner
STRAP_WIDTH_UM, STRAP_PAIR_UM = 0.56, 11.2  # a VDD and a VSS strap in every 11.2 um
POWER_SPACING_UM = 0.14  # metal4
GRID_UM = 0.005


class PinsDoNotFit(ValueError):
    """A macro has more pins than its edges have tracks."""


def pin_names(spec: MacroSpec) -> list[tuple[str, str]]:
    """(name of one bit, direction) in the order in which the pins lie along the edge, from the bottom."""
    scalars = {"clk", "en", "we", "r_en", "w_en"}
    pins = {name: (direction, width) for name, direction, width in spec.pins()}

    def bits(name: str) -> list[tuple[str, str]]:
        direction, width = pins[name]
        return [(name, direction)] if name in scalars else [(f"{name}[{i}]", direction) for i in range(width)]

    written, read = ("wdata", "rdata") if spec.ports == "1rw" else ("w_data", "r_data")
    data = [pin for pair in zip(bits(written), bits(read), strict=True) for pin in pair]
    control = [pin for name in pins if name not in (written, read) for pin in bits(name)]
    middle = len(data) // 4 * 2
    return data[:middle] + control + data[middle:]


def pin_places(spec: MacroSpec) -> list[tuple[str, str, float, float]]:
    """(name, direction, left edge, centre height) of every signal pin in um; heights are metal3 tracks."""
    width, height = outline(spec)
    names = pin_names(spec)
    first = round((EDGE_UM - TRACK_OFFSET_UM) / TRACK_PITCH_UM + 0.5)
    tracks = round(height / TRACK_PITCH_UM) - 2 * first
    room = tracks // PIN_PITCH_TRACKS
    if len(names) > 2 * room:
        raise PinsDoNotFit(f"{spec.name}: {len(names)} pins, but its two edges of {height:g} um hold {2 * room}")
    sides = [names] if len(names) <= room else [names[: (len(names) + 1) // 2], names[(len(names) + 1) // 2 :]]
    places = []
    for side, left in zip(sides, (0.0, round(width - PIN_LENGTH_UM, 3)), strict=False):
        step = tracks // len(side)
        for index, (name, direction) in enumerate(side):
            track = first + index * step
            places.append((name, direction, left, round(TRACK_OFFSET_UM + track * TRACK_PITCH_UM, 3)))
    return places


def straps(spec: MacroSpec) -> list[tuple[str, float]]:
    """(net, left edge in um) of every power strap, from left to right."""
    width, _ = outline(spec)
    count = 2 * max(1, int(width / STRAP_PAIR_UM))
    centres = [(index + 0.5) * width / count for index in range(count)]
    lefts = [round(round((centre - STRAP_WIDTH_UM / 2) / GRID_UM) * GRID_UM, 3) for centre in centres]
    return [("VDD" if index % 2 == 0 else "VSS", left) for index, left in enumerate(lefts)]


def _rectangle(x0: float, y0: float, x1: float, y1: float) -> str:
    return f"RECT {x0:.3f} {y0:.3f} {x1:.3f} {y1:.3f} ;"


def _pin(name: str, direction: str, use: str, layer: str, rectangles: list[str]) -> list[str]:
    shape = ["    SHAPE ABUTMENT ;"] if use in ("POWER", "GROUND") else []
    return [
        f"  PIN {name}",
        f"    DIRECTION {direction} ;",
        f"    USE {use} ;",
        *shape,
        "    PORT",
        f"      LAYER {layer} ;",
        *(f"        {rectangle}" for rectangle in rectangles),
        "    END",
        f"  END {name}",
    ]


def _obstructions(spec: MacroSpec) -> list[str]:
    """Whole outline below the pins' layer; beside the pins and between the straps on theirs."""
    width, height = outline(spec)
    lines = ["  OBS"]
    for layer in BLOCKED:
        lines += [f"    LAYER {layer} ;", f"      {_rectangle(0, 0, width, height)}"]
    both = any(left > 0 for _, _, left, _ in pin_places(spec))
    clear = PIN_LENGTH_UM + SIGNAL_SPACING_UM
    lines += [f"    LAYER {SIGNAL_LAYER} ;"]
    lines += [f"      {_rectangle(clear, 0, width - clear if both else width, height)}"]
    lines += [f"    LAYER {POWER_LAYER} ;"]
    at = clear
    for _, left in straps(spec):
        if left - POWER_SPACING_UM > at:
            lines += [f"      {_rectangle(at, 0, left - POWER_SPACING_UM, height)}"]
        at = left + STRAP_WIDTH_UM + POWER_SPACING_UM
    end = width - clear if both else width
    if end > at:
        lines += [f"      {_rectangle(at, 0, end, height)}"]
    return [*lines, "  END"]


def macro(spec: MacroSpec) -> str:
    """LEF of one macro."""
    width, height = outline(spec)
    lines = [
        f"MACRO {spec.name}",
        "  CLASS BLOCK ;",
        "  ORIGIN 0 0 ;",
        f"  FOREIGN {spec.name} 0 0 ;",
        f"  SIZE {width:.3f} BY {height:.3f} ;",
        "  SYMMETRY X Y ;",
    ]
    half = PIN_WIDTH_UM / 2
    for name, direction, left, centre in pin_places(spec):
        use = "CLOCK" if name == "clk" else "SIGNAL"
        shape = _rectangle(left, centre - half, left + PIN_LENGTH_UM, centre + half)
        lines += _pin(name, direction.upper(), use, SIGNAL_LAYER, [shape])
    for net, use in (("VDD", "POWER"), ("VSS", "GROUND")):
        shapes = [_rectangle(left, 0, left + STRAP_WIDTH_UM, height) for name, left in straps(spec) if name == net]
        lines += _pin(net, "INOUT", use, POWER_LAYER, shapes)
    return "\n".join([*lines, *_obstructions(spec), f"END {spec.name}"])


def lef(specs: Iterable[MacroSpec]) -> str:
    """LEF library of all given macros (um). Raises PinsDoNotFit."""
    macros = "\n\n".join(macro(spec) for spec in sorted(set(specs)))
    return f'VERSION 5.7 ;\nBUSBITCHARS "[]" ;\nDIVIDERCHAR "/" ;\n\n{macros}\n\nEND LIBRARY\n'
