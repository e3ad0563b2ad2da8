"""Number formats of the chip and the three integer operations everything is built from.

One table names every fixed-point format: where it is used, how wide it is and
where its binary point sits.  hw/ reads the same table, so a width changed here
changes the twin and the RTL together.  All values are two's complement unless
marked unsigned; rounding is half-up (add half an ulp, then floor), saturation
clips to the ends of the range and is counted per format.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Fixed:
    """A fixed-point format: value = integer * 2**-frac, ``width`` bits in all."""

    name: str
    width: int
    frac: int
    signed: bool = True

    @property
    def max(self) -> int:
        """Largest integer of the format."""
        return (1 << (self.width - 1 if self.signed else self.width)) - 1

    @property
    def min(self) -> int:
        """Smallest integer of the format."""
        return -(1 << (self.width - 1)) if self.signed else 0

    @property
    def ulp(self) -> float:
        """Value of one unit in the last place."""
        return 2.0**-self.frac


VEC = Fixed("vec", 24, 13)  # residual stream, block snapshots, array results, conv history, logits; +-1024
NRM = Fixed("nrm", 24, 16)  # normalised vectors, gated products, KDA read-out; +-128
SIG = Fixed("sig", 21, 20, signed=False)  # sigmoid outputs: gates, router scores; 0..1 inclusive
UNIT = Fixed("unit", 17, 16, signed=False)  # decay alpha, beta, softmax weights, expert weights; 0..1 inclusive
KEY = Fixed("key", 18, 17)  # L2-normalised q and k of KDA; +-1
STATE = Fixed("state", 24, 19)  # KDA state in memory; +-16
READ = Fixed("read", 20, 15)  # decayed state as the k.S and q.S products see it; +-16
CACHE = Fixed("cache", 16, 11)  # MLA latent and shared key in the cache; +-16
QUERY = Fixed("query", 16, 11)  # MLA absorbed query and q_rope; +-16
SCORE = Fixed("score", 24, 14)  # attention and residual-mix scores in units of log2; +-512
CTX = Fixed("ctx", 24, 17)  # MLA context before the division by the softmax sum; +-64
CONST = Fixed("const", 16, 12)  # norm weights, conv taps, residual-mix projections; +-8
RATE = Fixed("rate", 16, 11, signed=False)  # exp(A_log) of the KDA gate, clipped below 32
DTB = Fixed("dtb", 16, 11)  # dt_bias of the KDA gate; +-16
BIAS = Fixed("bias", 16, 14)  # router correction bias; +-2
ROWSCALE = Fixed("rowscale", 16, 14)  # 2**(s_r - max s) of W_kvb's key rows; 1.0 is 16384

FORMATS = {
    f.name: f
    for f in (VEC, NRM, SIG, UNIT, KEY, STATE, READ, CACHE, QUERY, SCORE, CTX, CONST, RATE, DTB, BIAS, ROWSCALE)
}

SATURATIONS: Counter[str] = Counter()
"""How often each format clipped since the last ``SATURATIONS.clear()``."""


def ints(x) -> Ints:
    """Anything array-like as int64."""
    return np.asarray(x, dtype=np.int64)


def round_shift(x: Ints, shift: Ints | int) -> Ints:
    """x * 2**-shift rounded half-up; a negative shift is an exact left shift. |shift| < 62."""
    x, s = np.broadcast_arrays(ints(x), ints(shift))
    right = np.maximum(s, 0)
    half = np.where(right > 0, np.int64(1) << np.maximum(right - 1, 0), 0)
    return ((x + half) >> right) << np.maximum(-s, 0)


def saturate(x: Ints, fmt: Fixed) -> Ints:
    """Clip to ``fmt`` and count the elements that clipped."""
    y = np.clip(x, fmt.min, fmt.max)
    clipped = int(np.count_nonzero(y != x))
    if clipped:
        SATURATIONS[fmt.name] += clipped
    return y


def to_fixed(x, fmt: Fixed) -> Ints:
    """Real values to ``fmt``: round half-up, saturate."""
    return saturate(ints(np.floor(np.asarray(x, np.float64) * 2.0**fmt.frac + 0.5)), fmt)


def to_float(x: Ints, fmt: Fixed) -> NDArray[np.float64]:
    """Integers of ``fmt`` as real values (exact)."""
    return np.asarray(x, np.float64) * fmt.ulp


def floor_log2(x: Ints) -> Ints:
    """floor(log2 x) of positive integers below 2**62, exact (a leading-one detector)."""
    x = ints(x)
    mantissa, exponent = np.frexp(x.astype(np.float64))
    e = exponent.astype(np.int64) - 1
    # the conversion to float64 may round up to the next power of two
    return np.where((np.int64(1) << np.maximum(e, 0)) > x, e - 1, e)
