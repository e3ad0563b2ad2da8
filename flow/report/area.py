"""Area by unit, from the tree that synthesis counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flow.report.pictures import Box
from flow.report.run import Run

NODE: dict[str, Any] = {"own_area_um2": float, "area_um2": float, "macro_area_um2": float}
CHILD: dict[str, Any] = NODE | {"module": str, "count": float, "cells": float, "flip_flops": float}
CHILD["children"] = [CHILD]
TREE = NODE | {"children": [CHILD]}  # the top is no child


@dataclass(frozen=True)
class UnitArea:
    """One unit and all that is in it; areas in um2 of all its ``count`` copies; ``level`` 0 is right below the top."""

    name: str
    level: int
    count: int
    cells: int
    flip_flops: int
    cell_um2: float
    macro_um2: float


def tree(run: Run) -> dict[str, Any] | None:
    """The area tree of synthesis; None where the run has none."""
    result = run.json("synth", "synthesis.json", {"tree": TREE})
    return None if result is None else dict(result["tree"])


def boxes(node: dict[str, Any], depth: int = 2, copies: int = 1) -> tuple[Box, ...]:
    """What is inside a node as boxes in mm2, ``depth`` levels of it; its own cells and SRAMs are boxes too."""
    found = []
    for child in node["children"]:
        number = copies * child["count"]
        size = number * (child["area_um2"] + child["macro_area_um2"]) * 1e-6
        inside = boxes(child, depth - 1, number) if depth > 1 else ()
        sram = child["macro_area_um2"] > child["area_um2"]
        one = any(box.size > 0.98 * size for box in inside)
        found.append(Box(_counted(child["module"], child["count"]), size, () if one else inside, sram))
    srams = node["macro_area_um2"] - sum(c["count"] * c["macro_area_um2"] for c in node["children"])
    found.append(Box("own cells", copies * node["own_area_um2"] * 1e-6))
    found.append(Box("own SRAMs", copies * max(0.0, srams) * 1e-6, sram=True))
    return tuple(box for box in found if box.size > 0)


def _counted(name: str, count: int) -> str:
    return name if count == 1 else f"{name} x{count}"


def units(node: dict[str, Any], depth: int = 2, level: int = 0, copies: int = 1) -> Iterator[UnitArea]:
    """The units below a node, each followed by those in it, the largest first."""
    for child in sorted(node["children"], key=lambda c: -c["count"] * (c["area_um2"] + c["macro_area_um2"])):
        number = copies * child["count"]
        yield UnitArea(
            child["module"],
            level,
            number,
            number * child["cells"],
            number * child["flip_flops"],
            number * child["area_um2"],
            number * child["macro_area_um2"],
        )
        if depth > 1:
            yield from units(child, depth - 1, level + 1, number)
