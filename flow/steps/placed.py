"""A picture of a placed design: every cell in the colour of its unit, macros with an outline."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

import matplotlib.colors
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from flow.steps.columns import Box

PICTURE = "placed.png"
COMPONENT = re.compile(r"^\s*- (\S+) (\S+) (?:\+ SOURCE \S+ )?\+ (?:PLACED|FIXED) \( (-?\d+) (-?\d+) \)", flags=re.M)
DIE = re.compile(r"^DIEAREA \( (-?\d+) (-?\d+) \) \( (-?\d+) (-?\d+) \)", flags=re.M)
SCALE = re.compile(r"^UNITS DISTANCE MICRONS (\d+)", flags=re.M)
COLOURS = ("#2f6db3", "#d9822b", "#4b9b6e", "#8e6bbf", "#c0392b", "#b8a000", "#3aa6a6", "#d06c9c", "#7a5c3e")
OTHERS = "#9aa2ab"
RGB = {colour: matplotlib.colors.to_rgb(colour) for colour in (*COLOURS, OTHERS)}
PIXELS = 1400


def unit_of(name: str) -> str:
    """The first level of hierarchy in an instance's name; empty for the design's own."""
    head, slash, _ = name.replace("\\", "").partition("/")
    return head if slash else ""


def draw(definition: Path, boxes: Mapping[str, Box], macros: Collection[str], png: Path) -> None:
    """Draw the placed components of a DEF file; ``boxes``: outlines by kind in um; ``macros``: kinds with an edge.

    Raises ValueError when the file has no die.
    """
    text = definition.read_text()
    scale_found, die = SCALE.search(text), DIE.search(text)
    if scale_found is None or die is None:
        raise ValueError(f"{definition.name} has no die")
    scale = float(scale_found.group(1))
    width, height = (int(die.group(corner)) / scale for corner in (3, 4))
    found = [
        (unit_of(name), kind, int(x) / scale, int(y) / scale)
        for name, kind, x, y in COMPONENT.findall(text)
        if kind in boxes
    ]
    counted = Counter(unit for unit, *_ in found)
    units = [unit for unit, _ in counted.most_common() if unit][: len(COLOURS)]
    colours = dict(zip(units, COLOURS, strict=False))
    pixel = max(width, height) / PIXELS
    image = np.ones((int(height / pixel) + 1, int(width / pixel) + 1, 3))
    figure = Figure(figsize=(8.0, 8.0 * height / width), layout="constrained")
    axes = figure.add_subplot()
    for unit, kind, x, y in found:
        box, colour = boxes[kind], colours.get(unit, OTHERS)
        if kind in macros:
            face = matplotlib.colors.to_rgba(colour, 0.35)
            axes.add_patch(Rectangle((x, y), *box, facecolor=face, edgecolor=colour, linewidth=0.6))
        else:
            (left, right), (low, high) = (
                (int(at / pixel), max(int(at / pixel) + 1, int((at + side) / pixel)))
                for at, side in zip((x, y), box, strict=True)
            )
            image[low:high, left:right] = RGB[colour]
    extent = (0, image.shape[1] * pixel, 0, image.shape[0] * pixel)
    axes.imshow(image, origin="lower", extent=extent, interpolation="none")
    for unit, colour in colours.items():
        axes.plot([], [], "s", color=colour, label=unit)
    if colours:
        figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    axes.set(xlim=(0, width), ylim=(0, height), xlabel="um", ylabel="um")
    figure.savefig(png, dpi=PIXELS / 8)
