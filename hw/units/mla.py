"""MLA engine: attention of the current position over the cached latents, in the absorbed form (golden.fixed.mla).

Products of a query or softmax weight X with cached values C are made by distributed arithmetic: two values share one
row per bit of C, which is 0, X0, X1 or X0 + X1. In pass 1 a unit sums over the lanes of one position (score), in pass
2 over positions of one lane (context); its lanes x positions block is read straight or transposed. All X are the same
for all units of a head, so that they and their sums exist once per lane group.
"""

from itertools import chain
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from golden.fixed.mla import SCALE_FRAC, score_factor
from golden.fixed.numbers import CACHE, CTX, QUERY, SCORE, UNIT, VEC
from hw.arith.basic import round_shift, saturate
from hw.arith.functions import exp2_neg, recip
from hw.block import Block
from hw.layouts import MANTISSA_BITS, MlaCommand, registers, vector
from hw.memory.sram import Sram
from hw.params import HEAD, Params

__all__ = ["MlaEngine"]

ROPE = 16  # lanes of the shared key
LATENT_T, ROPE_T = 0, 3  # T registers of the absorbed query, and of q_rope and k_r
OPERAND = UNIT.width  # bits of X, signed: a query, or a softmax weight's negative
MIN_SHIFT = UNIT.frac + CACHE.frac - CTX.frac  # right shift of the context sum when the sum of weights is 1


def block(p: Params) -> int:
    """Lanes of a lane group: as many as positions at a time, and at least a pair."""
    return max(2, p.mla_positions)


Pair = tuple[Value, Value, Value]


def _product_sum(m: Module, xs: list[Pair], cs: list[Pair], bits: int, name: str) -> Signal:
    """Sum of products of CACHE words with X, modulo 2**bits.

    Each X pair is (X0, X1, X0 + X1), signed, one width; each c pair says for every bit whether only C0, only C1 or both
    have it.
    """
    width = len(xs[0][0])
    top = 1 << (width - 1)
    total: Value = Const(0, 1)
    constant = 0
    for i, (x, c) in enumerate(zip(xs, cs, strict=True)):
        for bit in range(CACHE.width):
            row = Signal(width, name=f"{name}_{i}_{bit}")
            first, second, both = (Mux(has[bit], value, 0) for has, value in zip(c, x, strict=True))
            # a row is unsigned with its sign bit inverted; the sign bit of c weighs -2**15: minus v is ~v + 1
            negative = bit == CACHE.width - 1
            m.d.comb += row.eq((first | second | both) ^ ((top - 1) if negative else top))
            total = total + (row << bit)
            constant += ((1 - top) if negative else -top) << bit
    y = Signal(bits, name=name)
    m.d.comb += y.eq(total + (constant % (1 << bits)))
    return y


class MlaLanes(Block):
    """``block(p)`` lanes of the engine for all heads and positions: products and context sums.

    With ``second`` 0, ``partial[t * heads + h]`` is the dot product of the ``cache`` words of position t with ``query``
    of head h (VEC, heads x lanes; golden to_query), over this group's lanes. With ``second`` 1 and ``accumulate``,
    ``cache`` times ``weight`` (minus e, heads x positions) is summed; ``first`` starts a new sum; ``last`` leaves the
    sum shifted right by MIN_SHIFT + ``shift`` and rounded: ``context`` (CTX). A group without ``values`` (shared key)
    has pass 1 only.

    ``partial`` is combinational in all inputs; ``context`` is a register, overwritten by the next sum.
    """

    def __init__(self, p: Params, values: bool) -> None:
        self.p = p
        self.values = values
        self.lanes = block(p)
        self.module_name = "mla_latent_lanes" if values else "mla_rope_lanes"
        heads, positions = p.model.num_attention_heads, p.mla_positions
        log = self.lanes.bit_length() - 1
        self.partial_bits = partial_bits(p)
        self.product_bits = QUERY.width + CACHE.width + log + (1 if values else 0)
        members: dict[str, Any] = {
            "query": In(data.ArrayLayout(VEC.width, heads * self.lanes)),
            "cache": In(data.ArrayLayout(CACHE.width, positions * self.lanes)),
            "partial": Out(data.ArrayLayout(self.partial_bits, positions * heads)),
        }
        if values:
            members |= {
                "second": In(1),
                "weight": In(data.ArrayLayout(OPERAND, heads * positions)),
                "accumulate": In(1),
                "first": In(1),
                "last": In(1),
                "shift": In(data.ArrayLayout(shift_bits(p), heads)),
                "context": Out(data.ArrayLayout(CTX.width, heads * self.lanes)),
            }
        super().__init__(members)

    def body(self, platform: Any) -> Module:
        m = Module()
        heads = range(self.p.model.num_attention_heads)
        xs = [self._query_pairs(m, head) for head in heads]
        for unit in range(self.lanes if self.values else self.p.mla_positions):
            cs = self._cache_pairs(m, unit)
            for head in heads:
                self._unit(m, unit, head, xs[head], cs)
        return m

    def _cache_pairs(self, m: Module, unit: int) -> list[Pair]:
        """Unit ``unit``'s cached values: the lanes of position ``unit``, in pass 2 lane ``unit`` of all positions."""
        lanes, positions = self.lanes, self.p.mla_positions
        operands: list[Value] = []
        for k in range(lanes):
            straight = self.cache[unit * lanes + k] if unit < positions else None
            across = self.cache[k * lanes + unit] if k < positions and self.values else None
            if straight is None or across is None:
                operands.append(next((v for v in (straight, across) if v is not None), Const(0, CACHE.width)))
            else:
                operands.append(straight if unit == k else Mux(self.second, across, straight))
        pairs: list[Pair] = []
        for i in range(0, lanes, 2):
            c0, c1 = operands[i : i + 2]
            only0, only1, both = (Signal(CACHE.width, name=f"c_{unit}_{i}_{n}") for n in ("only0", "only1", "both"))
            m.d.comb += [only0.eq(c0 & ~c1), only1.eq(~c0 & c1), both.eq(c0 & c1)]
            pairs.append((only0, only1, both))
        return pairs

    def _query_pairs(self, m: Module, head: int) -> list[Pair]:
        """Query (pass 1) or minus weights (pass 2) of a head."""
        lanes, positions = self.lanes, self.p.mla_positions
        width = 1 + (OPERAND if self.values else QUERY.width)
        xs: list[Value] = []
        for k in range(lanes):
            raw = self.query[head * lanes + k].as_signed()
            query = saturate(m, round_shift(raw, VEC.frac - QUERY.frac), QUERY, name=f"query_{head}_{k}")
            x = Signal(signed(width), name=f"x_{head}_{k}")
            if self.values:
                weight = self.weight[head * positions + k].as_signed() if k < positions else Const(0)
                m.d.comb += x.eq(Mux(self.second, weight, query))
            else:
                m.d.comb += x.eq(query)
            xs.append(x)
        pairs: list[Pair] = []
        for i in range(0, lanes, 2):
            both = Signal(signed(width), name=f"x_{head}_{i}_{i + 1}")
            m.d.comb += both.eq(xs[i] + xs[i + 1])
            pairs.append((xs[i], xs[i + 1], both))
        return pairs

    def _unit(self, m: Module, unit: int, head: int, xs: list[Pair], cs: list[Pair]) -> None:
        """Products of one unit and one head, and what becomes of them."""
        product = _product_sum(m, xs, cs, self.product_bits, f"product_{unit}_{head}").as_signed()
        if unit < self.p.mla_positions:
            m.d.comb += self.partial[unit * self.p.model.num_attention_heads + head].eq(product[: self.partial_bits])
        if self.values:
            self._accumulate(m, unit, head, product)

    def _accumulate(self, m: Module, unit: int, head: int, product: Value) -> None:
        """Context sum of one lane and head; in the end its CTX is in the same register."""
        total = Signal(signed(context_bits(self.p)), name=f"total_{unit}_{head}", reset_less=True)
        after = Signal.like(total, name=f"after_{unit}_{head}")
        m.d.comb += after.eq(Mux(self.first, 0, total) - product)
        # |after| < sum of weights * 2**15 <= 2**(16 + shift + 1 + 15): at most 23 bits are left, CTX never saturates
        stage: Value = after >> (MIN_SHIFT - 1)  # one guard bit: the last one dropped
        shift = self.shift[head]
        for i in reversed(range(len(shift))):
            part = Signal(signed(CTX.width + (1 << i)), name=f"shifted_{unit}_{head}_{i}")
            m.d.comb += part.eq(Mux(shift[i], stage >> (1 << i), stage))
            stage = part
        with m.If(self.accumulate):
            m.d.sync += total.eq(Mux(self.last, (stage >> 1) + stage[0], after))
        m.d.comb += self.context[head * self.lanes + unit].eq(total[: CTX.width])


def partial_bits(p: Params) -> int:
    """Bits of a lane group's dot product."""
    return QUERY.width + CACHE.width + block(p).bit_length() - 1


def shift_bits(p: Params) -> int:
    """Bits of log2 of a sum of weights."""
    return p.position_bits.bit_length()


def context_bits(p: Params) -> int:
    """Bits of a context sum."""
    return UNIT.width + CACHE.width - 1 + p.position_bits


def _signed_digits(n: int) -> list[tuple[int, int]]:
    """n as a sum of few +-2**shift: (shift, sign), no two adjacent."""
    digits = []
    shift = 0
    while n:
        if n & 1:
            sign = 2 - (n & 3)
            digits.append((shift, sign))
            n -= sign
        n >>= 1
        shift += 1
    return digits


class MlaScorer(Block):
    """Score of one position and head: the lane groups' dot products are added and registered, then scaled.

    ``score`` (SCORE, golden scores) belongs to ``partial`` of the cycle before, combinational from the register.
    """

    def __init__(self, p: Params) -> None:
        self.groups = (HEAD + ROPE) // block(p)
        self.bits = partial_bits(p)
        self.factor = score_factor(p.model.qk_nope_head_dim, p.model.qk_rope_head_dim)
        super().__init__({"partial": In(data.ArrayLayout(self.bits, self.groups)), "score": Out(signed(SCORE.width))})

    def body(self, platform: Any) -> Module:
        m = Module()
        total: Value = sum((self.partial[i].as_signed() for i in range(self.groups)), Const(0, signed(1)))
        dot = Signal(signed(QUERY.width + CACHE.width + 5), reset_less=True)  # 48 products of up to 2**30
        m.d.sync += dot.eq(total)
        drop = QUERY.frac + CACHE.frac - SCORE.frac
        short, last = dot >> drop, dot[drop - 1]  # the rounded value is their sum
        scaled: Value = Mux(last, self.factor, 0) + Const(1 << (SCALE_FRAC - 1), signed(SCALE_FRAC + 1))
        for shift, sign in _signed_digits(self.factor):
            scaled = scaled + (short << shift) if sign > 0 else scaled - (short << shift)
        m.d.comb += self.score.eq(saturate(m, scaled >> SCALE_FRAC, SCORE))
        return m


class MlaWeight(Block):
    """Softmax weight of one position and head: ``minus`` (registered) is -2**(score - maximum) as UNIT, or 0.

    It belongs to the inputs of the cycle before, and is 0 where ``used`` was.
    """

    score: In(signed(SCORE.width))  # type: ignore[valid-type]
    maximum: In(signed(SCORE.width))  # type: ignore[valid-type]
    used: In(1)  # type: ignore[valid-type]
    minus: Out(signed(OPERAND))  # type: ignore[valid-type]

    def body(self, platform: Any) -> Module:
        m = Module()
        below = Signal(SCORE.width + 1)
        m.d.comb += below.eq(self.maximum - self.score)  # never negative where it is used
        weight = exp2_neg(m, Cat(Const(0, 16 - SCORE.frac), below))
        minus = Signal(signed(OPERAND), reset_less=True)
        m.d.sync += minus.eq(Mux(self.used, -weight, 0))
        m.d.comb += self.minus.eq(minus)
        return m


class MlaEngine(Block):
    """MLA engine: cache, scores, softmax and context (golden.fixed.mla) of one position of one layer per command.

    Interface as in docs/chip.md. ``cache_we`` stores ``cache_latent`` (CACHE) and the shared key in T3 lanes
    16 * heads .. (VEC; golden to_cache) as the entry of (``cache_layer``, ``position``); a command may follow in the
    next cycle. It must not come while a command runs. The absorbed query in T0 lanes 32 h .., q_rope in T3 lanes 16 h
    .. and ``position`` must be stable until the command is done.

    With n = position // mla_positions + 1 groups of positions: n cycles of cache reads, dot products one cycle behind,
    scores and running maximum another one behind; then n cycles of softmax weights, beginning with the last group,
    whose scores are still in registers, and sums one cycle behind. With the last sum come the shift into CTX and the
    reciprocal: ``take`` and ``done``. That is 2 n + 3 cycles, back to back.

    One cycle less, 2 n + 2, is needed when the first group has been read ahead: in idle cycles the engine reads it
    for the layer that ``cmd`` shows then (whether or not ``valid``). It counts when the command that comes has that
    layer and no ``cache_we`` came since: in the chip always, as a query is complete long after the entry is written.

    ``context`` holds until the next command's first sum, in its cycle n + 3 or later.
    """

    def __init__(self, p: Params) -> None:
        self.p = p
        self.heads = p.model.num_attention_heads
        self.positions = p.mla_positions
        self.group_bits = max(1, p.position_bits - (self.positions.bit_length() - 1))
        super().__init__(
            {
                "cmd": In(MlaCommand),
                "valid": In(1),
                "take": Out(1),
                "done": Out(1),
                "t": In(registers(p)),
                "position": In(p.position_bits),
                "cache_we": In(1),
                "cache_latent": In(data.ArrayLayout(CACHE.width, HEAD)),
                "cache_layer": In(3),
                "context": Out(vector(p, CTX.width)),
                "context_mantissa": Out(data.ArrayLayout(MANTISSA_BITS, self.heads)),
            }
        )

    def body(self, platform: Any) -> Module:
        m = Module()
        self._control(m)
        words = self._cache(m)
        groups = self._lanes(m, words)
        scores = self._scores(m, groups)
        weights = self._weights(m, scores)
        self._finish(m, groups, weights)
        return m

    def _control(self, m: Module) -> None:
        """Stage signals: read -> dot -> score -> weigh -> sum."""
        bits = self.group_bits
        log = self.positions.bit_length() - 1
        self.last_group = Signal(bits)
        self.used = Signal(self.positions)  # positions of the last group
        lane = self.position[:log]
        m.d.comb += [
            self.last_group.eq(self.position >> log),
            self.used.eq(Cat(Const(t) <= lane for t in range(self.positions))),
        ]
        self.running = Signal()
        self.last = Signal()  # the last sum: the command's last cycle
        m.d.sync += self.running.eq((self.running | self.valid) & ~self.last)
        m.d.comb += [self.take.eq(self.last), self.done.eq(self.last)]
        self._control_ahead(m)
        self._control_first(m)
        self._control_second(m)

    def _control_ahead(self, m: Module) -> None:
        """Reading the first group before the command comes."""
        ready, layer = Signal(), Signal.like(self.cmd.layer, reset_less=True)
        self.start, self.hit, self.ahead = Signal(), Signal(), Signal()
        m.d.comb += [
            self.start.eq(self.valid & ~self.running),
            self.hit.eq(ready & (layer == self.cmd.layer)),
            self.ahead.eq(~self.valid & ~self.running & ~self.hit & ~self.cache_we),
        ]
        m.d.sync += ready.eq((self.hit | self.ahead) & ~self.start & ~self.cache_we)
        with m.If(self.ahead):
            m.d.sync += layer.eq(self.cmd.layer)

    def _control_first(self, m: Module) -> None:
        """Pass 1: groups read, in the dot stage and in the score stage."""
        bits = self.group_bits
        scanning, read_last, dot_last = Signal(), Signal(), Signal()
        read, dot, dot_now, last_now = Signal(), Signal(), Signal(), Signal()
        dot_group, next_group = Signal(bits, reset_less=True), Signal(bits, reset_less=True)
        self.score, self.score_last = Signal(), Signal()
        self.read_group, self.score_group = Signal(bits), Signal(bits, reset_less=True)
        only = self.last_group == 0
        taken = self.start & self.hit  # the first group's words are there: it is in the dot stage now
        m.d.comb += [
            self.read_group.eq(Mux(scanning, next_group, taken)),
            read.eq(scanning | (self.start & ~(self.hit & only))),
            read_last.eq(self.read_group == self.last_group),
            dot_now.eq(dot | taken),
            last_now.eq((dot & dot_last) | (taken & only)),
        ]
        m.d.sync += [
            scanning.eq(read & ~read_last),
            next_group.eq(self.read_group + 1),
            dot.eq(read),
            dot_last.eq(read_last),
            dot_group.eq(self.read_group),
            self.score.eq(dot_now),
            self.score_last.eq(last_now),
            self.score_group.eq(Mux(taken, 0, dot_group)),
        ]
        self.read = Signal()
        m.d.comb += self.read.eq(read | self.ahead)

    def _control_second(self, m: Module) -> None:
        """Pass 2: groups in the weigh stage, where their cache words are read, and in the sum stage."""
        bits = self.group_bits
        weighing, more = Signal(), Signal()
        next_group = Signal(bits, reset_less=True)
        self.weigh, self.weigh_first = Signal(), Signal()
        self.weigh_group, self.weigh_next = Signal(bits), Signal(bits)
        self.sum, self.sum_first, sum_last = Signal(), Signal(), Signal()
        self.second = Signal()
        m.d.comb += [
            self.weigh.eq(self.weigh_first | weighing),
            self.weigh_group.eq(Mux(self.weigh_first, self.last_group, next_group)),
            self.weigh_next.eq(Mux(self.weigh_first, 0, next_group + 1)),
            more.eq(self.weigh & (self.weigh_next != self.last_group)),
            self.last.eq(self.sum & sum_last),
        ]
        m.d.sync += [
            self.weigh_first.eq(self.score_last),
            weighing.eq(more),
            next_group.eq(self.weigh_next),
            self.sum.eq(self.weigh),
            self.sum_first.eq(self.weigh_first),
            sum_last.eq(~more),
            self.second.eq((self.second | self.weigh_first) & ~self.last),
        ]

    def _cache(self, m: Module) -> list[Value]:
        """Banks of cache entries; returns each bank's word read."""
        p = self.p
        per_layer = p.model.max_positions // self.positions
        log = self.positions.bit_length() - 1
        key = [
            saturate(
                m,
                round_shift(self.t[ROPE_T][ROPE * self.heads + i].as_signed(), VEC.frac - CACHE.frac),
                CACHE,
                name=f"key_{i}",
            )
            for i in range(ROPE)
        ]
        layer = Mux(self.cache_we, self.cache_layer, self.cmd.layer)
        group = Mux(self.cache_we, self.last_group, Mux(self.weigh, self.weigh_group, self.read_group))
        words: list[Value] = []
        for bank in range(self.positions):
            m.submodules[f"bank_{bank}"] = sram = Sram(max(2, p.mla_layers * per_layer), p.cache_width)
            mine = self.cache_we & (self.position[:log] == bank)
            m.d.comb += [
                sram.en.eq(mine | self.read | self.weigh),
                sram.we.eq(mine),
                sram.addr.eq(layer * per_layer + group),
                sram.wdata.eq(Cat(self.cache_latent.as_value(), *key)),
            ]
            words.append(sram.rdata)
        return words

    def _lanes(self, m: Module, words: list[Value]) -> list[MlaLanes]:
        """Lane groups, latent first, with their queries and cache words."""
        size = block(self.p)
        groups = []
        for first in range(0, HEAD + ROPE, size):
            values = first < HEAD
            lanes = MlaLanes(self.p, values)
            m.submodules[f"lanes_{first}"] = lanes
            groups.append(lanes)
            register, lane, stride = (LATENT_T, first, HEAD) if values else (ROPE_T, first - HEAD, ROPE)
            query = [self.t[register][stride * h + lane + k] for h in range(self.heads) for k in range(size)]
            entry = slice(CACHE.width * first, CACHE.width * (first + size))
            m.d.comb += [
                lanes.query.eq(Cat(query)),
                lanes.cache.eq(Cat(word[entry] for word in words)),
            ]
        return groups

    def _scores(self, m: Module, groups: list[MlaLanes]) -> list[Signal]:
        """Scorers, running maxima and the score memory; returns the scores to weigh, [t * heads + h]."""
        count = self.positions * self.heads
        scores = []
        for i in range(count):
            m.submodules[f"scorer_{i}"] = scorer = MlaScorer(self.p)
            m.d.comb += scorer.partial.eq(Cat(lanes.partial[i] for lanes in groups))
            scores.append(scorer.score)
        self.maximum = [Signal(signed(SCORE.width), name=f"maximum_{h}", reset_less=True) for h in range(self.heads)]
        for h, maximum in enumerate(self.maximum):
            largest: Value = Mux(self.score_group == 0, SCORE.min, maximum)
            best = [
                Mux(self.score_last & ~self.used[t], SCORE.min, scores[t * self.heads + h])
                for t in range(self.positions)
            ]
            with m.If(self.score):
                m.d.sync += maximum.eq(_maximum(m, [*best, largest], f"largest_{h}"))
        m.submodules.scores = memory = Sram(max(2, self.p.model.max_positions // self.positions), SCORE.width * count)
        m.d.comb += [
            memory.en.eq(self.score | self.weigh),
            memory.we.eq(self.score),
            memory.addr.eq(Mux(self.score, self.score_group, self.weigh_next)),
            memory.wdata.eq(Cat(scores)),
        ]
        chosen = []
        for i, score in enumerate(scores):
            held = Signal(signed(SCORE.width), name=f"held_{i}", reset_less=True)
            out = Signal(signed(SCORE.width), name=f"chosen_{i}")
            m.d.sync += held.eq(score)  # weigh_first is the cycle after the last score
            stored = memory.rdata[SCORE.width * i : SCORE.width * (i + 1)]
            m.d.comb += out.eq(Mux(self.weigh_first, held, stored))
            chosen.append(out)
        return chosen

    def _weights(self, m: Module, scores: list[Signal]) -> list[list[Signal]]:
        """Softmax weights, negative: [head][position]."""
        weights: list[list[Signal]] = []
        for h in range(self.heads):
            weights.append([])
            for t in range(self.positions):
                m.submodules[f"weight_{h}_{t}"] = unit = MlaWeight()
                m.d.comb += [
                    unit.score.eq(scores[t * self.heads + h]),
                    unit.maximum.eq(self.maximum[h]),
                    unit.used.eq(~self.weigh_first | self.used[t]),
                ]
                weights[h].append(unit.minus)
        return weights

    def _finish(self, m: Module, groups: list[MlaLanes], weights: list[list[Signal]]) -> None:
        """Sums of the weights, their reciprocals, and the lane groups' second pass."""
        size = block(self.p)
        latent = [lanes for lanes in groups if lanes.values]
        shifts = []
        for h in range(self.heads):
            total = Signal(UNIT.width + self.p.position_bits, name=f"weight_sum_{h}", reset_less=True)
            after = Signal.like(total, name=f"weight_sum_after_{h}")
            m.d.comb += after.eq(Mux(self.sum_first, 0, total) - sum(weights[h], Const(0, signed(1))))
            mantissa, log = recip(m, after, name=f"recip_{h}")
            with m.If(self.sum):
                m.d.sync += total.eq(after)
            with m.If(self.last):
                m.d.sync += self.context_mantissa[h].eq(mantissa)
            shift = Signal(shift_bits(self.p), name=f"shift_{h}")
            m.d.comb += shift.eq(log - UNIT.frac)  # a weight is 1.0 at the maximum: the sum is at least that
            shifts.append(shift)
        for i, lanes in enumerate(latent):
            m.d.comb += [
                lanes.second.eq(self.second),
                lanes.weight.eq(Cat(chain.from_iterable(weights))),
                lanes.accumulate.eq(self.sum),
                lanes.first.eq(self.sum_first),
                lanes.last.eq(self.last),
                lanes.shift.eq(Cat(shifts)),
            ]
            for h in range(self.heads):
                for k in range(size):
                    m.d.comb += self.context[HEAD * h + size * i + k].eq(lanes.context[h * size + k])


def _maximum(m: Module, values: list[Value], name: str) -> Value:
    """Largest of signed values, by a tree."""
    level = 0
    while len(values) > 1:
        pairs = []
        for i in range(0, len(values) - 1, 2):
            larger = Signal(signed(SCORE.width), name=f"{name}_{level}_{i}")
            m.d.comb += larger.eq(Mux(values[i + 1] > values[i], values[i + 1], values[i]))
            pairs.append(larger)
        values = pairs + (values[-1:] if len(values) % 2 else [])
        level += 1
    return values[0]
