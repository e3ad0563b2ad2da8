"""MoE router: biased top-k and renormalised weights (golden.fixed.router.route)."""

import math
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib.wiring import In, Out

from golden.fixed.numbers import BIAS, SIG, UNIT
from golden.fixed.router import SCALE_FRAC
from hw.arith.basic import round_shift
from hw.arith.functions import recip
from hw.arith.multiply import multiply_add
from hw.block import Block
from hw.layouts import (
    EXPERT_BITS,
    EXPERT_WEIGHT_BITS,
    MANTISSA_BITS,
    PICKED,
    PICKED_WEIGHTS,
    LoadBus,
    RouterCommand,
    Space,
    registers,
)
from hw.memory.sram import Sram
from hw.params import Params

__all__ = ["Router"]

PIECE = 32  # bits of one write of the load bus
SUM_BITS = SIG.width + 1
WEIGHT_SHIFT = (MANTISSA_BITS - 1) + (SUM_BITS - 1) - UNIT.frac  # picks are shifted left so that their sum has SUM_BITS


@dataclass
class Ranked:
    """The best one or two of a range of experts: (key, index), best first."""

    best: list[tuple[Value, Value]]


def better(m: Module, a: Ranked, b: Ranked, top_k: int, name: str) -> Ranked:
    """The best ``top_k`` of two ranges; equal keys: the range ``a`` of lower indices first."""
    count = 0

    def choose(first: Value, x: tuple[Value, Value], y: tuple[Value, Value]) -> tuple[Value, Value]:
        nonlocal count
        key = Signal(x[0].shape(), name=f"{name}_key{count}")
        index = Signal(EXPERT_BITS, name=f"{name}_index{count}")
        count += 1
        m.d.comb += [key.eq(Mux(first, x[0], y[0])), index.eq(Mux(first, x[1], y[1]))]
        return key, index

    a_first = Signal(name=f"{name}_first")
    m.d.comb += a_first.eq(a.best[0][0] >= b.best[0][0])
    ranked = [choose(a_first, a.best[0], b.best[0])]
    if top_k == 2:
        second_a, second_b = b.best[0], a.best[0]  # the second when the first is of a, of b
        if len(a.best) == 2:
            second_a = choose(a.best[1][0] >= b.best[0][0], a.best[1], b.best[0])
        if len(b.best) == 2:
            second_b = choose(a.best[0][0] >= b.best[1][0], a.best[0], b.best[1])
        ranked.append(choose(a_first, second_a, second_b))
    return Ranked(ranked)


class Router(Block):
    """Router of all MoE layers; equal to ``golden.fixed.router.route`` of the scores in T0's lanes 0.. (low 21 bits).

    Interface: commands as in docs/chip.md.  ``load`` (Space.ROUTER, while the unit is idle): bits 32 part.. of the
    bias word of layer ``addr``; expert e has bits 16 e.. of the word (BIAS).  With one expert per token the second
    expert and weight are 0.

    Cycles: the biases of the shown command are read before it is valid, so ROUTE takes 1 cycle, 2 when the command
    was not shown, not valid, for a cycle before.  ``take`` and ``done`` come in that cycle: ``expert`` is
    visible from the next cycle on, ``expert_weight`` two cycles later than ``expert`` (an expert's matmul, which the
    weights wait for, is longer).  T0 must hold in the cycle after ``done`` too (no array result can arrive earlier
    than that).  Both outputs are registers and hold until the next ROUTE.  Throughput: one command per cycle.

    Combinational: valid, cmd -> take, done, memory pins.
    """

    def __init__(self, p: Params) -> None:
        self.p = p
        self.top_k = p.model.num_experts_per_token
        width = math.ceil(p.model.num_experts * BIAS.width / PIECE) * PIECE
        self.memory = Sram(max(2, p.moe_layers), width, write_granularity=PIECE)
        super().__init__(
            {
                "cmd": In(RouterCommand),
                "valid": In(1),
                "take": Out(1),
                "done": Out(1),
                "t": In(registers(p)),
                "load": In(LoadBus),
                "expert": Out(PICKED),
                "expert_weight": Out(PICKED_WEIGHTS),
            }
        )

    def body(self, platform: Any) -> Module:
        m = Module()
        m.submodules.memory = self.memory
        experts = self.p.model.num_experts
        scores = [Signal(SIG.width, name=f"score_{e}") for e in range(experts)]
        for e, score in enumerate(scores):
            raw = self.t[0][e][: SIG.width]
            m.d.comb += score.eq(raw | ~raw.any())  # 0 counts as one ulp
        held = self._biases(m)
        pick = self.valid & held
        m.d.comb += [self.take.eq(pick), self.done.eq(pick)]
        best = self._best(m, scores).best
        with m.If(pick):
            m.d.sync += [self.expert[i].eq(index) for i, (_, index) in enumerate(best)]
        self._weights(m, pick, scores)
        return m

    def _biases(self, m: Module) -> Value:
        """Memory port; returns whether the memory's output is the word of the command that is shown."""
        memory, load = self.memory, self.load
        held = Signal()
        held_layer = Signal.like(self.cmd.layer, reset_less=True)
        here = held & (held_layer == self.cmd.layer)
        write = load.valid & (load.space == Space.ROUTER)
        read = ~write & ~here & (self.cmd.layer < memory.depth)
        m.d.comb += [
            memory.en.eq(write | read),
            memory.we.eq(write),
            memory.addr.eq(Mux(write, load.addr, self.cmd.layer)),
            memory.wdata.eq(load.data.replicate(memory.lanes)),
            memory.wmask.eq(Cat(load.part == i for i in range(memory.lanes))),
        ]
        with m.If(write):
            m.d.sync += held.eq(0)
        with m.Elif(read):
            m.d.sync += [held.eq(1), held_layer.eq(self.cmd.layer)]
        return here

    def _best(self, m: Module, scores: list[Signal]) -> Ranked:
        """The best experts by score and bias, by a tree."""
        ranked = []
        for e, score in enumerate(scores):
            bias = self.memory.rdata.word_select(e, BIAS.width).as_signed()
            key = Signal(signed(SIG.width + 2), name=f"key_{e}")
            index = Signal(EXPERT_BITS, name=f"index_{e}", init=e)
            m.d.comb += [key.eq(score + (bias << (SIG.frac - BIAS.frac))), index.eq(e)]
            ranked.append(Ranked([(key, index)]))
        level = 0
        while len(ranked) > 1:
            pairs = [
                better(m, ranked[i], ranked[i + 1], self.top_k, f"best_{level}_{i}")
                for i in range(0, len(ranked) - 1, 2)
            ]
            ranked = pairs + ranked[2 * len(pairs) :]
            level += 1
        return ranked[0]

    def _weights(self, m: Module, pick: Value, scores: list[Signal]) -> None:
        """Two steps after the picks: sum and reciprocal; weights."""
        sum_step, weight_step = Signal(), Signal()
        m.d.sync += [sum_step.eq(pick), weight_step.eq(sum_step)]
        picked = [Signal(SIG.width, name=f"picked_{i}") for i in range(self.top_k)]
        total = Signal(SUM_BITS)
        for i, value in enumerate(picked):
            with m.Switch(self.expert[i]):
                for e, score in enumerate(scores):
                    with m.Case(e):
                        m.d.comb += value.eq(score)
        m.d.comb += total.eq(sum(picked[1:], start=picked[0]))
        mantissa_now, exponent = recip(m, total)
        mantissa = Signal(MANTISSA_BITS, reset_less=True)
        left = Signal(range(SUM_BITS))
        m.d.comb += left.eq(SUM_BITS - 1 - exponent)
        shifted = [Signal(SUM_BITS, name=f"shifted_{i}", reset_less=True) for i in range(self.top_k)]
        with m.If(sum_step):
            m.d.sync += mantissa.eq(mantissa_now)
            m.d.sync += [s.eq(value << left) for s, value in zip(shifted, picked, strict=True)]
        factor = math.floor(self.p.model.routed_scaling_factor * 2**SCALE_FRAC + 0.5)
        for i, value in enumerate(shifted):
            half = 1 << (WEIGHT_SHIFT - 1)
            product = multiply_add(m, value, mantissa, half, SUM_BITS + MANTISSA_BITS + 1, f"product_{i}")
            weight = Signal(UNIT.width, name=f"weight_{i}")
            m.d.comb += weight.eq(product >> WEIGHT_SHIFT)
            scaled = weight if factor == 1 << SCALE_FRAC else round_shift(weight * factor, SCALE_FRAC)
            with m.If(weight_step):
                m.d.sync += self.expert_weight[i].eq(scaled[:EXPERT_WEIGHT_BITS])
