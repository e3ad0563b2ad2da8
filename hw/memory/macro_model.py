"""Size, speed and energy of the SRAM macros: the one place that says what a bit of storage costs.

The project has no SRAM compiler; a macro is an abstract block, as in other open Nangate 45 flows. Its numbers come
from a fit on the macros that OpenROAD-flow-scripts ships for Nangate 45 (``fakeram45_*``: Liberty area,
clock-to-output and clock energy, all made with the bsg_fakeram generator on CACTI). ``REFERENCE`` holds those values,
``fit()`` finds the coefficients below again, ``error_table()`` prints measured against model.

Forms (``d`` words deep, ``w`` bits wide, one read-or-write port):

* area = BIT_AREA * (d + ROW_OVERHEAD) * (w + COLUMN_OVERHEAD) um2: an array of cells, plus a strip as high as
  ROW_OVERHEAD rows for sense amplifiers and drivers, and a strip as wide as COLUMN_OVERHEAD columns for the decoder.
* clock to output = CLK_Q_0 + CLK_Q_SIDE * sqrt(bits) + CLK_Q_RC * bits ns: logic, a wire as long as the array's side,
  and that wire's own RC, which grows with the square of its length.
* energy of one access = E_COLUMN * w * sqrt(d) + E_ROW * d + E_BIT * w fJ: bit lines of the columns, the decoder, the
  output.
* leakage = LEAK_BIT * bits + LEAK_COLUMN * w nW.

One-read-one-write macros (two ports, eight-transistor cells): 1.6 times the area (our assumption: two more
transistors and one more word line and bit line per cell); wires longer by sqrt(1.6), so wire delay terms and access
energy grow with it.
"""

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np

# depth, width, area um2, clock to output ns, energy per clock edge fJ, width um, height um, leakage nW (None: not
# read). Source: OpenROAD-flow-scripts, flow/platforms/nangate45/{lib,lef}/fakeram45_*. Macros whose numbers repeat
# those of a wider one (64x25 and 64x28 are 64x32 again, 256x95 is 256x96) and those above 128 bits are left out.
REFERENCE: tuple[tuple[int, int, float, float, float, float, float, float | None], ...] = (
    (32, 32, 794.542, 0.173, 659.870, 19.57, 40.60, 45733.0),
    (32, 64, 2285.320, 0.188, 1498.650, 36.86, 62.00, None),
    (64, 7, 387.296, 0.164, 261.529, 10.64, 36.40, 26746.0),
    (64, 15, 659.148, 0.198, 393.576, 11.21, 58.80, None),
    (64, 21, 949.354, 0.203, 606.056, 15.77, 60.20, None),
    (64, 32, 1240.624, 0.207, 795.762, 20.14, 61.60, 81627.2),
    (64, 64, 4845.380, 0.198, 2497.930, 77.90, 62.20, None),
    (64, 96, 4874.982, 0.234, 2986.130, 54.53, 89.40, 163620.0),
    (64, 124, 8792.934, 0.232, 4539.850, 78.09, 112.60, None),
    (128, 32, 3295.740, 0.200, 1738.490, 78.47, 42.00, None),
    (128, 64, 5479.600, 0.233, 2761.520, 78.28, 70.00, 303495.0),
    (128, 116, 9280.208, 0.279, 5212.750, 74.48, 124.60, None),
    (256, 16, 3155.026, 0.204, 1359.060, 77.71, 40.60, None),
    (256, 32, 5065.704, 0.235, 1874.390, 78.66, 64.40, 289841.0),
    (256, 34, 6476.036, 0.241, 2471.870, 98.42, 65.80, None),
    (256, 48, 7775.712, 0.246, 3139.840, 115.71, 67.20, None),
    (256, 96, 13701.660, 0.292, 5756.550, 115.14, 119.00, 697753.0),
    (512, 64, 17301.438, 0.305, 5300.430, 152.57, 113.40, 823237.0),
    (1024, 32, 16406.082, 0.309, 3566.400, 152.19, 107.80, 797666.0),
    (2048, 39, 45478.818, 0.435, 6855.190, 206.91, 219.80, 1876600.0),
)

# Coefficients: the least squares of relative errors over REFERENCE, none negative (see fit()).
BIT_AREA = 0.5562  # um2 per bit
ROW_OVERHEAD = 21.097  # rows
COLUMN_OVERHEAD = 0.7684  # columns
CLK_Q_0 = 0.15700  # ns
CLK_Q_SIDE = 7.807e-4  # ns per sqrt(bit)
CLK_Q_RC = 5.868e-7  # ns per bit
E_COLUMN = 3.8295  # fJ per column and sqrt(row)
E_ROW = 0.1333  # fJ per row
E_BIT = 0.0714  # fJ per column
LEAK_BIT = 25.249  # nW per bit
LEAK_COLUMN = 649.16  # nW per column

TWO_PORT_AREA = 1.6  # 1r1w area over 1rw area: our assumption
TWO_PORT_WIRE = math.sqrt(TWO_PORT_AREA)

# The same in every fakeram45 Liberty file.
SETUP_NS = 0.050
HOLD_NS = 0.050
CLOCK_PIN_FF = 25.0
SIGNAL_PIN_FF = 5.0
MAX_LOAD_FF = 500.0
# fakeram45 gives 0.009 and 0.227 ns at 5 and 500 fF between 20 and 80 %; Nangate's thresholds are 30 and 70 %.
SLEW_5FF_NS = 0.006
SLEW_500FF_NS = 0.151
# fakeram45's clock to output does not depend on the load; we add the load slope of Nangate's BUF_X8 as output driver.
DRIVE_NS_PER_FF = (0.161 - 0.0137) / 484.0
# Energy of a toggling signal pin: fakeram45 gives one hundredth of the access energy to each.
PIN_ENERGY_FRACTION = 0.01

SITE_UM = 0.19  # Nangate 45 placement site
ROW_UM = 1.4  # and row height

PRICE_BITS_PER_UM2 = 1.0  # 1 Mbit (10^6 bits) per mm2: the flat price other projects put on macro bits

MIN_WIDTH = 16
MAX_WIDTH = 128
MAX_DEPTH = 2048  # the deepest macro of the fit
MAX_BITS = 80_000  # and the largest: 2048 x 39

PORTS = ("1rw", "1r1w")


@dataclass(frozen=True, order=True)
class MacroSpec:
    """Shape of one SRAM macro.

    ``granularity``: bits per lane of the write mask, or 0 without a mask.
    """

    ports: str
    depth: int
    width: int
    granularity: int = 0

    def __post_init__(self) -> None:
        if self.ports not in PORTS:
            raise ValueError(f"ports is {self.ports!r}; it can be {' or '.join(PORTS)}")
        if not 2 <= self.depth <= MAX_DEPTH:
            raise ValueError(f"an SRAM macro holds 2 to {MAX_DEPTH} words, not {self.depth}")
        if not 1 <= self.width <= MAX_WIDTH:
            raise ValueError(f"an SRAM macro is up to {MAX_WIDTH} bits wide, not {self.width}")
        if self.bits > MAX_BITS:
            raise ValueError(f"an SRAM macro holds up to {MAX_BITS} bits, not {self.bits}")
        if self.granularity and self.width % self.granularity:
            raise ValueError(f"mask lanes of {self.granularity} bits do not divide {self.width} bits")

    @property
    def name(self) -> str:
        """Name of the macro's module, Liberty cell and LEF macro."""
        mask = f"_m{self.granularity}" if self.granularity else ""
        return f"sram_{self.ports}_{self.depth}x{self.width}{mask}"

    @property
    def bits(self) -> int:
        return self.depth * self.width

    @property
    def address_width(self) -> int:
        return max(1, (self.depth - 1).bit_length())

    @property
    def lanes(self) -> int:
        """Width of the write mask, 0 without a mask."""
        return self.width // self.granularity if self.granularity else 0

    def pins(self) -> list[tuple[str, str, int]]:
        """(name, direction, width) of every port, the clock first."""
        mask = [("wmask", "input", self.lanes)] if self.lanes else []
        if self.ports == "1rw":
            return [
                ("clk", "input", 1),
                ("en", "input", 1),
                ("we", "input", 1),
                *mask,
                ("addr", "input", self.address_width),
                ("wdata", "input", self.width),
                ("rdata", "output", self.width),
            ]
        return [
            ("clk", "input", 1),
            ("r_en", "input", 1),
            ("r_addr", "input", self.address_width),
            ("r_data", "output", self.width),
            ("w_en", "input", 1),
            *mask,
            ("w_addr", "input", self.address_width),
            ("w_data", "input", self.width),
        ]


@dataclass(frozen=True)
class MacroCost:
    """What one macro costs; every field carries its unit."""

    area_um2: float
    width_um: float
    height_um: float
    clk_to_q_ns: float
    setup_ns: float
    hold_ns: float
    clock_pin_ff: float
    signal_pin_ff: float
    max_load_ff: float
    read_energy_fj: float
    write_energy_fj: float
    leakage_nw: float
    priced_area_um2: float


def cell_area(spec: MacroSpec) -> float:
    """Area in um2 before rounding to the placement grid."""
    area = BIT_AREA * (spec.depth + ROW_OVERHEAD) * (spec.width + COLUMN_OVERHEAD)
    return area * (TWO_PORT_AREA if spec.ports == "1r1w" else 1.0)


def outline(spec: MacroSpec) -> tuple[float, float]:
    """Width and height in um, multiples of the placement site and row.

    The shape is our choice, after the reference macros: near a square, taller when shallow.
    """
    area = cell_area(spec)
    tall = 0.75 + 110.0 / spec.depth
    height = math.ceil(round(math.sqrt(area * tall) / ROW_UM, 6)) * ROW_UM
    width = math.ceil(round(area / height / SITE_UM, 6)) * SITE_UM
    return round(width, 3), round(height, 3)


def cost(spec: MacroSpec) -> MacroCost:
    """Area, timing and energy of a macro; see the module's text for forms and sources.

    A write costs what a read costs: the reference gives one energy per clock edge for both.
    """
    wire = TWO_PORT_WIRE if spec.ports == "1r1w" else 1.0
    width, height = outline(spec)
    energy = wire * (E_COLUMN * spec.width * math.sqrt(spec.depth) + E_ROW * spec.depth + E_BIT * spec.width)
    clk_to_q = CLK_Q_0 + CLK_Q_SIDE * wire * math.sqrt(spec.bits) + CLK_Q_RC * wire * wire * spec.bits
    leakage = (LEAK_BIT * spec.bits + LEAK_COLUMN * spec.width) * (TWO_PORT_AREA if spec.ports == "1r1w" else 1.0)
    return MacroCost(
        area_um2=round(width * height, 3),
        width_um=width,
        height_um=height,
        clk_to_q_ns=round(clk_to_q, 4),
        setup_ns=SETUP_NS,
        hold_ns=HOLD_NS,
        clock_pin_ff=CLOCK_PIN_FF,
        signal_pin_ff=SIGNAL_PIN_FF,
        max_load_ff=MAX_LOAD_FF,
        read_energy_fj=round(energy, 1),
        write_energy_fj=round(energy, 1),
        leakage_nw=round(leakage, 1),
        priced_area_um2=spec.bits / PRICE_BITS_PER_UM2,
    )


def _least_squares(columns: list[np.ndarray], measured: np.ndarray) -> list[float]:
    """Coefficients, none negative, that minimise the sum of squared relative errors (all subsets are tried)."""
    scaled = np.stack(columns, axis=1) / measured[:, None]
    best: tuple[float, list[float]] | None = None
    for size in range(1, len(columns) + 1):
        for chosen in combinations(range(len(columns)), size):
            solution, *_ = np.linalg.lstsq(scaled[:, chosen], np.ones(len(measured)), rcond=None)
            if (solution < 0).any():
                continue
            error = float(((scaled[:, chosen] @ solution - 1) ** 2).sum())
            if best is None or error < best[0] - 1e-12:
                full = [0.0] * len(columns)
                for index, value in zip(chosen, solution, strict=True):
                    full[index] = float(value)
                best = (error, full)
    assert best is not None
    return best[1]


def fit() -> dict[str, float]:
    """The model's coefficients found again from REFERENCE, by the names of this module's constants."""
    table = np.array([row[:7] for row in REFERENCE], dtype=float)
    d, w, area, clk_q, energy = table[:, :5].T
    one = np.ones_like(d)
    bits = d * w
    a_bit, a_row, a_column = _least_squares([bits, d, w], area)
    t_0, t_side, t_rc = _least_squares([one, np.sqrt(bits), bits], clk_q)
    e_column, e_row, e_bit = _least_squares([w * np.sqrt(d), d, w], energy)
    leak = np.array([(row[0], row[1], row[7]) for row in REFERENCE if row[7] is not None], dtype=float).T
    l_bit, l_column = _least_squares([leak[0] * leak[1], leak[1]], leak[2])
    return {
        "BIT_AREA": a_bit,
        "ROW_OVERHEAD": a_column / a_bit,
        "COLUMN_OVERHEAD": a_row / a_bit,
        "CLK_Q_0": t_0,
        "CLK_Q_SIDE": t_side,
        "CLK_Q_RC": t_rc,
        "E_COLUMN": e_column,
        "E_ROW": e_row,
        "E_BIT": e_bit,
        "LEAK_BIT": l_bit,
        "LEAK_COLUMN": l_column,
    }


def errors() -> list[dict[str, float]]:
    """Measured, model and relative error of every reference macro."""
    rows = []
    for depth, width, area, clk_q, energy, *_ in REFERENCE:
        spec = MacroSpec("1rw", depth, width)
        model = cost(spec)
        rows.append(
            {
                "depth": depth,
                "width": width,
                "area_um2": area,
                "area_model_um2": cell_area(spec),
                "area_error": cell_area(spec) / area - 1,
                "clk_to_q_ns": clk_q,
                "clk_to_q_model_ns": model.clk_to_q_ns,
                "clk_to_q_error": model.clk_to_q_ns / clk_q - 1,
                "energy_fj": energy,
                "energy_model_fj": model.read_energy_fj,
                "energy_error": model.read_energy_fj / energy - 1,
            }
        )
    return rows


def error_table() -> str:
    """The table of ``errors()`` as text."""
    lines = ["macro      area um2  model  error | clk-q ns  model  error | energy fJ  model  error"]
    for row in errors():
        name = f"{row['depth']:.0f}x{row['width']:.0f}"
        lines.append(
            f"{name:9} {row['area_um2']:9.0f} {row['area_model_um2']:6.0f} {row['area_error']:+6.0%} |"
            f" {row['clk_to_q_ns']:8.3f} {row['clk_to_q_model_ns']:6.3f} {row['clk_to_q_error']:+6.0%} |"
            f" {row['energy_fj']:9.0f} {row['energy_model_fj']:6.0f} {row['energy_error']:+6.0%}"
        )
    return "\n".join(lines)


def split(width: int, depth: int, ports: str = "1rw", granularity: int = 0) -> tuple[int, int]:
    """(number of banks, bits per bank) of least area for words of ``width`` bits.

    Banks are equal, 16 to 128 bits wide, and hold whole mask lanes or whole fractions of one. Words that no such width
    divides are padded: the last bank's spare bits are stored but not read.
    """
    candidates = []
    for banks in range(math.ceil(width / MAX_WIDTH), max(1, math.ceil(width / MIN_WIDTH)) + 1):
        bank = max(MIN_WIDTH, math.ceil(width / banks))
        if granularity:
            bank = _align(bank, granularity)
        if bank <= MAX_WIDTH and bank * depth <= MAX_BITS and bank * (banks - 1) < width:
            candidates.append((banks * cell_area(MacroSpec(ports, depth, bank)), banks, bank))
    if not candidates:
        raise ValueError(
            f"no bank of {MIN_WIDTH} to {MAX_WIDTH} bits fits {width} bits in lanes of {granularity or width}"
        )
    _, banks, bank = min(candidates)
    return banks, bank


def _align(bank: int, granularity: int) -> int:
    """The next width at or above ``bank`` made of whole lanes, or that divides one lane."""
    if bank > granularity:
        return math.ceil(bank / granularity) * granularity
    while granularity % bank:
        bank += 1
    return bank


if __name__ == "__main__":
    print(error_table())
