"""Table functions (golden.fixed.functions) as logic of one cycle: sigmoid's segments, 2**-t, 1/sqrt and 1/x."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Mux, Signal, Value, signed, unsigned

from golden.fixed import functions as golden
from golden.fixed.numbers import UNIT
from hw.arith.basic import absolute, normalise_left, round_shift, round_shift_by


def quadratic(m: Module, q: golden.Quadratic, index: Value, dx: Value, name: str) -> Value:
    """The piecewise quadratic ``q`` at segment ``index``, offset ``dx`` (dx_bits wide, unsigned)."""
    columns = list(zip(*q.table, strict=True))
    coefficients = []
    for i, column in enumerate(columns):
        low, high = min(column), max(column)
        shape = signed(max(high.bit_length(), (~low).bit_length()) + 1) if low < 0 else unsigned(high.bit_length())
        coefficients.append(Signal(shape, name=f"{name}_c{i}"))
    with m.Switch(index):
        for row, values in enumerate(q.table):
            with m.Case(row):
                m.d.comb += [c.eq(v) for c, v in zip(coefficients, values, strict=True)]
        with m.Default():  # an unused index: repeat the last row, so that no latch-like don't-care differs anywhere
            m.d.comb += [c.eq(v) for c, v in zip(coefficients, q.table[-1], strict=True)]
    c0, c1, c2 = coefficients
    # positive and negative coefficients both occur: work in signed values from here on
    slope = c1 + round_shift(c2 * dx, q.dx_bits)
    return round_shift(c0 + round_shift(slope * dx, q.dx_bits), golden.GUARD)


def sigmoid_segment(m: Module, x: Value, name: str) -> tuple[Signal, Signal, Value]:
    """(row of golden's SIGMOID, dx in it, |x| >= 16) of sigmoid's argument, signed with 14 fraction bits."""
    frac = golden.SIGMOID_IN_FRAC
    a = Signal(len(x), name=f"{name}_magnitude")
    m.d.comb += a.eq(absolute(x))
    inside = a[: frac + 4]
    row = Signal(range(len(golden.SIGMOID.table)), name=f"{name}_row")
    dx = Signal(golden.SIGMOID.dx_bits, name=f"{name}_dx")
    with m.If(~inside[frac + 2 :].any()):
        m.d.comb += [row.eq(inside[10:]), dx.eq(inside[:10] << 3)]
    with m.Elif(~inside[frac + 3]):
        m.d.comb += [row.eq(64 + inside[11 : frac + 2]), dx.eq(inside[:11] << 2)]
    with m.Else():
        m.d.comb += [row.eq(96 + inside[13 : frac + 3]), dx.eq(inside[:13])]
    return row, dx, a[frac + 4 :].any()


def exp2_neg(m: Module, t: Value, name: str = "exp2") -> Signal:
    """2**-t of an unsigned t with 16 fraction bits, as UNIT."""
    y = Signal(golden.EXP2.out_frac + 2, name=f"{name}_mantissa")
    m.d.comb += y.eq(quadratic(m, golden.EXP2, t[12:16], t[:12], name))
    whole = t[16:]
    far = whole[5:].any() if len(whole) > 5 else Const(0)
    # round_shift(y, whole + 2): 2 is the difference of the fractions; from 20 on the result is 0 anyway
    shift = Signal(6, name=f"{name}_by")
    m.d.comb += shift.eq(whole[:5] + (golden.EXP2.out_frac - UNIT.frac))
    rounded = round_shift_by(m, y, shift, 63, name=f"{name}_rounded")
    out = Signal(UNIT.width, name=name)
    m.d.comb += out.eq(Mux(far, 0, rounded))
    return out


def rsqrt(m: Module, v: Value, frac: Value, name: str = "rsqrt") -> tuple[Signal, Signal]:
    """Mantissa (19 bits, 18 fraction bits) and signed exponent k of 1/sqrt(v * 2**-frac); v >= 1, frac unsigned."""
    n = len(v)
    top, count = normalise_left(m, v, name=f"{name}_norm")
    exponent = Signal(signed(8), name=f"{name}_exponent")  # floor(log2 value)
    m.d.comb += exponent.eq((n - 1) - count - frac)
    odd = exponent[0]
    k = Signal(signed(7), name=f"{name}_k")
    m.d.comb += k.eq(exponent >> 1)
    # m in [1, 4) with 18 fraction bits, truncated: 20 bits, the leading one at bit 18 (even) or 19 (odd)
    lead = Signal(20, name=f"{name}_lead")
    m.d.comb += lead.eq(top[-20:] if n >= 20 else top << (20 - n))
    mant = Signal(20, name=f"{name}_m")
    m.d.comb += mant.eq(Mux(odd, lead, lead >> 1))
    out = Signal(19, name=name)
    m.d.comb += out.eq(quadratic(m, golden.RSQRT, (mant[13:] - 32)[:7], mant[:13], name))
    return out, k


def recip(m: Module, v: Value, name: str = "recip") -> tuple[Signal, Signal]:
    """Mantissa (19 bits, 18 fraction bits) and p = floor(log2 v) of 1/v; v >= 1 unsigned."""
    n = len(v)
    top, count = normalise_left(m, v, name=f"{name}_norm")
    p = Signal(range(n), name=f"{name}_p")
    m.d.comb += p.eq((n - 1) - count)
    lead = Signal(19, name=f"{name}_lead")
    m.d.comb += lead.eq(top[-19:] if n >= 19 else top << (19 - n))
    out = Signal(19, name=name)
    m.d.comb += out.eq(quadratic(m, golden.RECIP, lead[12:18], lead[:12], name))
    return out, p
