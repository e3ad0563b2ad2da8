"""A made-up run of the flow in the layout of docs/flow.md: all its figures are invented, none was measured.

Small and the same every time; tests of the report read it in place of a run that takes OpenROAD.
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from flow.pipeline import STATES

STEPS = (
    "synth",
    "floorplan",
    "power_grid",
    "placement",
    "clock_tree",
    "repair",
    "global_route",
    "detailed_route",
    "fill",
    "parasitics",
    "signoff",
    "netlist_sim",
    "power",
    "layout",
)
VERILOG_SHA256 = "ab" * 32
DIE_UM = 200.0

METRICS: dict[str, dict[str, Any]] = {
    "synth": {
        "synth__design__instance__area__stdcell": 18000.5,
        "synth__design__instance__area__macros": 9000.25,
        "synth__design__instance__count__stdcell": 15000,
        "synth__timing__setup__ws": 2.5,
        "synth__timing__setup__ws__source": "opensta: ideal clock 10 ns, wire load 5K_hvratio_1_1",
        "nanok3__area__macros__1mbit_per_mm2": 16384.0,
        "nanok3__count__flip_flops": 1200,
    },
    "floorplan": {"floorplan__design__die__area": DIE_UM * DIE_UM},
    "placement": {
        "placement__design__violations": 0,
        "placement__design__instance__area__stdcell": 18900.0,
        "placement__design__instance__area__macros": 9100.0,
        "placement__timing__setup__ws": 2.2,
    },
    "clock_tree": {"cts__timing__setup__ws": 2.1, "cts__timing__hold__ws": -0.02, "cts__clock__skew__setup": 0.031},
    "repair": {"repair__timing__setup__ws": 2.1, "repair__timing__hold__ws": 0.05},
    "global_route": {
        "globalroute__route__overflow": 0.0,
        "globalroute__timing__setup__ws": 2.0,
        "globalroute__timing__hold__ws": 0.05,
    },
    "detailed_route": {"detailedroute__route__drc_errors": 0, "detailedroute__route__wirelength": 210000},
    "signoff": {
        "finish__timing__setup__ws": 1.75,
        "finish__timing__hold__ws": 0.042,
        "finish__timing__setup__ws__corner:typical": 1.75,
        "finish__timing__hold__ws__corner:typical": 0.042,
        "finish__design__die__area": DIE_UM * DIE_UM,
        "finish__design__instance__area__stdcell": 19200.0,
        "finish__design__instance__area__macros": 9100.0,
        "finish__netlist__sha256": "cd" * 32,
    },
    "netlist_sim": {
        "netlistsim__netlist__sha256": "cd" * 32,
        "netlistsim__edges": 12345,
        "netlistsim__edges__wrong": 0,
        "netlistsim__bits__compared": 987654,
        "netlistsim__tokens": 4,
    },
    "power": {
        "finish__power__total": 0.0125,
        "finish__power__activity__annotated__share": 0.98,
    },
}
WARNINGS = {
    "placement": ["[WARNING GPL-0302] bins are <full>", "[WARNING GPL-0302] bins are fuller", "a plain one"],
    "signoff": ["[WARNING STA-1212] no clock on a & b"],
}


def make(folder: Path, *, to: str = "power", design: str = "micro-k3", unit: str | None = None) -> Path:
    """Write a run that ended with step ``to`` (``power``: everything but the layout's picture); returns its folder."""
    ran = STEPS[: STEPS.index(to) + 1]
    metrics: dict[str, Any] = {}
    for step in ran:
        metrics |= METRICS.get(step, {})
        (folder / step).mkdir(parents=True)
        _data(folder / step, step)
    report = {
        "design": design if unit is None else f"{design}.{unit}",
        "preset": design,
        "unit": unit,
        "top": unit or "nanok3",
        "blocks": [],
        "state": [STATES[step] for step in ran if step in STATES][-1],
        "metrics": metrics,
        "steps": [
            {
                "name": step,
                "status": "done",
                "seconds": 2.0**i,
                "warnings": WARNINGS.get(step, []),
                "folder": step,
            }
            for i, step in enumerate(ran)
        ],
        "versions": {"pyosys": "0.70", "openroad": "made up"},
        "settings": {"constraints": {"clock_ns": 10.0, "clock_port": "clk"}, "utilisation": 0.6, "rcx_rules": None},
        "netlist_sha256": metrics.get("finish__netlist__sha256"),
    }
    write(folder / "report.json", report)
    return folder


def change(folder: Path, **keys: Any) -> None:
    """Change keys of a run's report.json."""
    report = json.loads((folder / "report.json").read_text())
    write(folder / "report.json", report | keys)


def measure(folder: Path, **metrics: Any) -> None:
    """Change metrics of a run; None takes one out."""
    kept = json.loads((folder / "report.json").read_text())["metrics"] | metrics
    change(folder, metrics={name: value for name, value in kept.items() if value is not None})


def write(file: Path, value: Any) -> None:
    """A JSON file."""
    file.write_text(json.dumps(value, indent=1) + "\n")


def table(file: Path, head: str, lines: Iterable[Sequence[Any]]) -> None:
    """A CSV file."""
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(head.split(","))
        writer.writerows(lines)


def _data(folder: Path, step: str) -> None:
    dice = random.Random(step)
    if step == "synth":
        write(folder / "synthesis.json", {"tree": TREE, "timing": {"source": "opensta", "worst_path": WORST_PATH}})
        write(folder / "step.json", {"inputs": {"nanok3.v": VERILOG_SHA256}})
        write(folder / "cells.json", {"cells": {}})
    elif step == "placement":
        bins = [(10.0 * i, 10.0 * j) for i in range(20) for j in range(20)]
        lines = [(x, y, 10, 10, round(min(1.0, 0.5 + 0.3 * math.sin(x / 40) + dice.gauss(0, 0.1)), 4)) for x, y in bins]
        table(folder / "density.csv", "x_um,y_um,width_um,height_um,share", lines)
    elif step == "clock_tree":
        sinks = [(f"r{i}", "DFF_X1", dice.uniform(0, 200), dice.uniform(0, 200), "sink") for i in range(300)]
        buffers = [(f"b{i}", "BUF_X4", dice.uniform(20, 180), dice.uniform(20, 180), "buffer") for i in range(20)]
        table(folder / "clock_tree.csv", "name,master,x_um,y_um,kind", [*sinks, *buffers])
    elif step == "global_route":
        head = "x_um,y_um,horizontal_usage,horizontal_capacity,vertical_usage,vertical_capacity"
        lines = [
            (4.2 * i, 4.2 * j, dice.randint(0, 24), 30, dice.randint(0, 30), 30) for i in range(47) for j in range(47)
        ]
        table(folder / "congestion.csv", head, lines)
    elif step == "signoff":
        write(folder / "paths.json", {"typical": {"setup": SETUP_PATHS, "hold": HOLD_PATHS}})
        setup = [("typical", "setup", f"r{i}/D", round(9.5 - dice.expovariate(0.4) % 7.75, 4)) for i in range(400)]
        hold = [("typical", "hold", f"r{i}/D", round(0.042 + dice.expovariate(6), 4)) for i in range(400)]
        table(folder / "slacks.csv", "corner,check,endpoint,slack_ns", [*setup, *hold])
    elif step == "power":
        units = [("array", 6e-3, 1e-3, 5e-4), ("vector", 2e-3, 1e-3, 3e-4), ("micro-k3", 1e-3, 6e-4, 1e-4)]
        table(folder / "power.csv", "unit,internal_w,switching_w,leakage_w", units)
    elif step == "layout":
        picture(folder / "layout.png", 1000)


def picture(file: Path, side: int) -> None:
    """A picture like a layout's: many small rectangles, hard to compress."""
    dice = random.Random(7)
    image = Image.new("RGB", (side, side), "black")
    draw = ImageDraw.Draw(image)
    for _ in range(side * 40):
        x, y = dice.randrange(side), dice.randrange(side)
        colour = dice.choice(["#c23b22", "#3b5bc2", "#3bc26b", "#c2a83b", "#8a3bc2"])
        draw.rectangle((x, y, x + dice.randrange(2, 30), y + dice.randrange(1, 4)), fill=colour)
    image.save(file)


def _leaf(module: str, count: int, area: float, macros: float = 0.0) -> dict[str, Any]:
    return {
        "module": module,
        "count": count,
        "own_area_um2": area,
        "area_um2": area,
        "macro_area_um2": macros,
        "cells": int(area),
        "flip_flops": int(area / 20),
        "macros": {"sram": 1} if macros else {},
        "children": [],
    }


def _node(module: str, count: int, own: float, children: list[dict[str, Any]]) -> dict[str, Any]:
    node = _leaf(module, count, own) | {"children": children}
    for key in ("area_um2", "macro_area_um2", "cells", "flip_flops"):
        node[key] += sum(child["count"] * child[key] for child in children)
    return node


TREE = _node(
    "nanok3",
    1,
    300.5,
    [
        _node("array", 1, 700.0, [_leaf("array_row", 8, 1000.0), _leaf("sram_1rw_48x72_by_8", 1, 10.0, 4000.0)]),
        _node("vector", 1, 1000.0, [_leaf("vector_tile", 4, 1500.0)]),
        _leaf("sram_1rw_256x64_by_2", 1, 0.0, 5000.25),
        _leaf("router", 1, 1990.0),
    ],
)

WORST_PATH = """Startpoint: sequencer/_1485_ (rising edge-triggered flip-flop clocked by core)
Endpoint: vector/_25593_ (rising edge-triggered flip-flop clocked by core)
Path Group: core
Path Type: max

      Cap      Slew     Delay      Time   Description
-------------------------------------------------------------------------------
             0.0000    0.0000    0.0000   clock core (rise edge)
                       0.0000    0.0000   clock network delay (ideal)
             0.0000    0.0000    0.0000 ^ sequencer/_1485_/CK (DFF_X1)
   3.1271    0.0076    0.0814    0.0814 v sequencer/_1485_/Q (DFF_X1)
             0.0076    0.0000    0.0814 v sequencer/_1559_/A (BUF_X1)
   3.1441    0.0069    0.0288    0.1102 v sequencer/_1559_/Z (BUF_X1)
             0.0069    0.0000    0.1102 v vector/_20592_/A (INV_X1)
   5.9813    0.0160    7.3000    7.4102 ^ vector/_20592_/ZN (INV_X1)
             0.0160    0.0000    7.4102 ^ vector/_25593_/D (DFF_X1)
                                 7.4102   data arrival time

             0.0000   10.0000   10.0000   clock core (rise edge)
                       0.0000   10.0000   clock network delay (ideal)
                       0.0000   10.0000   clock reconvergence pessimism
                                10.0000 ^ vector/_25593_/CK (DFF_X1)
                      -0.0898    9.9102   library setup time
                                 9.9102   data required time
-------------------------------------------------------------------------------
                                 9.9102   data required time
                                -7.4102   data arrival time
-------------------------------------------------------------------------------
                                 2.5000   slack (MET)"""


def stages(*points: tuple[str, str, str, float]) -> list[dict[str, Any]]:
    """Points of a path from (cell, pin, net, delay in ns); a port has no cell."""
    made, arrival = [], 0.3
    for cell, pin, net, delay in points:
        arrival += delay
        instance = pin.rpartition("/")[0] if cell else ""
        made.append(
            {"cell": cell, "instance": instance, "pin": pin, "net": net, "delay_ns": delay, "arrival_ns": arrival}
        )
    return made


def _path(slack: float, points: list[dict[str, Any]]) -> dict[str, Any]:
    return {"startpoint": points[0]["pin"], "endpoint": points[-1]["pin"], "slack_ns": slack, "stages": points}


SETUP_PATHS = [
    _path(
        1.75 + 0.01 * i,
        stages(
            ("DFF_X1", "array/row_3/_10_/CK", "clk_7", 0.0),
            ("DFF_X1", "array/row_3/_10_/Q", "array/row_3/sum[4]", 0.1),
            ("BUF_X2", f"array/row_3/_2{i}_/A", "array/row_3/sum[4]", 0.02),
            ("BUF_X2", f"array/row_3/_2{i}_/Z", "array/row_3/_n1_", 0.05),
            ("NAND2_X1", "vector/_31_/A1", "array/row_3/_n1_", 0.4),
            ("NAND2_X1", "vector/_31_/ZN", "vector/_n2_", 7.0),
            ("DFF_X1", "vector/_99_/D", "vector/_n2_", 0.03),
        ),
    )
    for i in range(10)
]
HOLD_PATHS = [
    _path(
        0.042 + 0.001 * i,
        stages(("", f"in_data[{i}]", f"in_data[{i}]", 0.0), ("DFF_X1", f"_5{i}_/D", f"in_data[{i}]", 0.04)),
    )
    for i in range(10)
]
