"""Small components for the tests of Verilog generation and synthesis."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hw.block import Block
from hw.memory.sram import Sram


class Mac(Block):
    """Multiply-accumulate, 24 flip-flops."""

    a: In(signed(8))
    b: In(signed(4))
    clear: In(1)
    q: Out(signed(24))

    def body(self, platform):
        m = Module()
        with m.If(self.clear):
            m.d.sync += self.q.eq(0)
        with m.Else():
            m.d.sync += self.q.eq(self.q + self.a * self.b)
        return m


class Pair(Block):
    """Two Macs and a register, 72 flip-flops: a module with children."""

    a: In(signed(8))
    b: In(8)
    clear: In(1)
    q: Out(signed(24))

    def body(self, platform):
        m = Module()
        macs = [Mac(), Mac()]
        for i, mac in enumerate(macs):
            m.submodules[f"mac_{i}"] = mac
            m.d.comb += [mac.a.eq(self.a), mac.b.eq(self.b.word_select(i, 4)), mac.clear.eq(self.clear)]
        m.d.sync += self.q.eq(macs[0].q ^ macs[1].q)
        return m


class Unit(Block):
    """Four Pairs fed from a memory; the even ones are built in another order than the odd ones. 318 flip-flops."""

    x: In(signed(8))
    sel: In(2)
    clear: In(1)
    we: In(1)
    wdata: In(32)
    y: Out(signed(24))

    def body(self, platform):
        m = Module()
        m.submodules.store = store = Sram(64, 32)
        addr = Signal(6)
        m.d.sync += addr.eq(addr + 1)
        m.d.comb += [store.en.eq(1), store.we.eq(self.we), store.addr.eq(addr), store.wdata.eq(self.wdata)]
        for i in range(4):
            pair = Pair()
            m.submodules[f"pair_{i}"] = pair
            wires = [pair.a.eq(self.x), pair.b.eq(store.rdata.word_select(i, 8)), pair.clear.eq(self.clear)]
            m.d.comb += wires if i % 2 else wires[::-1]
            with m.If(self.sel == i):
                m.d.sync += self.y.eq(pair.q)
        return m


class Shift(Block):
    """Delays an input by one cycle and inverts it when told; ``mask`` limits that to some bits."""

    d: In(4)
    invert: In(1)
    q: Out(4)
    flag: Out(1)

    def __init__(self, mask=0b1111):
        self.mask = mask
        super().__init__()

    def body(self, platform):
        m = Module()
        m.d.sync += self.q.eq(self.d ^ (self.invert.replicate(4) & self.mask))
        m.d.sync += self.flag.eq(self.d.any())
        return m


class Chain(Block):
    """Five Shifts in a row, whose ports Amaranth would make different.

    The second has a constant input, the third its input from two places, the fourth an output that is used; only the
    last one is of another kind.
    """

    d: In(4)
    invert: In(1)
    q: Out(4)
    flag: Out(1)

    def body(self, platform):
        m = Module()
        shifts = [Shift(0b0111 if i == 4 else 0b1111) for i in range(5)]
        previous = self.d
        for i, shift in enumerate(shifts):
            m.submodules[f"shift_{i}"] = shift
            m.d.comb += shift.invert.eq(1 if i == 1 else self.invert)
            if i == 2:
                m.d.comb += [shift.d[:2].eq(previous[2:]), shift.d[2:].eq(self.d[2:])]
            else:
                m.d.comb += shift.d.eq(previous)
            previous = shift.q
        m.d.comb += [self.q.eq(previous), self.flag.eq(shifts[3].flag)]
        return m


class Multiply(Block):
    """A signed product, combinational."""

    a: In(signed(9))
    b: In(signed(8))
    y: Out(signed(17))

    def body(self, platform):
        m = Module()
        m.d.comb += self.y.eq(self.a * self.b)
        return m


class Delay(Block):
    """A pipeline register that is not reset."""

    d: In(4)
    q: Out(4)

    def body(self, platform):
        m = Module()
        held = Signal(4, reset_less=True)
        m.d.sync += held.eq(self.d)
        m.d.comb += self.q.eq(held)
        return m


class Inferred(Block):
    """Stores in a plain Amaranth memory, which synthesis must refuse."""

    addr: In(4)
    data: In(8)
    we: In(1)
    q: Out(8)

    def body(self, platform):
        m = Module()
        m.submodules.memory = memory = Memory(shape=8, depth=16, init=[])
        write, read = memory.write_port(), memory.read_port()
        m.d.comb += [write.addr.eq(self.addr), write.data.eq(self.data), write.en.eq(self.we)]
        m.d.comb += [read.addr.eq(self.addr), read.en.eq(1), self.q.eq(read.data)]
        return m


class Wires(Block):
    """No logic at all: outputs are inputs and constants."""

    a: In(4)
    y: Out(6)

    def body(self, platform):
        m = Module()
        m.d.comb += self.y.eq(Cat(self.a[2:], self.a[:2], Const(0b10, 2)))
        return m


class Leaf(Block):
    """A little logic that a broadcast ends in."""

    d: In(2)
    en: In(1)
    q: Out(2)

    def body(self, platform):
        m = Module()
        m.d.comb += self.q.eq(Mux(self.en, self.d, ~self.d))
        return m


class Broadcast(Block):
    """One gate feeds many modules: too much for it, however little each of them is."""

    def __init__(self, leaves=300):
        self.leaves = leaves
        super().__init__({"e": In(3), "d": In(2), "q": Out(2 * leaves)})

    def body(self, platform):
        m = Module()
        for i in range(self.leaves):
            leaf = Leaf()
            m.submodules[f"leaf_{i}"] = leaf
            m.d.comb += [leaf.d.eq(self.d), leaf.en.eq(self.e.xor()), self.q[2 * i : 2 * i + 2].eq(leaf.q)]
        return m
