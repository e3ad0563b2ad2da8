"""MX quantiser (golden.fixed.mx.quantise): E4M3 codes of a 32-wide segment and its E8M0 scale.

The segment's largest magnitude decides the scale, but only the position of its leading one is used, so an OR over the
lanes serves as well.  A lane finds its own leading one and rounds its mantissa at the same time; the difference of the
two positions is the exponent field.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed

from golden.fixed.mx import E8M0_BIAS
from golden.fixed.numbers import VEC

ZEROS_BITS = 5  # leading zeros of a 24-bit magnitude
TOP_EXPONENT = 15  # E4M3 exponent field of the block's leading one: amax lies in [256, 512)
LARGEST = 126  # code of 448


def contribution(m: Module, negative: Value, folded: Value, name: str) -> Signal:
    """What a lane adds to the OR of its block: a value with the leading one of |x|, without a carry chain.

    ``folded`` is x, inverted if negative: |x| or |x| - 1.  The latter has a lower leading one only for x = -2**k,
    when all bits below k are 1.
    """
    ones = Cat(*(folded[i] | ~folded[i + 1] for i in range(len(folded) - 1))).all()  # nothing but ones below the first
    y = Signal(VEC.width, name=f"{name}_contribution")
    m.d.comb += y.eq(folded | (Cat(Const(1, 1), folded) & (negative & ones).replicate(VEC.width)))
    return y


def leading_zeros(m: Module, x: Value, name: str) -> Signal:
    """Zeros above the first 1 of ``x``, by halves; at least len(x) when there is none."""
    width = 1 << (len(x) - 1).bit_length()
    bits = [*([Const(0, 1)] * (width - len(x))), *x]
    groups: list[tuple[Value, Value]] = [(~b, Const(0, 0)) for b in bits]  # (is zero, zeros when it is not)
    level = 0
    while len(groups) > 1:
        merged = []
        for i, (low, high) in enumerate(zip(groups[0::2], groups[1::2], strict=True)):
            empty, count = Signal(name=f"{name}_e{level}_{i}"), Signal(level + 1, name=f"{name}_c{level}_{i}")
            m.d.comb += [empty.eq(low[0] & high[0]), count.eq(Cat(Mux(high[0], low[1], high[1]), high[0]))]
            merged.append((empty, count))
        groups = merged
        level += 1
    y = Signal(level, name=name)
    m.d.comb += y.eq(groups[0][1])
    return y


def block_zeros(m: Module, ored: Value, name: str) -> Signal:
    """Leading zeros of the OR of a block's magnitudes; anything from 24 on for a zero block."""
    return leading_zeros(m, ored, f"{name}_block_zeros")


def scale_code(m: Module, ored: Value, zeros: Value, frac: Value, name: str) -> Signal:
    """E8M0 code of a block whose elements have ``frac`` fraction bits: floor(log2 amax) - frac - 8 + 127."""
    y = Signal(8, name=f"{name}_scale")
    top = VEC.width - 1 - 8 + E8M0_BIAS
    m.d.comb += y.eq(Mux(ored.any(), top - zeros - frac, E8M0_BIAS))
    return y


def encode(m: Module, negative: Value, folded: Value, zeros: Value, name: str) -> Signal:
    """E4M3 code of a value in a block with ``zeros`` leading zeros: RNE, subnormals, saturation at 448.

    ``folded`` as above.  With ones in all places below, a negative value's folded form is just below |x|, and rounds as
    |x| does when ties are seen as such.  Everything but the exponent is found before ``zeros`` is known.
    """
    lead, count = _normalise(m, negative, folded, name)
    mantissa, tail = lead[-4:], lead[:-4] ^ negative.replicate(len(lead) - 4)  # 1.mmm; what differs from the fill
    guard, some = lead[-5], tail[:-1].any()
    normal = _rounded(m, mantissa, guard, some, negative, f"{name}_n")  # 8 to 16
    small = []  # subnormal codes when 1 to 4 mantissa bits are dropped
    for drop in range(1, 5):
        below = Cat(mantissa[: drop - 1], guard) ^ negative.replicate(drop)
        code = _rounded(m, mantissa >> drop, mantissa[drop - 1], below.any() | some, negative, f"{name}_s{drop}")
        small.append(code)
    exponent = Signal(signed(7), name=f"{name}_exponent")  # field of a normal code, before a carry from rounding
    m.d.comb += exponent.eq(TOP_EXPONENT - count + zeros)
    code = Signal(7, name=f"{name}_code")
    carried = Signal(5, name=f"{name}_carried")
    m.d.comb += carried.eq(exponent[:4] + normal[4])
    with m.If((exponent == TOP_EXPONENT) & (normal[4] | normal[:3].all())):
        m.d.comb += code.eq(LARGEST)
    with m.Elif((exponent > 0) & lead[-1]):
        m.d.comb += code.eq(Cat(normal[:3], carried[:4]))
    for drop, value in enumerate(small, start=1):
        with m.Elif((exponent == 1 - drop) & lead[-1]):
            m.d.comb += code.eq(value)
    y = Signal(8, name=name)
    m.d.comb += y.eq(Cat(code, negative))
    return y


def _normalise(m: Module, negative: Value, folded: Value, name: str) -> tuple[Value, Signal]:
    """(folded with its leading one in the top bit, ``negative`` filling in below; zeros above it in 24 bits)."""
    stage: Value = Signal(2 << (ZEROS_BITS - 1), name=f"{name}_lead")
    fill = len(stage) - VEC.width
    m.d.comb += stage.eq(Cat(negative.replicate(fill), folded))
    count = Signal(ZEROS_BITS, name=f"{name}_count")
    for i in reversed(range(ZEROS_BITS)):
        half = 1 << i
        nxt = Signal(len(stage), name=f"{name}_lead{i}")
        m.d.comb += [
            count[i].eq(~stage[len(stage) - half :].any()),
            nxt.eq(Mux(count[i], Cat(negative.replicate(half), stage[: len(stage) - half]), stage)),
        ]
        stage = nxt
    return stage[fill:], count


def _rounded(m: Module, kept: Value, guard: Value, some: Value, negative: Value, name: str) -> Signal:
    """kept, plus 1 if the rest is above half or is half and kept is odd; ``some``: rest is not guard and fill only."""
    y = Signal(5, name=name)
    above = Mux(negative, guard | (~some & kept[0]), guard & (some | kept[0]))
    m.d.comb += y.eq(kept + above)
    return y
