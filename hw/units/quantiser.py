"""MX quantiser (golden.fixed.mx.quantise): E4M3 codes of a 32-wide segment and its E8M0 scale.

The segment's largest magnitude decides the scale, but only the position of its leading one is used, so the OR of all
magnitudes serves as well.  A lane finds its own leading one at the same time; the difference of the two positions is
the exponent field.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from golden.fixed.mx import E8M0_BIAS
from golden.fixed.numbers import VEC
from hw.arith.basic import normalise_left

ZEROS_BITS = 5  # leading zeros of a 24-bit magnitude
TOP_EXPONENT = 15  # E4M3 exponent field of the block's leading one: amax lies in [256, 512)
LARGEST = 126  # code of 448


def magnitude(m: Module, x: Value, name: str) -> Signal:
    """|x| of a VEC-wide signed value, without a carry chain.

    Bit i of -x is bit i of x, inverted when any lower bit of x is 1.
    """
    lower = [x[i] for i in range(VEC.width - 1)]  # becomes: any of bits 0..i
    distance = 1
    while distance < len(lower):
        nxt = list(lower)
        for i in range(len(lower)):
            if i & distance:  # Sklansky: the upper half of each group takes the top of the lower half
                nxt[i] = Signal(name=f"{name}_any{distance}_{i}")
                m.d.comb += nxt[i].eq(lower[i] | lower[(i & ~(distance - 1)) - 1])
        lower = nxt
        distance *= 2
    y = Signal(VEC.width, name=f"{name}_magnitude")
    m.d.comb += y.eq(x ^ (Cat(Const(0, 1), *lower) & x[-1].replicate(VEC.width)))
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


def encode(m: Module, negative: Value, size: Value, zeros: Value, name: str) -> Signal:
    """E4M3 code of a magnitude in a block with ``zeros`` leading zeros: RNE, subnormals, saturation at 448."""
    lead, count = normalise_left(m, size, name=f"{name}_lead")
    top = VEC.width - 1
    below = Signal(ZEROS_BITS, name=f"{name}_below")  # binades below the block's largest
    m.d.comb += below.eq(count - zeros)
    mantissa, guard, rest = lead[top - 3 :], lead[top - 4], lead[: top - 4].any()  # 1.mmm, next bit, any below
    kept, up_half, sticky = (Signal(n, name=f"{name}_{s}") for n, s in ((3, "kept"), (1, "half"), (1, "sticky")))
    exponent = Signal(4, name=f"{name}_exponent")
    m.d.comb += [exponent.eq(0), kept.eq(mantissa), up_half.eq(guard), sticky.eq(rest)]
    with m.Switch(below):
        for i in range(TOP_EXPONENT):
            with m.Case(i):
                m.d.comb += exponent.eq(TOP_EXPONENT - i)
        for drop in range(1, 5):  # subnormals: the step stays 2**-9
            with m.Case(TOP_EXPONENT - 1 + drop):
                m.d.comb += [
                    kept.eq(mantissa >> drop),
                    up_half.eq(mantissa[drop - 1]),
                    sticky.eq(mantissa[: drop - 1].any() | guard | rest if drop > 1 else guard | rest),
                ]
        with m.Default():
            m.d.comb += [kept.eq(0), up_half.eq(0), sticky.eq(0)]
    rounded = Signal(8, name=f"{name}_rounded")
    m.d.comb += rounded.eq(Cat(kept, exponent) + (up_half & (sticky | kept[0])))  # a carry moves into the exponent
    code = Signal(8, name=f"{name}_code")
    with m.If(~lead[top]):
        m.d.comb += code.eq(Cat(Const(0, 7), negative))
    with m.Else():
        m.d.comb += code.eq(Cat(Mux(rounded > LARGEST, LARGEST, rounded)[:7], negative))
    return code
