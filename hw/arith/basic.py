"""Rounding, saturation and leading-one detection (golden.fixed.numbers)."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Shape, Signal, Value, signed, unsigned

from golden.fixed.numbers import Fixed


def shape_of(fmt: Fixed) -> Shape:
    """Amaranth shape of a format."""
    return signed(fmt.width) if fmt.signed else unsigned(fmt.width)


def round_shift(x: Value, shift: int) -> Value:
    """x * 2**-shift rounded half-up for a constant shift; a negative one is an exact left shift. Keeps signedness."""
    if shift <= 0:
        return x if shift == 0 else (x << -shift)
    # adding the last bit that is dropped is the same as adding a half and flooring
    kept = x >> shift
    last = x[shift - 1] if shift - 1 < len(x) else (x[-1] if x.shape().signed else Const(0))
    return kept + last


def round_shift_by(m: Module, x: Value, shift: Value, most: int, name: str = "shifted") -> Signal:
    """x * 2**-shift rounded half-up for a variable unsigned ``shift`` of 0 to ``most``; x's shape plus one bit."""
    wide = Signal(Shape(len(x) + 1, x.shape().signed), name=f"{name}_in")
    m.d.comb += wide.eq(x << 1)  # one guard bit below keeps the last bit dropped
    bits = most.bit_length()
    stage: Value = wide
    for i in reversed(range(bits)):
        nxt = Signal(wide.shape(), name=f"{name}_{i}")
        m.d.comb += nxt.eq(Mux(shift[i] if i < len(shift) else Const(0), stage >> (1 << i), stage))
        stage = nxt
    y = Signal(Shape(len(x) + 1, x.shape().signed), name=name)
    m.d.comb += y.eq((stage >> 1) + stage[0])
    return y


def saturate(m: Module, x: Value, fmt: Fixed, name: str = "sat") -> Signal:
    """Clip to ``fmt``."""
    y = Signal(shape_of(fmt), name=name)
    if len(x) <= fmt.width and x.shape().signed == fmt.signed:
        m.d.comb += y.eq(x)
        return y
    if not fmt.signed and not x.shape().signed:
        over = x[fmt.width :].any() if len(x) > fmt.width else Const(0)
        m.d.comb += y.eq(Mux(over, fmt.max, x))
        return y
    if fmt.signed:
        x = x if x.shape().signed else Cat(x, Const(0, 1)).as_signed()
        top = x[fmt.width - 1 :]
        fits = top.all() | ~top.any()
        m.d.comb += y.eq(Mux(fits, x[: fmt.width].as_signed(), Mux(x[-1], fmt.min, fmt.max)))
    else:
        over = x[fmt.width : -1].any() if len(x) - 1 > fmt.width else Const(0)
        m.d.comb += y.eq(Mux(x[-1], 0, Mux(over, fmt.max, x[: fmt.width])))
    return y


def absolute(x: Value) -> Value:
    """|x| of a signed value, unsigned and of the same width (the most negative value is kept)."""
    return Mux(x[-1], -x, x)[: len(x)]


def normalise_left(m: Module, x: Value, name: str = "norm") -> tuple[Signal, Signal]:
    """Shift an unsigned x left until its top bit is 1; returns (shifted, shift). x = 0 gives (0, all ones of shift)."""
    n = len(x)
    bits = (n - 1).bit_length()
    width = 1 << bits
    count = Signal(bits, name=f"{name}_count")
    stage: Value = Signal(width, name=f"{name}_in")
    m.d.comb += stage.eq(x << (width - n))
    for i in reversed(range(bits)):
        half = 1 << i
        empty = Signal(name=f"{name}_e{i}")
        nxt = Signal(width, name=f"{name}_{i}")
        m.d.comb += [
            empty.eq(~stage[width - half :].any()),
            count[i].eq(empty),
            nxt.eq(Mux(empty, stage << half, stage)),
        ]
        stage = nxt
    y = Signal(n, name=name)
    m.d.comb += y.eq(stage[width - n :])
    return y, count


def floor_log2(m: Module, x: Value, name: str = "log") -> Signal:
    """floor(log2 x) of an unsigned x >= 1."""
    _, count = normalise_left(m, x, name)
    y = Signal(range(len(x)), name=f"{name}_y")
    m.d.comb += y.eq((len(x) - 1) - count)
    return y
