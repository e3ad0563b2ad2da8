"""What layout needs to know of Nangate 45 beyond the library's files: tracks, wire values, power grid, special cells.

Numbers that are not in the library's own files come from OpenROAD-flow-scripts' platform of the same name and say so.
"""

from dataclasses import dataclass

SITE = "FreePDK45_38x28_10R_NP_162NW_34O"
SITE_UM = 0.19
ROW_UM = 1.4
MANUFACTURING_GRID_UM = 0.005  # a multiple of the technology's 0.0025


@dataclass(frozen=True)
class Layer:
    """A routing layer. Tracks: first one at the offset, then every pitch, from the die's lower left corner (um)."""

    name: str
    horizontal: bool
    x_pitch_um: float
    y_pitch_um: float
    kohm_per_um: float
    ff_per_um: float


X_OFFSET_UM, Y_OFFSET_UM = 0.095, 0.07  # of all layers' tracks, from the technology LEF

# Pitches: technology LEF; metal1 to metal3 share the cells' grid (0.19 by 0.14), as the flow scripts have it.
# Resistance: sheet resistance over width (technology LEF). Capacitance: the flow scripts' setRC.tcl, which they fitted
# to extracted wires with neighbours; the LEF's own plate and edge values leave coupling out and are half of these.
LAYERS = (
    Layer("metal1", True, 0.19, 0.14, 5.4286e-3, 0.0741819),
    Layer("metal2", False, 0.19, 0.14, 3.5717e-3, 0.0833611),
    Layer("metal3", True, 0.19, 0.14, 3.5715e-3, 0.103981),
    Layer("metal4", False, 0.28, 0.28, 1.5e-3, 0.11915),
    Layer("metal5", True, 0.28, 0.28, 1.5e-3, 0.109256),
    Layer("metal6", False, 0.28, 0.28, 1.5e-3, 0.114168),
    Layer("metal7", True, 0.8, 0.8, 1.875e-4, 0.117491),
    Layer("metal8", False, 0.8, 0.8, 1.875e-4, 0.0945346),
    Layer("metal9", True, 1.6, 1.6, 3.75e-5, 0.106091),
    Layer("metal10", False, 1.6, 1.6, 3.75e-5, 0.0737095),
)
SIGNAL_RC_LAYER, CLOCK_RC_LAYER = "metal3", "metal5"  # estimates before routing, as the flow scripts have it

# Part of each layer's tracks that global routing leaves alone: pins and rails below, power straps above.
ROUTING_ADJUSTMENT = (("metal2-metal3", 0.4), ("metal4-metal6", 0.25))
ADJUSTMENT_ABOVE = 0.25
ROUGH_ADJUSTMENT = (("metal2-metal3", 0.2), ("metal4-metal10", 0.1))  # where no detailed route follows


@dataclass(frozen=True)
class Straps:
    """Power straps of one layer: width, distance between straps of one net, offset of the first (um)."""

    layer: str
    width_um: float
    pitch_um: float
    offset_um: float


RAIL = ("metal1", 0.17)  # of the cells; the library's row rails
# After the flow scripts' grid_strategy-M1-M4-M7.tcl, denser on metal4: tiles, and the space beside a macro, can be
# narrower than its 56 um.
STRAPS = {
    "metal4": Straps("metal4", 0.48, 14.0, 2.0),
    "metal7": Straps("metal7", 1.4, 28.0, 2.0),
    "metal8": Straps("metal8", 1.4, 40.0, 2.0),
    "metal9": Straps("metal9", 1.6, 40.0, 2.0),
}

WELL_TAP = "WELLTAP_X1"
WELL_TAP_DISTANCE_UM = 120.0
FILLERS = ("FILLCELL_X32", "FILLCELL_X16", "FILLCELL_X8", "FILLCELL_X4", "FILLCELL_X2", "FILLCELL_X1")
ANTENNA_CELL = "ANTENNA_X1"
CLOCK_ROOT_BUFFER = "BUF_X8"
CLOCK_BUFFERS = ("BUF_X4", "BUF_X8")
# As for synthesis, and the two that the flow scripts keep out because their pins are hard to reach.
DONT_USE = ("CLKBUF_*", "CLKGATE*", "SDFF*", "TBUF_*", "TINV_*", "TLAT_*", "DLH_*", "DLL_*", "AOI211_X1", "OAI211_X1")

# Layer numbers of the library's GDS.
GDS_LAYERS = {f"metal{n}": 9 + 2 * n for n in range(1, 11)} | {f"via{n}": 10 + 2 * n for n in range(1, 10)}
GDS_OUTLINE = 235
DATABASE_UM = 0.0005
# Of the picture, lowest metal first.
COLOURS = {
    "metal1": 0x4F6D7A,
    "metal2": 0xC06C84,
    "metal3": 0x3A86C8,
    "metal4": 0xE07A3F,
    "metal5": 0x5AA469,
    "metal6": 0x8E6BBF,
    "metal7": 0xD4A017,
    "metal8": 0x2F4858,
    "metal9": 0x9B2226,
    "metal10": 0x6C757D,
}
