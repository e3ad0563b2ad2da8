"""Pictures of the report, as data URIs: maps are PNG, what has text in it is SVG."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import squarify
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from flow.report.run import ReportError, Table

INK, FAINT, BLUE, ORANGE, GREEN, RED = "#222222", "#b8bec6", "#2f6db3", "#d9822b", "#4b9b6e", "#c0392b"
HEAT = LinearSegmentedColormap.from_list("heat", ["#f4f7fb", "#9cc3e6", BLUE, "#15375f"])
UNITS = ("#c9dcf0", "#f6dcc0", "#cfe6d6", "#e3d5ec", "#f2e8b8", "#d5dde2", "#f0cfcf", "#cdeae8")
MAP_BINS = 200  # most bins of a map on a side: finer grids are merged
LAYOUT_BYTES = 64_000
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Liberation Sans", "Arial", "DejaVu Sans"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "nanok3",
    "svg.fonttype": "path",
}


@dataclass(frozen=True)
class Picture:
    """A picture and what it shows in words."""

    uri: str
    words: str


@dataclass(frozen=True)
class Box:
    """A share of area: ``size`` in mm2; the boxes inside come first, what is left is the unit's own."""

    name: str
    size: float
    inside: tuple[Box, ...] = ()
    sram: bool = False


def _uri(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _finish(figure: Figure, words: str, kind: str = "png") -> Picture:
    out = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    figure.savefig(out, format=kind, dpi=130, metadata=metadata)
    return Picture(_uri("svg+xml" if kind == "svg" else "png", out.getvalue()), words)


def layout(file: Path, words: str) -> Picture:
    """The layout as a JPEG small enough to be carried along; raises ReportError."""
    try:
        image = Image.open(file).convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise ReportError(f"{file} is not a picture") from None
    side = 1600
    while True:
        small = image.copy()
        small.thumbnail((side, side))
        out = io.BytesIO()
        small.save(out, format="JPEG", quality=85, optimize=True)
        if len(out.getvalue()) <= LAYOUT_BYTES:
            return Picture(_uri("jpeg", out.getvalue()), words)
        side = side * 4 // 5


def grid(table: Table, values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """(x, y, values) of a map whose bins come in any order; bins that are not listed are not numbers."""
    xs, column = np.unique(table["x_um"], return_inverse=True)
    ys, row = np.unique(table["y_um"], return_inverse=True)
    found = np.full((len(ys), len(xs)), np.nan)
    found[row, column] = values
    return xs, ys, found


def merged(values: NDArray[Any], most: int = MAP_BINS) -> NDArray[Any]:
    """The largest value of each group of bins, so that no side has more than ``most``."""
    step = [-(-side // most) for side in values.shape]
    padded = np.pad(
        values, [(0, -side % by) for side, by in zip(values.shape, step, strict=True)], constant_values=-np.inf
    )
    known = np.where(np.isnan(padded), -np.inf, padded)
    rows, columns = (side // by for side, by in zip(padded.shape, step, strict=True))
    blocks = known.reshape(rows, step[0], columns, step[1]).max(axis=(1, 3))
    return np.where(np.isinf(blocks), np.nan, blocks)


def _edges(starts: NDArray[Any]) -> tuple[float, float]:
    """First and last edge of bins that begin at ``starts``."""
    width = float(starts[-1] - starts[-2]) if len(starts) > 1 else 1.0
    return float(starts[0]), float(starts[-1]) + width


def heat_map(table: Table, values: NDArray[Any], label: str, words: str, limit: float = 1.0) -> Picture:
    """Values 0 to ``limit`` over the die; what is above is red."""
    xs, ys, found = grid(table, values)
    extent = (*_edges(xs), *_edges(ys))
    with matplotlib.rc_context(STYLE):
        figure, axes = _figure(5.2, 4.6)
        colours = HEAT.with_extremes(over=RED, bad="white")
        shown = axes.imshow(
            merged(found), origin="lower", extent=extent, cmap=colours, vmin=0, vmax=limit, interpolation="nearest"
        )
        bar = figure.colorbar(shown, ax=axes, shrink=0.85, extend="max")
        bar.outline.set_visible(False)  # type: ignore[operator]
        bar.set_label(label)
        _die(axes)
        return _finish(figure, words)


def _die(axes: Axes) -> None:
    axes.set_xlabel("um")
    axes.set_ylabel("um")
    axes.set_aspect("equal")


def clock_tree(table: Table, words: str) -> Picture:
    """Where the clock's buffers and sinks are."""
    with matplotlib.rc_context(STYLE):
        figure, axes = _figure(5.2, 4.6)
        for kind, colour, size in (("sink", FAINT, 3), ("buffer", ORANGE, 12)):
            of = table["kind"] == kind
            axes.scatter(
                table["x_um"][of], table["y_um"][of], s=size, c=colour, linewidths=0, label=f"{kind}s: {of.sum():,}"
            )
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.1), ncols=2, frameon=False, markerscale=2)
        _die(axes)
        return _finish(figure, words)


def slack_histogram(table: Table, words: str) -> Picture:
    """Endpoints by slack, setup and hold side by side, one line per corner."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.4, 3.2), layout="constrained")
        for axes, check in zip(figure.subplots(1, 2), ("setup", "hold"), strict=True):
            of = table["check"] == check
            slacks = table["slack_ns"][of]
            if len(slacks):
                edges = np.histogram_bin_edges(slacks, bins=60)
                for corner, colour in zip(np.unique(table["corner"][of]), (BLUE, ORANGE, GREEN, RED), strict=False):
                    at = of & (table["corner"] == corner)
                    counts, _ = np.histogram(table["slack_ns"][at], bins=edges)
                    axes.stairs(counts, edges, fill=True, alpha=0.35, color=colour, label=str(corner))
                axes.axvline(0, color=RED, linewidth=1)
                axes.set_yscale("symlog", linthresh=10)
                axes.legend(frameon=False)
            axes.set_xlabel(f"{check} slack, ns")
            axes.set_ylabel("endpoints")
        return _finish(figure, words, "svg")


def _place(boxes: Sequence[Box], x: float, y: float, width: float, height: float) -> list[tuple[Box, list[float]]]:
    """Rectangles for boxes, the largest first."""
    ordered = sorted((box for box in boxes if box.size > 0), key=lambda box: -box.size)
    if not ordered:
        return []
    sizes = squarify.normalize_sizes([box.size for box in ordered], width, height)
    placed = squarify.squarify(sizes, x, y, width, height)
    return [(box, [r["x"], r["y"], r["dx"], r["dy"]]) for box, r in zip(ordered, placed, strict=True)]


def treemap(boxes: Sequence[Box], words: str) -> Picture:
    """Two levels of boxes, each as large as its share; SRAMs hatched; names where there is room."""
    width, height = 10.4, 5.6
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.axis("off")
        for number, (box, (x, y, dx, dy)) in enumerate(_place(boxes, 0, 0, width, height)):
            _rectangle(axes, x, y, dx, dy, UNITS[number % len(UNITS)], 3, hatch=box.sram and not box.inside)
            head = 0.24 if box.inside and dy > 0.6 else 0.0
            for part, (px, py, pdx, pdy) in _place(
                box.inside if head else (), x + 0.04, y + head, dx - 0.08, dy - head - 0.04
            ):
                _rectangle(axes, px, py, pdx, pdy, "none", 1, hatch=part.sram)
                _label(axes, px, py, pdx, pdy, f"{part.name}\n{_mm2(part.size)}", 7.5)
            title = f"{box.name}  {_mm2(box.size)}" if head else f"{box.name}\n{_mm2(box.size)}"
            _label(axes, x, y, dx, head or dy, title, 9.5, bold=True)
        return _finish(figure, words, "svg")


def _mm2(size: float) -> str:
    return f"{size:.3f}" if size >= 0.1 else f"{size:.3g}"


def _rectangle(axes: Axes, x: float, y: float, dx: float, dy: float, face: str, line: float, *, hatch: bool) -> None:
    shape = matplotlib.patches.Rectangle
    axes.add_patch(shape((x, y), dx, dy, facecolor=face, edgecolor="white", linewidth=line))
    if hatch:
        axes.add_patch(shape((x, y), dx, dy, fill=False, edgecolor="#00000028", linewidth=0, hatch="////"))


def _label(axes: Axes, x: float, y: float, dx: float, dy: float, text: str, size: float, bold: bool = False) -> None:
    """Text in the upper left of a rectangle (inches); on its side where that is narrow; none where it does not fit."""
    lines = text.split("\n")
    long = max(map(len, lines)) * size * (0.56 if bold else 0.52) / 72 + 0.1
    high = len(lines) * size * 1.25 / 72 + 0.04
    style: dict[str, Any] = {
        "fontsize": size,
        "color": INK,
        "weight": "bold" if bold else "normal",
        "va": "top",
        "ha": "left",
    }
    if long <= dx and high <= dy + 0.05:
        axes.text(x + 0.05, y + 0.04, text, **style)
    elif long <= dy and high <= dx:
        axes.text(x + 0.04, y + 0.06, text, rotation=-90, rotation_mode="default", **style)


def power_bars(table: Table, words: str) -> Picture:
    """Power by unit in mW: internal, switching, leakage, the largest on top."""
    kinds = (("internal_w", "internal", BLUE), ("switching_w", "switching", ORANGE), ("leakage_w", "leakage", FAINT))
    total = sum(table[column] for column, _, _ in kinds)
    order = np.argsort(total)[-20:]
    with matplotlib.rc_context(STYLE):
        figure, axes = _figure(10.4, 0.6 + 0.28 * len(order))
        left = np.zeros(len(order))
        for column, label, colour in kinds:
            milliwatts = 1e3 * table[column][order]
            axes.barh(table["unit"][order], milliwatts, left=left, color=colour, label=label, height=0.7)
            left += milliwatts
        axes.set_xlabel("mW")
        axes.legend(frameon=False, loc="lower right")
        return _finish(figure, words, "svg")
