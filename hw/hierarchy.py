"""Modules of an emitted chip that a layout treats on their own: the one list that synthesis, layout and reports follow.

Names are those of ``hw.block``: a class's name in snake case, or its ``module_name``.
"""

# Datapath that is made once and placed many times: rows of the array, groups of KDA lanes, vector lanes, MLA lanes.
# None holds a macro, and none of their registers has a reset: a tile has a clock pin and no reset pin.
TILES = ("array_row", "kda_tile", "vector_tile", "mla_latent_lanes", "mla_rope_lanes")

# Units that can be laid out alone, tiles and macros (hw.memory) inside.
UNITS = ("array_unit", "vector_unit", "kda_engine", "mla_engine", "router", "head")

# Where the macros of a unit gather along the chip's left and right edges, so that the unit's cells lie beside them and
# what they exchange is near: attention at the top, the array and the vector unit at the bottom. Macros of no unit here
# (the weights) are on both sides. Pairs (side, end).
CORNERS = {
    "mla_engine": ("left", "top"),
    "kda_engine": ("right", "top"),
    "array_unit": ("right", "bottom"),
    "vector_unit": ("left", "bottom"),
}
