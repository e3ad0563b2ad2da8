"""Sum of many words by a Dadda tree of carry-save adders: fewer full adders than a chain or tree of ``+`` gets."""

from __future__ import annotations

from collections.abc import Iterable

from amaranth.hdl import Cat, Module, Signal, Value

__all__ = ["carry_save", "carry_save_sum"]

Bit = tuple[Value, int]


def _word(bits: list[Bit]) -> Value:
    """Bits, lowest first, as a concatenation of as few slices as possible."""
    slices: list[Value] = []
    start = 0
    for i in range(1, len(bits) + 1):
        source, first = bits[start]
        if i == len(bits) or bits[i][0] is not source or bits[i][1] != first + i - start:
            slices.append(source[first : first + i - start])
            start = i
    return slices[0] if len(slices) == 1 else Cat(slices)


def _runs(taken: list[list[tuple[Bit, ...]]]) -> Iterable[tuple[int, list[tuple[Bit, ...]]]]:
    """Adders of the columns as (lowest column, adders of adjacent columns), the first of each column, the second, .."""
    for k in range(max(map(len, taken), default=0)):
        run: list[tuple[Bit, ...]] = []
        for column, adders in enumerate([*taken, []]):
            if k < len(adders) and (not run or len(run[0]) == len(adders[k])):
                run.append(adders[k])
                continue
            if run:
                yield column - len(run), run
            run = [adders[k]] if k < len(adders) else []


def _reduce(m: Module, columns: list[list[Bit]], height: int, name: str) -> list[list[Bit]]:
    """One layer: no column is left higher than ``height``."""
    taken: list[list[tuple[Bit, ...]]] = [[] for _ in columns]
    rest: list[list[Bit]] = []
    carries = 0
    for column, bits in enumerate(columns):
        excess = len(bits) + carries - height
        at = 0
        while excess > 0:
            size = 3 if excess > 1 else 2
            taken[column].append(tuple(bits[at : at + size]))
            at += size
            excess -= size - 1
        rest.append(bits[at:])
        carries = len(taken[column])
    out: list[list[Bit]] = [[] for _ in columns]
    for i, (low, run) in enumerate(_runs(taken)):
        a, b, *c = (_word([adder[j] for adder in run]) for j in range(len(run[0])))
        sums, carry = Signal(len(run), name=f"{name}_s{i}"), Signal(len(run), name=f"{name}_c{i}")
        if c:
            half = a ^ b  # a multiplexer as carry maps to less area than a & b | ...
            m.d.comb += [sums.eq(half ^ c[0]), carry.eq((half & c[0]) | (~half & a))]
        else:
            m.d.comb += [sums.eq(a ^ b), carry.eq(a & b)]
        for j in range(len(run)):
            out[low + j].append((sums, j))
            if low + j + 1 < len(columns):
                out[low + j + 1].append((carry, j))
    return [r + o for r, o in zip(rest, out, strict=True)]


def carry_save(m: Module, rows: Iterable[tuple[Value, int]], width: int, name: str) -> tuple[Value, Value]:
    """Two words whose sum is that of ``row << shift`` over all (row, shift), modulo 2**width. Rows are unsigned."""
    columns: list[list[Bit]] = [[] for _ in range(width)]
    for row, shift in rows:
        for i in range(min(len(row), width - shift)):
            columns[shift + i].append((row, i))
    heights = [2]
    while heights[-1] * 3 // 2 < max(map(len, columns)):
        heights.append(heights[-1] * 3 // 2)
    for layer, height in enumerate(reversed(heights)):
        columns = _reduce(m, columns, height, f"{name}_{layer}")
    zero: Bit = (Signal(1, name=f"{name}_zero"), 0)
    both = [_word([bits[j] if j < len(bits) else zero for bits in columns]) for j in range(2)]
    return both[0], both[1]


def carry_save_sum(m: Module, rows: Iterable[tuple[Value, int]], width: int, name: str) -> Signal:
    """Sum of ``row << shift`` over all (row, shift), modulo 2**width. Rows are unsigned."""
    a, b = carry_save(m, rows, width, name)
    total = Signal(width, name=name)
    m.d.comb += total.eq(a + b)
    return total
