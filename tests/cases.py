"""Right values of small inputs in float64, for the tests of every level that computes them.

The float model holds them to 1e-12 (tests/golden), the integer twin (tests/golden/test_twin.py) and the units' RTL
(``small_cases`` in the benches of tests/cocotb) within the ``*_ULPS`` of the format that the value comes out in;
formats are exact.  The functions below turn a case into the chip's integers: inputs that a format cannot hold are put
at its end, and where the chip's vectors are wider than a case's the rest is zeros.
"""

import math
from typing import NamedTuple

import numpy as np

from golden.fixed.numbers import BIAS, CONST, DTB, RATE, VEC, Fixed, Ints, ints, to_fixed

# ---------------------------------------------------------------- KDA


class KdaAlpha(NamedTuple):
    """Decay of one channel; ``f`` is W_fb W_fa x + dt_bias."""

    a_log: float
    f: float
    alpha: float


KDA_ALPHA = (
    KdaAlpha(0, 0, 0.0820849986238988),
    KdaAlpha(0, 1e4, 0.006737946999085467),
    KdaAlpha(0, -1e4, 1.0),
    KdaAlpha(0, 1.0, 0.025853923936877493),
    KdaAlpha(0, -1.0, 0.26061602933218975),
    KdaAlpha(100, -200.0, 1.0),
    KdaAlpha(100, 0.0, 0.0820849986238988),
    KdaAlpha(100, 200.0, 0.006737946999085467),
    KdaAlpha(2.772588722239781, 0.25, 0.007371980014424645),
)
KDA_ALPHA_ULPS = 2  # of UNIT


class KdaStep(NamedTuple):
    """One token of one head: state [keys, values] and read-out after it."""

    k: list[float]
    v: list[float]
    q: list[float]
    beta: float
    alpha: list[float]
    state: list[list[float]]
    out: list[float]


KDA_STEPS = (
    KdaStep([0.6, 0.8], [1.0, -2.0], [1.0, 0.0], 0.5, [1.0, 1.0], [[0.3, -0.6], [0.4, -0.8]], [0.3, -0.6]),
    KdaStep(
        [0.8, -0.6], [3.0, 0.5], [0.0, 1.0], 1.0, [0.5, 0.25],
        [[2.502, 0.196], [-1.664, -0.5720000000000001]], [-1.664, -0.5720000000000001],
    ),
)  # fmt: skip
KDA_STEP_ULPS = 4  # of VEC, for state and read-out: the correction u is VEC, so its ulp is what counts


# ---------------------------------------------------------------- MX formats


class Code(NamedTuple):
    """Value of a code; None for NaN, which nothing on the chip makes or holds."""

    code: int
    value: float | None


class Rounded(NamedTuple):
    """What a value becomes in an element format."""

    x: float
    value: float


class BlockAmax(NamedTuple):
    """An MXFP8 block whose only element is ``amax``; the scale of a block of zeros may be anything but NaN."""

    amax: float
    exponent: int | None
    value: float


E8M0 = (
    Code(0, 5.877471754111438e-39),
    Code(1, 1.1754943508222875e-38),
    Code(126, 0.5),
    Code(127, 1.0),
    Code(128, 2.0),
    Code(134, 128.0),
    Code(254, 1.7014118346046923e38),
    Code(255, None),
)
E2M1_ENCODE = tuple(
    Rounded(*pair)
    for pair in (
        (0.0, 0.0), (0.25, 0.0), (0.25000006, 0.5), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0),
        (5.0, 4.0), (5.000001, 6.0), (7.5, 6.0), (-0.75, -1.0), (-100.0, -6.0),
    )
)  # fmt: skip
E4M3_ENCODE = tuple(
    Rounded(*pair)
    for pair in (
        (0.0, 0.0), (0.0009765625, 0.0), (0.00097666015625, 0.001953125), (0.0029296875, 0.00390625),
        (0.0146484375, 0.015625), (1.0625, 1.0), (1.1875, 1.25), (448.0, 448.0), (463.9, 448.0), (1e6, 448.0),
        (-1e6, -448.0),
    )
)  # fmt: skip
E4M3_DECODE = (Code(127, None), Code(126, 448.0), Code(1, 0.001953125), Code(8, 0.015625), Code(254, -448.0))
MXFP8_BLOCK_AMAX = (BlockAmax(957.0, 1, 896.0), BlockAmax(448.0, 0, 448.0), BlockAmax(0.0, None, 0.0))


# ---------------------------------------------------------------- SiTU-GLU, router, residual mix


class SituGlu(NamedTuple):
    """Gate and up branch of one channel, with K3's bounds 4 and 25."""

    g: float
    u: float
    y: float


SITU_GLU = (
    SituGlu(8.0, 50.0, 92.90375177797013),
    SituGlu(0.0, 3.0, 0.0),
    SituGlu(1.0, 1.0, 0.7158178280748404),
    SituGlu(-8.0, 50.0, -0.031165736713440507),
    SituGlu(100.0, -1000.0, -100.0),
    SituGlu(0.5, -25.0, -5.895095674161928),
)
SITU_GLU_ULPS = 4  # of VEC: the product of the two bounds, 100, magnifies the factors' errors


class Route(NamedTuple):
    """Router logits to picked experts (two, listed by index) and their weights."""

    logits: list[float]
    bias: list[float]
    scale: float
    experts: list[int]
    weights: list[float]


ROUTER = (
    Route([0.0] * 8, [0.0] * 8, 1.0, [0, 1], [0.5, 0.5]),
    Route([0.0, 2.0, 1.0, 2.0], [0.5, 0.0, 0.0, 0.0], 1.0, [0, 1], [0.36210968865333093, 0.6378903113466692]),
    Route([3.0] * 4, [-1.0, 0.0, -1.0, 0.0], 2.0, [1, 3], [1.0, 1.0]),
)
ROUTER_TOP_K = 2
ROUTER_ULPS = 2  # of UNIT
SIGMOID_ULPS = 1  # of SIG: the router's scores


class ResidualMix(NamedTuple):
    """An attention residual of two candidates with norm weights of 1."""

    eps: float
    projection: list[float]
    candidates: list[list[float]]
    scores: list[float]
    weights: list[float]
    out: list[float]


RESIDUAL_MIX = ResidualMix(
    1e-5,
    [1.0, -1.0, 0.5, 0.0],
    [[1.0, 0, 0, 0], [0, 1000.0, 0, 0]],
    [1.9999600011999599, -1.99999999996],
    [0.9820130835365267, 0.017986916463473307],
    [0.9820130835365267, 17.986916463473307, 0.0, 0.0],
)
# of SCORE: the projection is rounded to 2**-12, which a score of 2 log2(e) repeats twice: 2 * 0.5 * 2**-12 is 4 ulp
RESIDUAL_SCORE_ULPS = 5
RESIDUAL_WEIGHT_ULPS = 2  # of UNIT


# ---------------------------------------------------------------- as the chip holds them


def ulps(got, want, fmt: Fixed) -> float:
    """Largest distance of integers from real values, in the format's last place."""
    return float(np.abs(np.asarray(got, np.float64) - np.asarray(want, np.float64) * 2.0**fmt.frac).max())


def padded(values, n: int, fmt: Fixed) -> Ints:
    """Values as integers of ``fmt`` [n], zeros behind them."""
    return to_fixed(np.pad(np.asarray(values, np.float64), (0, n - len(values))), fmt)


def decay_operands(cases=KDA_ALPHA) -> tuple[Ints, Ints, Ints]:
    """f (VEC), dt_bias (DTB) and rate (RATE), [n] each: 1e4 and exp(100) saturate, both far beyond the gate's bend."""
    rates = [min(math.exp(case.a_log), RATE.max * RATE.ulp) for case in cases]
    return to_fixed([case.f for case in cases], VEC), to_fixed(np.zeros(len(cases)), DTB), to_fixed(rates, RATE)


E4M3_BLOCK_FRAC = 14


def e4m3_block(x: float) -> Ints:
    """A block [32] with ``x`` in lane 7 that has scale 1 at E4M3_BLOCK_FRAC fraction bits.

    Its largest magnitude is 448 at least, and ``x`` is cut to what such a block may hold (below 512): elements are
    rounded as they are.  The quantiser takes 24-bit integers: values are rounded away from zero, so that a case just
    above a tie is the next value above it that such a block can hold.
    """
    block = np.zeros(32)
    block[0], block[7] = 448.0, np.clip(x, -511.0, 511.0)
    return ints(np.sign(block) * np.ceil(np.abs(block) * 2.0**E4M3_BLOCK_FRAC))


def route_operands(case: Route, experts: int) -> tuple[Ints, Ints]:
    """Logits (VEC) and biases (BIAS) [experts]; experts that the case does not have score next to nothing."""
    more = experts - len(case.logits)
    return to_fixed([*case.logits, *[-20.0] * more], VEC), to_fixed([*case.bias, *[0.0] * more], BIAS)


def by_expert(picked, weights, case: Route) -> list[int] | None:
    """Weights in the order of the case's experts, or None when others were picked; the chip picks in order of rank."""
    found = dict(zip((int(e) for e in picked), (int(w) for w in weights), strict=True))
    return [found[e] for e in case.experts] if sorted(found) == case.experts else None


def mix_operands(case: ResidualMix, width: int) -> tuple[list[Ints], Ints]:
    """Candidates (VEC) and projection (CONST) [width].

    A norm sees its vector's width: zeros behind a candidate would lower its mean square.  So candidates are repeated
    to the width, and only the projection has zeros behind it: scores and weights are the case's at any width.
    """
    candidates = [np.tile(to_fixed(v, VEC), width // len(v)) for v in case.candidates]
    return candidates, padded(np.array(case.projection) * math.log2(math.e), width, CONST)
