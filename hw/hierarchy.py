"""Modules of an emitted chip that a layout treats on their own: the one list that synthesis, layout and reports follow.

Names are those of ``hw.block``: a class's name in snake case, or its ``module_name``.
"""

# Datapath that is made once and placed many times: rows of the array, groups of KDA lanes, vector lanes, MLA lanes.
# None holds a macro, and none of their registers has a reset: a tile has a clock pin and no reset pin.
TILES = ("array_row", "kda_tile", "vector_tile", "mla_latent_lanes", "mla_rope_lanes")

# Units that can be laid out alone, tiles and macros (hw.memory) inside.
UNITS = ("array_unit", "vector_unit", "kda_engine", "mla_engine", "router", "head")
