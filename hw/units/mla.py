"""MLA engine: attention of the current position over the cached latents, in the absorbed form (golden.fixed.mla).

Products of a query or softmax weight X with cached values C are made by distributed arithmetic: two values share one
row per bit of C, which is 0, X0, X1 or X0 + X1. In pass 1 a unit sums over the lanes of one position (score), in pass
2 over positions of one lane (context); its lanes x positions block is read straight or transposed. All X are the same
for all units of a head, so that they and their sums exist once per lane group.
"""

from itertools import chain
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from golden.fixed.mla import SCALE_FRAC, score_factor
from golden.fixed.numbers import CACHE, CTX, QUERY, SCORE, UNIT, VEC
from hw.arith.basic import round_shift, saturate
from hw.arith.functions import exp2_neg, recip
from hw.layouts import MANTISSA_BITS, MlaCommand, registers, vector
from hw.memory.sram import Sram
from hw.params import HEAD, Params

__all__ = ["MlaEngine", "mla_cycles"]

ROPE = 16  # lanes of the shared key
LATENT_T, ROPE_T = 0, 3  # T registers of the absorbed query, and of q_rope and k_r
OPERAND = UNIT.width  # bits of X, signed: a query, or a softmax weight's negative
MIN_SHIFT = UNIT.frac + CACHE.frac - CTX.frac  # right shift of the context sum when the sum of weights is 1


def mla_cycles(p: Params, position: int) -> int:
    """Cycles of one command, from the first one with ``valid`` to the one with ``done``, at ``position``."""
    return 2 * (position // p.mla_positions + 1) + 4


def block(p: Params) -> int:
    """Lanes of a lane group: as many as positions at a time, and at least a pair."""
    return max(2, p.mla_positions)


def _signed(x: Value) -> Value:
    return x.as_signed()


def _product_sum(xs: list[Value], cs: list[Value], pair_sums: list[Value], bits: int) -> Value:
    """Sum of xs[k] * cs[k], modulo 2**bits; pair_sums[i] = xs[2 i] + xs[2 i + 1]. cs are CACHE words."""
    width = OPERAND + 1  # of a row: bits of a pair sum
    top = 1 << (width - 1)
    total: Value = Const(0, 1)
    constant = 0
    for i, both in enumerate(pair_sums):
        x0, x1, x01 = (x.as_signed() for x in (xs[2 * i], xs[2 * i + 1], both))
        for bit in range(CACHE.width):
            c0, c1 = cs[2 * i][bit], cs[2 * i + 1][bit]
            picks = (c0 & ~c1, c1 & ~c0, c0 & c1)
            zero, one, two = (x & pick.as_signed() for x, pick in zip((x0, x1, x01), picks, strict=True))
            picked = (zero | one | two)[:width]
            # a row is unsigned with its sign bit inverted; the sign bit of c weighs -2**15: minus v is ~v + 1
            negative = bit == CACHE.width - 1
            row = picked ^ ((top - 1) if negative else top)
            constant += ((1 - top) if negative else -top) << bit
            total = total + (row << bit)
    return (total + (constant % (1 << bits)))[:bits]


class MlaLanes(wiring.Component):
    """``block(p)`` lanes of the engine for all heads and positions: query registers, products, context sums.

    ``load`` captures ``query`` (VEC, heads x lanes; golden to_query) at the end of the cycle. With ``second`` 0,
    ``partial[t * heads + h]`` is the dot product of this cycle's ``cache`` words of position t with head h's query, over
    this group's lanes. With ``second`` 1 and ``accumulate``, ``weight`` (minus e, one per head and position, heads x
    positions) times ``cache`` is summed; ``first`` starts a new sum. ``finish`` writes ``context`` (CTX): the sum
    shifted right by MIN_SHIFT + ``shift``, rounded. A group without ``values`` (shared key) has pass 1 only.

    Paths from ``cache`` and ``weight`` to ``partial`` are combinational; ``context`` is a register.
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
            "load": In(1),
            "cache": In(data.ArrayLayout(CACHE.width, positions * self.lanes)),
            "partial": Out(data.ArrayLayout(self.partial_bits, positions * heads)),
        }
        if values:
            members |= {
                "second": In(1),
                "weight": In(data.ArrayLayout(OPERAND, heads * positions)),
                "accumulate": In(1),
                "first": In(1),
                "finish": In(1),
                "shift": In(data.ArrayLayout(shift_bits(p), heads)),
                "context": Out(data.ArrayLayout(CTX.width, heads * self.lanes)),
            }
        super().__init__(members)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        heads = range(self.p.model.num_attention_heads)
        xs = [self._operands(m, head) for head in heads]
        for unit in range(self.lanes if self.values else self.p.mla_positions):
            operands = self._cache_operands(m, unit)
            for head in heads:
                self._unit(m, unit, head, operands, *xs[head])
        return m

    def _cache_operands(self, m: Module, unit: int) -> list[Value]:
        """Unit ``unit``'s cached values: the lanes of position ``unit``, in pass 2 lane ``unit`` of all positions."""
        lanes, positions = self.lanes, self.p.mla_positions
        operands: list[Value] = []
        for k in range(lanes):
            straight = self.cache[unit * lanes + k] if unit < positions else None
            across = self.cache[k * lanes + unit] if k < positions and self.values else None
            value = Signal(CACHE.width, name=f"c_{unit}_{k}")
            if straight is None or across is None:
                m.d.comb += value.eq(next((v for v in (straight, across) if v is not None), Const(0)))
            elif unit == k:
                m.d.comb += value.eq(straight)
            else:
                m.d.comb += value.eq(Mux(self.second, across, straight))
            operands.append(value)
        return operands

    def _operands(self, m: Module, head: int) -> tuple[list[Value], list[Value]]:
        """Query (pass 1) or minus weights (pass 2) of a head, and their pair sums."""
        lanes, positions = self.lanes, self.p.mla_positions
        xs: list[Value] = []
        for k in range(lanes):
            query = Signal(signed(QUERY.width), name=f"query_{head}_{k}", reset_less=True)
            raw = _signed(self.query[head * lanes + k])
            rounded = saturate(m, round_shift(raw, VEC.frac - QUERY.frac), QUERY, name=f"rounded_{head}_{k}")
            with m.If(self.load):
                m.d.sync += query.eq(rounded)
            x = Signal(signed(OPERAND), name=f"x_{head}_{k}")
            if not self.values:
                m.d.comb += x.eq(query)
            elif k < positions:
                m.d.comb += x.eq(Mux(self.second, _signed(self.weight[head * positions + k]), query))
            else:
                m.d.comb += x.eq(Mux(self.second, 0, query))
            xs.append(x)
        sums: list[Value] = []
        for i in range(lanes // 2):
            both = Signal(signed(OPERAND + 1), name=f"x_{head}_{2 * i}_{2 * i + 1}")
            m.d.comb += both.eq(xs[2 * i] + xs[2 * i + 1])
            sums.append(both)
        return xs, sums

    def _unit(self, m: Module, unit: int, head: int, cs: list[Value], xs: list[Value], sums: list[Value]) -> None:
        """Products of one unit and one head, and what becomes of them."""
        product = Signal(signed(self.product_bits), name=f"product_{unit}_{head}")
        m.d.comb += product.eq(_product_sum(xs, cs, sums, self.product_bits))
        if unit < self.p.mla_positions:
            m.d.comb += self.partial[unit * self.p.model.num_attention_heads + head].eq(product[: self.partial_bits])
        if self.values:
            self._accumulate(m, unit, head, product)

    def _accumulate(self, m: Module, unit: int, head: int, product: Signal) -> None:
        """Context sum of one lane and head, and its shift into CTX."""
        total = Signal(signed(context_bits(self.p)), name=f"total_{unit}_{head}", reset_less=True)
        with m.If(self.accumulate):
            m.d.sync += total.eq(Mux(self.first, 0, total) - product)
        # |total| < sum of weights * 2**15 <= 2**(16 + shift + 1 + 15): at most 23 bits are left, CTX never saturates
        stage: Value = total >> (MIN_SHIFT - 1)  # one guard bit: the last one dropped
        shift = self.shift[head]
        for i in reversed(range(len(shift))):
            part = Signal(signed(CTX.width + (1 << i)), name=f"shifted_{unit}_{head}_{i}")
            m.d.comb += part.eq(Mux(shift[i], stage >> (1 << i), stage))
            stage = part
        with m.If(self.finish):
            m.d.sync += self.context[head * self.lanes + unit].eq((stage >> 1) + stage[0])


def partial_bits(p: Params) -> int:
    """Bits of a lane group's dot product."""
    return QUERY.width + CACHE.width + block(p).bit_length() - 1


def shift_bits(p: Params) -> int:
    """Bits of log2 of a sum of weights."""
    return p.position_bits.bit_length()


def context_bits(p: Params) -> int:
    """Bits of a context sum."""
    return UNIT.width + CACHE.width - 1 + p.position_bits


class MlaScorer(wiring.Component):
    """Score of one position and head: the lane groups' dot products are added and registered, then scaled.

    ``score`` (SCORE, golden scores) belongs to the ``partial`` of the cycle before; it is combinational in the register.
    """

    module_name = "mla_scorer"

    def __init__(self, p: Params) -> None:
        self.groups = (HEAD + ROPE) // block(p)
        self.bits = partial_bits(p)
        self.factor = score_factor(p.model.qk_nope_head_dim, p.model.qk_rope_head_dim)
        super().__init__({"partial": In(data.ArrayLayout(self.bits, self.groups)), "score": Out(signed(SCORE.width))})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        total: Value = sum((_signed(self.partial[i]) for i in range(self.groups)), Const(0, signed(1)))
        dot = Signal(signed(QUERY.width + CACHE.width + 5), reset_less=True)  # 48 products of up to 2**30
        m.d.sync += dot.eq(total)
        drop = QUERY.frac + CACHE.frac - SCORE.frac
        short, last = dot >> drop, dot[drop - 1]  # the rounded value is their sum
        scaled = (short * self.factor + Mux(last, self.factor, 0) + (1 << (SCALE_FRAC - 1))) >> SCALE_FRAC
        m.d.comb += self.score.eq(saturate(m, scaled, SCORE))
        return m


class MlaWeight(wiring.Component):
    """Softmax weight of one position and head: ``minus`` is registered, -exp2(score - maximum) as UNIT, 0 unless ``used``."""

    module_name = "mla_weight"
    score: In(signed(SCORE.width))  # type: ignore[valid-type]
    maximum: In(signed(SCORE.width))  # type: ignore[valid-type]
    used: In(1)  # type: ignore[valid-type]
    minus: Out(signed(OPERAND))  # type: ignore[valid-type]

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        below = Signal(SCORE.width + 1)
        m.d.comb += below.eq(self.maximum - self.score)  # never negative where it is used
        weight = exp2_neg(m, Cat(Const(0, 16 - SCORE.frac), below))
        m.d.sync += self.minus.eq(Mux(self.used, -weight, 0))
        return m


class MlaEngine(wiring.Component):
    """MLA engine: cache, scores, softmax and context (golden.fixed.mla) of one position of one layer per command.

    Interface as in docs/chip.md. ``cache_we`` stores ``cache_latent`` (CACHE) and the shared key in T3 lanes
    16 * heads .. (VEC; golden to_cache) as the entry of (``cache_layer``, ``position``); a command may follow in the next
    cycle. It must not come while a command runs. A command reads the absorbed query in T0 lanes 32 h .. and q_rope in
    T3 lanes 16 h .. in its first valid cycle only; ``position`` must be stable throughout.

    With n = position // mla_positions + 1 groups of positions, the first valid cycle being 1:
    1 .. n: cache reads; 2 .. n + 1: dot products; 3 .. n + 2: scores, running maximum. Softmax weights in n + 3 .. 2 n +
    2, beginning with the last group, whose scores are still in a register; sums one cycle later; in 2 n + 4 the sums
    become context and 1/m: ``take`` and ``done``, so 2 n + 4 cycles a command (``mla_cycles``), back to back.
    ``context`` and ``context_mantissa`` are registers and hold until the next command's done.
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

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        self._control(m)
        words = self._cache(m)
        groups = self._lanes(m, words)
        scores = self._scores(m, groups)
        weights = self._weights(m, scores)
        self._finish(m, groups, weights)
        return m

    def _control(self, m: Module) -> None:
        """Stage signals: read -> dot -> score -> weigh -> sum -> finish."""
        self.last_group = Signal(self.group_bits)
        log = self.positions.bit_length() - 1
        m.d.comb += self.last_group.eq(self.position >> log)
        lane = self.position[:log]
        self.used = Signal(self.positions)  # of the last group
        m.d.comb += self.used.eq(Cat(Const(t) <= lane for t in range(self.positions)))
        self.start = Signal()
        self.read, self.dot, self.score, self.weigh, self.sum, self.finish = (
            Signal(name=n) for n in ("read", "dot", "score", "weigh", "sum", "finish")
        )
        running, scanning, weighing = Signal(), Signal(), Signal()
        self.score_last, dot_last = Signal(), Signal()
        self.read_group, self.dot_group, self.score_group = (
            Signal(self.group_bits, name=n) for n in ("read_group", "dot_group", "score_group")
        )
        next_group, next_weighed = Signal(self.group_bits), Signal(self.group_bits)
        read_last = self.read_group == self.last_group
        m.d.comb += [
            self.start.eq(self.valid & ~running),
            self.read.eq(self.start | scanning),
            self.read_group.eq(Mux(self.start, 0, next_group)),
        ]
        m.d.sync += [
            scanning.eq(self.read & ~read_last),
            next_group.eq(self.read_group + 1),
            self.dot.eq(self.read),
            self.dot_group.eq(self.read_group),
            dot_last.eq(read_last),
            self.score.eq(self.dot),
            self.score_group.eq(self.dot_group),
            self.score_last.eq(self.dot & dot_last),
        ]
        self.weigh_first, self.sum_first = Signal(), Signal()
        self.weigh_group, self.weigh_next = Signal(self.group_bits), Signal(self.group_bits)
        self.weigh_more = Signal()
        m.d.comb += [
            self.weigh.eq(self.weigh_first | weighing),
            self.weigh_group.eq(Mux(self.weigh_first, self.last_group, next_weighed)),
            self.weigh_next.eq(Mux(self.weigh_first, 0, next_weighed + 1)),
            self.weigh_more.eq(self.weigh & (self.weigh_next != self.last_group)),
        ]
        sum_last = Signal()
        self.second = Signal()
        m.d.sync += [
            self.weigh_first.eq(self.score_last),
            weighing.eq(self.weigh_more),
            next_weighed.eq(self.weigh_next),
            self.sum.eq(self.weigh),
            self.sum_first.eq(self.weigh_first),
            sum_last.eq(self.weigh & ~self.weigh_more),
            self.second.eq((self.second | self.weigh_first) & ~self.finish),
            self.finish.eq(sum_last),
            running.eq((running | self.valid) & ~self.finish),
        ]
        m.d.comb += [self.take.eq(self.finish), self.done.eq(self.finish)]

    def _cache(self, m: Module) -> list[Value]:
        """Banks of cache entries; returns each bank's word read."""
        p = self.p
        per_layer = p.model.max_positions // self.positions
        log = self.positions.bit_length() - 1
        key = [
            saturate(
                m,
                round_shift(_signed(self.t[ROPE_T][ROPE * self.heads + i]), VEC.frac - CACHE.frac),
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
                lanes.load.eq(self.start),
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
            with m.If(self.sum):
                m.d.sync += total.eq(Mux(self.sum_first, 0, total) - sum(weights[h], Const(0, signed(1))))
            mantissa, log = recip(m, total, name=f"recip_{h}")
            with m.If(self.finish):
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
                lanes.finish.eq(self.finish),
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
