"""KDA state engine: one key row of all heads per cycle (golden.fixed.kda.state_update).

A lane holds one value column of one head.  Everything a lane multiplies by (decay, key, query) is the same for the 32
lanes of a head, so it comes to them as Booth digits that are made once.
"""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from golden.fixed.numbers import KEY, NRM, READ, SIG, STATE, UNIT, VEC
from hw.arith.basic import round_shift, saturate
from hw.arith.multiply import multiply_add
from hw.block import Block
from hw.layouts import KdaCommand, KdaOp, registers, vector
from hw.memory.sram import Sram
from hw.params import HEAD, Params

DIGITS = 9  # radix-4 digits of an 18-bit signed factor
LANES_PER_TILE = 4
ROW_BITS = (HEAD - 1).bit_length()

# Binary points, as in golden.fixed.kda
DECAYED_FRAC = UNIT.frac + STATE.frac
SEEN_FRAC = KEY.frac + READ.frac  # of k.S and q.S
OWN_FRAC = KEY.frac + VEC.frac  # of products with u
SEEN_SHIFT = DECAYED_FRAC - READ.frac
STATE_SHIFT = OWN_FRAC - STATE.frac  # the decayed state is added without the bits below OWN_FRAC
U_SHIFT = SEEN_FRAC - VEC.frac
O_SHIFT = SEEN_FRAC - NRM.frac

# Widths of sums: |k| and |q| are at most 1.1 (Euclidean), so that |k.S| < 100, |q.S + (q.k) beta u| < 1340
# and |beta k u| + 16 <= 1040
K_SUM = 7 + SEEN_FRAC + 1
Q_SUM = 11 + SEEN_FRAC + 1
NEW_STATE = 11 + OWN_FRAC + 1


class Digits(data.Struct):
    """An 18-bit signed factor as radix-4 Booth digits -2..2: magnitude one or two (neither: 0) and sign."""

    one: DIGITS
    two: DIGITS
    neg: DIGITS


class LaneControl(data.Struct):
    """What the lanes do in this cycle; all 0 holds everything while the digits are 0."""

    first: 1  # the sums start again with this row
    read: 1  # the sums become u and o
    store: 1  # the memory word is decayed, corrected and written back


def recode(m: Module, value: Value, name: str) -> Value:
    """Digits of a signed value, as raw bits in the order of ``Digits``; |value| up to 1.25 * 2**17."""
    x = Signal(signed(2 * DIGITS + 1), name=name)
    one, two, neg = (Signal(DIGITS, name=f"{name}_{part}") for part in ("one", "two", "neg"))
    m.d.comb += x.eq(value)
    beyond = x[-1] ^ x[-2]  # more than 18 bits: the last digit is 2 or -2
    for i in range(DIGITS):
        low = x[2 * i - 1] if i else Const(0, 1)
        middle, high = x[2 * i], x[2 * i + 1]
        is_one, is_two, is_neg = middle ^ low, Mux(high, ~(middle | low), middle & low), high & ~(middle & low)
        if i == DIGITS - 1:
            is_one, is_two, is_neg = is_one & ~beyond, is_two | beyond, Mux(beyond, x[-1], is_neg)
        m.d.comb += [one[i].eq(is_one), two[i].eq(is_two), neg[i].eq(is_neg)]
    return Cat(one, two, neg)


def digits_times(
    m: Module, digits: Any, x: Value, addend: Value | None, extra: dict[int, Value], width: int, name: str
) -> Signal:
    """digits * x + addend + extra bits (value at bit position), modulo 2**width and signed; x signed.

    The rows have no sign extension: each sign is stored inverted and one constant puts that right.
    """
    n = len(x)
    once, twice = Signal(n + 1, name=f"{name}_once"), Signal(n + 1, name=f"{name}_twice")
    m.d.comb += [once.eq(x), twice.eq(x << 1)]
    constant = -sum(1 << (2 * i + n) for i in range(DIGITS)) % (1 << width)
    assert not any(constant >> place & 1 for place in extra)
    low: Value = Cat(extra.get(i, Const(constant >> i & 1, 1)) for i in range(width))
    high: Value = Const(0, width)
    for i in range(DIGITS):
        one, two, neg = (part[i].replicate(n + 1) for part in (digits.one, digits.two, digits.neg))
        row = Signal(n + 1, name=f"{name}_row{i}")
        m.d.comb += row.eq(neg ^ ((one & once) | (two & twice)))
        # a negative row is inverted and 1 added at its end, where the carries leave a place free
        high, low = add_row(m, high, low, Cat(row[:n], ~row[n]), 2 * i, digits.neg[i], f"{name}_{i}")
    if addend is not None:
        high, low = add_row(m, high, low, addend.as_signed(), 0, Const(0, 1), f"{name}_last")
    y = Signal(signed(width), name=name)
    m.d.comb += y.eq(high + low)
    return y


def add_row(m: Module, a: Value, b: Value, row: Value, place: int, bit: Value, name: str) -> tuple[Value, Value]:
    """Two words of the sum a + b + ((row + bit) << place): carry-save adders from ``place`` on."""
    width = len(a)
    c, half, total, carry = (Signal(width - place, name=f"{name}_{part}") for part in ("c", "half", "sum", "carry"))
    m.d.comb += [
        c.eq(row),
        half.eq(a[place:] ^ b[place:]),
        total.eq(half ^ c),
        carry.eq(Cat(bit, (half & c) | (~half & a[place:]))),
    ]
    words = Signal(width, name=f"{name}_a"), Signal(width, name=f"{name}_b")
    m.d.comb += [words[0].eq(Cat(a[:place], total)), words[1].eq(Cat(b[:place], carry))]
    return words


class KdaLane(Block):
    """One value column: three multipliers, the sums k.S and q.S, which READ turns into u and o.

    ``state`` is the memory word read in the cycle before, ``alpha``, ``k``, ``q`` the digits that belong to it (k is
    beta * k in a store, q is beta * (q . k) in a read).  Scan: with k, q not 0 their products with the decayed state
    are added; otherwise the sums hold.  ``new_state`` is combinational from state, alpha, k and the registers, and
    wanted in a ``store``.  ``o`` is the register of the q sum, meaningful after a read.
    """

    alpha: In(Digits)
    k: In(Digits)
    q: In(Digits)
    control: In(LaneControl)
    state: In(STATE.width)
    v: In(VEC.width)
    new_state: Out(STATE.width)
    o: Out(NRM.width)

    def body(self, platform: Any) -> Module:
        m = Module()
        first, read, store = self.control.first, self.control.read, self.control.store
        k_sum = Signal(K_SUM, reset_less=True)
        q_sum = Signal(Q_SUM, reset_less=True)
        u = Signal(signed(VEC.width))
        seen = Signal(signed(READ.width))

        # decayed state, with the half of the rounding that follows; alpha's last digit is 0 or 1
        alpha = Signal(Digits)
        m.d.comb += [alpha.eq(self.alpha), alpha.two[-1].eq(0), alpha.neg[-1].eq(0)]
        half = {SEEN_SHIFT - 1: ~store, UNIT.frac - 1: store}
        decayed = digits_times(m, alpha, self.state.as_signed(), None, half, STATE.width + UNIT.width, "decayed")
        m.d.comb += seen.eq(saturate(m, decayed >> SEEN_SHIFT, READ, "seen_sat"))

        # k side: sum of the scan, or the new state
        k_factor = Signal(signed(VEC.width))
        k_addend = Signal(signed(NEW_STATE))
        m.d.comb += k_factor.eq(Mux(store, k_sum[: VEC.width].as_signed(), seen))
        m.d.comb += k_addend.eq(
            Mux(store, decayed >> (DECAYED_FRAC - OWN_FRAC), Mux(first, 1 << (U_SHIFT - 1), k_sum).as_signed())
        )
        k_total = digits_times(m, self.k, k_factor, k_addend, {}, NEW_STATE, "k_total")
        m.d.comb += self.new_state.eq(saturate(m, k_total >> STATE_SHIFT, STATE, "state_sat"))

        # q side: sum of the scan, or the read-out
        q_factor = Signal(signed(VEC.width))
        q_addend = Signal(signed(Q_SUM))
        align = SEEN_FRAC - OWN_FRAC  # a read sums without the lowest bits of the scan's sum, all below the rounding
        m.d.comb += q_factor.eq(Mux(read, u, seen))
        m.d.comb += q_addend.eq(
            Mux(read, q_sum.as_signed() >> align, Mux(first, 1 << (O_SHIFT - 1), q_sum).as_signed())
        )
        q_total = digits_times(m, self.q, q_factor, q_addend, {}, Q_SUM, "q_total")
        o = saturate(m, q_total >> (O_SHIFT - align), NRM, "o_sat")

        difference = self.v.as_signed() - (k_sum.as_signed() >> U_SHIFT)
        m.d.comb += u.eq(saturate(m, difference, VEC, "u_sat"))
        m.d.sync += [k_sum.eq(k_total), q_sum.eq(q_total)]
        with m.If(store):
            m.d.sync += k_sum[: VEC.width].eq(k_sum[: VEC.width])
        with m.If(read):
            m.d.sync += k_sum[: VEC.width].eq(u)
            m.d.sync += q_sum[: NRM.width].eq(o)
        m.d.comb += self.o.eq(q_sum)
        return m


class KdaTile(Block):
    """Some lanes of one head: a block that a layout makes once. Ports as ``KdaLane``, side by side."""

    def __init__(self, lanes: int = LANES_PER_TILE) -> None:
        self.lanes = lanes
        super().__init__(
            {
                "alpha": In(Digits),
                "k": In(Digits),
                "q": In(Digits),
                "control": In(LaneControl),
                "state": In(lanes * STATE.width),
                "v": In(lanes * VEC.width),
                "new_state": Out(lanes * STATE.width),
                "o": Out(lanes * NRM.width),
            }
        )

    def body(self, platform: Any) -> Module:
        m = Module()
        for i in range(self.lanes):
            m.submodules[f"lane_{i}"] = lane = KdaLane()
            m.d.comb += [
                lane.alpha.eq(self.alpha),
                lane.k.eq(self.k),
                lane.q.eq(self.q),
                lane.control.eq(self.control),
                lane.state.eq(self.state.word_select(i, STATE.width)),
                lane.v.eq(self.v.word_select(i, VEC.width)),
                self.new_state.word_select(i, STATE.width).eq(lane.new_state),
                self.o.word_select(i, NRM.width).eq(lane.o),
            ]
        return m


class KeyControl(data.Struct):
    """What the key side does in this cycle."""

    row: ROW_BITS
    scan: 1  # row of a SCAN is read from memory
    start: 1  # its first row: alpha is copied
    read: 1  # READ
    fetch: 1  # row of a WRITE is read from memory


class KdaKeys(Block):
    """Keys, query, decay and beta of one head, and the digits its lanes multiply by.

    ``k_we`` and ``q_we`` copy ``key``.  In a ``scan`` row the digits of alpha, k, q of that row are in their registers
    from the next cycle on, and k * q is added to q . k.  At ``start`` alpha is copied from ``alpha``, as 0 when
    ``first``, and used for row 0 already.  In a ``fetch`` row k's digits are those of beta * k, with the beta that
    ``read`` copied.  In a ``read``, ``q_digits`` is combinational from ``beta`` (SIG): the digits of beta * (q . k).
    In all other cycles the k and q digits of the next cycle are 0.
    """

    key: In(HEAD * KEY.width)
    k_we: In(1)
    q_we: In(1)
    alpha: In(HEAD * UNIT.width)
    beta: In(SIG.width)
    first: In(1)
    control: In(KeyControl)
    alpha_digits: Out(Digits)
    k_digits: Out(Digits)
    q_digits: Out(Digits)

    def body(self, platform: Any) -> Module:
        m = Module()
        control = self.control
        k = Signal(data.ArrayLayout(KEY.width, HEAD), reset_less=True)
        q = Signal(data.ArrayLayout(KEY.width, HEAD), reset_less=True)
        alpha = Signal(data.ArrayLayout(UNIT.width, HEAD), reset_less=True)
        beta = Signal(UNIT.width, name="kept_beta", reset_less=True)
        with m.If(self.k_we):
            m.d.sync += k.eq(self.key)
        with m.If(self.q_we):
            m.d.sync += q.eq(self.key)
        alpha_in = Mux(self.first, 0, self.alpha)
        with m.If(control.start):
            m.d.sync += alpha.eq(alpha_in)
        new_beta = Signal(UNIT.width)
        m.d.comb += new_beta.eq(round_shift(self.beta, SIG.frac - UNIT.frac))
        with m.If(control.read):
            m.d.sync += beta.eq(new_beta)

        k_row, q_row, alpha_row = Signal(signed(KEY.width)), Signal(signed(KEY.width)), Signal(UNIT.width)
        m.d.comb += [
            k_row.eq(k[control.row]),
            q_row.eq(q[control.row]),
            alpha_row.eq(Mux(control.start, alpha_in[: UNIT.width], alpha[control.row])),
        ]
        product = self._product(m, k_row, q_row, new_beta, beta)

        alpha_digits, k_digits, q_digits = (Signal(Digits, name=f"{x}_digits", reset_less=True) for x in "akq")
        k_next = Mux(control.scan, k_row, Mux(control.fetch, product, 0))
        m.d.sync += alpha_digits.eq(recode(m, alpha_row, "alpha_next"))
        m.d.sync += k_digits.eq(recode(m, k_next, "k_next"))
        m.d.sync += q_digits.eq(recode(m, Mux(control.scan, q_row, 0), "q_next"))
        m.d.comb += [self.alpha_digits.eq(alpha_digits), self.k_digits.eq(k_digits)]
        m.d.comb += self.q_digits.eq(Mux(control.read, recode(m, product, "beta_qk"), q_digits))
        return m

    def _product(self, m: Module, k_row: Value, q_row: Value, new_beta: Value, beta: Value) -> Value:
        """The head's multiplier: accumulates q . k in a scan, else rounded beta * (q . k) or beta * k."""
        control = self.control
        scan, read = control.scan, control.read
        width = KEY.width + 1
        qk = Signal(width + KEY.frac, reset_less=True)
        a, b, c = Signal(signed(KEY.width)), Signal(signed(width)), Signal(len(qk))
        m.d.comb += [
            a.eq(Mux(scan, q_row, Mux(read, new_beta, beta))),
            b.eq(Mux(read, qk[KEY.frac :].as_signed(), k_row)),
            c.eq(Mux(scan, Mux(control.start, 1 << (KEY.frac - 1), qk), 1 << (UNIT.frac - 1))),
        ]
        total = multiply_add(m, b, a, c, len(qk), "product")
        with m.If(scan):
            m.d.sync += qk.eq(total)
        return total[UNIT.frac : UNIT.frac + width].as_signed()


class KdaEngine(Block):
    """KDA state of all layers and heads; for every head equal to ``golden.fixed.kda.state_update``.

    Interface: commands as in docs/chip.md.  ``key`` with ``k_we`` / ``q_we`` (pulses) sets k or q of all heads; lane
    32 h + j of ``key`` is key j of head h, lane 32 h + i of v (T1) and ``o`` is value i of head h.  alpha: low 17 bits
    of T3's lanes; beta: low 21 bits of T0's lane h, SIG.  Lanes of ``o`` without a head are 0.

    Cycles from the first valid one (``take`` is with ``done``):
    SCAN 33: done in cycle 32 (counted from 0).  alpha is copied at the end of cycle 0 and ``first`` (state reads as
    0) matters in cycle 0 only, so T3 may be overwritten from cycle 1 on; q from done on.
    READ 1: done in cycle 0, u and ``o`` from the next cycle on.  T0 and T1 may be overwritten from done on.
    WRITE 64: done in cycle 63; k must keep its value until then.
    ``o`` holds until cycle 1 of the next SCAN.  The order of a layer is SCAN, READ, WRITE; k and q are to be complete
    before SCAN.  Throughput: one command after the other, without a bubble.

    Combinational: valid, cmd -> take, done and the memory's pins; T0, T1 -> inner registers only.

    Range: |k| and |q| (Euclidean) up to 1.1, which the L2 norm before guarantees; alpha and beta up to 1.
    """

    def __init__(self, p: Params) -> None:
        self.heads = p.model.kda_num_heads
        self.lanes = HEAD * self.heads
        self.memory = Sram(HEAD * p.kda_layers, self.lanes * STATE.width)
        super().__init__(
            {
                "cmd": In(KdaCommand),
                "valid": In(1),
                "take": Out(1),
                "done": Out(1),
                "key": In(data.ArrayLayout(KEY.width, p.lanes)),
                "k_we": In(1),
                "q_we": In(1),
                "t": In(registers(p)),
                "first": In(1),
                "o": Out(vector(p, NRM.width)),
            }
        )

    def body(self, platform: Any) -> Module:
        m = Module()
        m.submodules.memory = memory = self.memory
        keys_control, lane_control = Signal(KeyControl), Signal(LaneControl)
        self._sequence(m, keys_control, lane_control)
        tiles: list[Any] = []
        for h in range(self.heads):
            m.submodules[f"keys_{h}"] = keys = KdaKeys()
            m.d.comb += [
                keys.control.eq(keys_control),
                keys.key.eq(Cat(self.key[HEAD * h + j] for j in range(HEAD))),
                keys.k_we.eq(self.k_we),
                keys.q_we.eq(self.q_we),
                keys.alpha.eq(Cat(self.t[3][HEAD * h + j][: UNIT.width] for j in range(HEAD))),
                keys.beta.eq(self.t[0][h]),
                keys.first.eq(self.first),
            ]
            for i in range(HEAD // LANES_PER_TILE):
                m.submodules[f"tile_{h}_{i}"] = tile = KdaTile()
                first_lane = HEAD * h + LANES_PER_TILE * i
                m.d.comb += [
                    tile.alpha.eq(keys.alpha_digits),
                    tile.k.eq(keys.k_digits),
                    tile.q.eq(keys.q_digits),
                    tile.control.eq(lane_control),
                    tile.state.eq(memory.rdata.word_select(len(tiles), LANES_PER_TILE * STATE.width)),
                    tile.v.eq(Cat(self.t[1][first_lane + n] for n in range(LANES_PER_TILE))),
                ]
                tiles.append(tile)
        m.d.comb += memory.wdata.eq(Cat(tile.new_state for tile in tiles))
        m.d.comb += self.o.eq(Cat(tile.o for tile in tiles))
        return m

    def _sequence(self, m: Module, keys: Any, lanes: Any) -> None:
        """Memory port, commands and the steps of keys and lanes."""
        memory = self.memory
        scan = self.valid & (self.cmd.op == KdaOp.SCAN)
        write = self.valid & (self.cmd.op == KdaOp.WRITE)
        row = Signal(ROW_BITS)
        drain = Signal()  # SCAN's last row is added in this cycle
        store = Signal()  # WRITE's second cycle of a row
        last = row == HEAD - 1
        m.d.comb += [
            keys.row.eq(row),
            keys.scan.eq(scan & ~drain),
            keys.start.eq(keys.scan & (row == 0)),
            keys.read.eq(self.valid & (self.cmd.op == KdaOp.READ)),
            keys.fetch.eq(write & ~store),
            memory.en.eq(keys.scan | write),
            memory.we.eq(store),
            memory.addr.eq(Cat(row, self.cmd.layer)),
            lanes.read.eq(keys.read),
            lanes.store.eq(store),
            self.done.eq(drain | keys.read | (store & last)),
            self.take.eq(self.done),
        ]
        m.d.sync += [
            drain.eq(keys.scan & last),
            store.eq(keys.fetch),
            lanes.first.eq(keys.start),
            row.eq(row + (keys.scan | store)),
        ]
