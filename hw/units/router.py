"""MoE router: biased top-k by a comparison tree, unbiased renormalised weights."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from golden.fixed.functions import RECIP
from golden.fixed.numbers import BIAS, SIG, UNIT
from golden.fixed.router import SCALE_FRAC
from hw.arith.basic import round_shift, round_shift_by
from hw.arith.functions import recip
from hw.layouts import EXPERT_BITS, EXPERT_WEIGHT_BITS, PICKED, PICKED_WEIGHTS, LoadBus, RouterCommand, Space, registers
from hw.memory.sram import Sram
from hw.params import Params

LOAD_BITS = 32


class Router(wiring.Component):
    """Picks ``num_experts_per_token`` (1 or 2) of the experts whose scores (SIG) are in T0.

    Ports: docs/chip.md.  Biases (BIAS, expert e in bits 16 e) are one memory word per MoE layer.
    Latency, the first valid cycle being 1: bias read 1, one comparison tree per pick, weights 1: ``done`` and ``take``
    in cycle 2 + top_k; ``expert`` and ``expert_weight`` hold until the next command. One command at a time.
    Combinational paths: valid -> take, done; the scores in T0 must stay until done.
    Equals golden.fixed.router.route.
    """

    def __init__(self, p: Params) -> None:
        self.p = p
        self.experts = p.model.num_experts
        self.top_k = p.model.num_experts_per_token
        width = -(-self.experts * BIAS.width // LOAD_BITS) * LOAD_BITS
        self.biases = Sram(max(2, p.moe_layers), width, write_granularity=LOAD_BITS)
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

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.biases = self.biases
        step = Signal(range(2 + self.top_k))
        last = 1 + self.top_k
        m.d.comb += [self.take.eq(self.valid & (step == last)), self.done.eq(self.take)]
        with m.If(self.valid):
            m.d.sync += step.eq(Mux(step == last, 0, step + 1))
        self._memory(m, step)
        scores = [Signal(SIG.width, name=f"score{e}") for e in range(self.experts)]
        for e, score in enumerate(scores):
            raw = self.t[0][e][: SIG.width]
            m.d.comb += score.eq(Mux(raw.any(), raw, 1))  # a score of 0 counts as one ulp: the sum is never 0
        picked = [Signal(SIG.width, name=f"picked{i}") for i in range(self.top_k)]
        self._picks(m, step, scores, picked)
        self._weights(m, step, picked)
        return m

    def _memory(self, m: Module, step: Value) -> None:
        """Read the layer's biases in the first cycle; written by the loader while idle."""
        memory, load = self.biases, self.load
        write = Signal()
        m.d.comb += [
            write.eq(load.valid & (load.space == Space.ROUTER)),
            memory.en.eq(write | (self.valid & (step == 0))),
            memory.we.eq(write),
            memory.addr.eq(Mux(write, load.addr, self.cmd.layer)),
            memory.wmask.eq(Cat(load.part == i for i in range(memory.lanes))),
            memory.wdata.eq(load.data.replicate(memory.lanes)),
        ]

    def _picks(self, m: Module, step: Value, scores: list[Signal], picked: list[Signal]) -> None:
        """One round of the comparison tree per pick: lowest index of the largest key among those left."""
        width = SIG.width + 2
        left = Signal(self.experts)  # candidates not yet picked
        keys = []
        for e, score in enumerate(scores):
            key = Signal(signed(width), name=f"key{e}")
            bias = self.biases.rdata.word_select(e, BIAS.width).as_signed()
            m.d.comb += key.eq(Mux(left[e], score + (bias << (SIG.frac - BIAS.frac)), -(1 << (width - 1))))
            keys.append(key)
        best, score = self._largest(m, keys, scores)
        with m.If(step == 0):
            m.d.sync += left.eq(-1)
        for i in range(self.top_k):
            with m.If(self.valid & (step == 1 + i)):
                m.d.sync += [self.expert[i].eq(best), picked[i].eq(score)]
                m.d.sync += left.bit_select(best, 1).eq(0)

    def _largest(self, m: Module, keys: list[Signal], scores: list[Signal]) -> tuple[Value, Value]:
        """(index, score) of the largest key; the lower index wins ties because it is the left operand."""
        level: list[tuple[Value, Value, Value]] = [
            (key, Const(e, EXPERT_BITS), score) for e, (key, score) in enumerate(zip(keys, scores, strict=True))
        ]
        depth = 0
        while len(level) > 1:
            following = []
            for i in range(0, len(level) - 1, 2):
                (key_a, *rest_a), (key_b, *rest_b) = level[i], level[i + 1]
                right = Signal(name=f"right_{depth}_{i}")
                m.d.comb += right.eq(key_b > key_a)
                chosen = [Mux(right, b, a) for a, b in zip((key_a, *rest_a), (key_b, *rest_b), strict=True)]
                following.append((chosen[0], chosen[1], chosen[2]))
            level = following + level[len(level) & ~1 :]
            depth += 1
        return level[0][1], level[0][2]

    def _weights(self, m: Module, step: Value, picked: list[Signal]) -> None:
        """s_i / sum s, times the routed scaling factor."""
        total = Signal(SIG.width + self.top_k - 1)
        m.d.comb += total.eq(sum(picked[1:], start=picked[0]))
        mantissa, p = recip(m, total)
        shift = Signal(6)
        m.d.comb += shift.eq(p + (RECIP.out_frac - UNIT.frac))
        factor = int(self.p.model.routed_scaling_factor * 2**SCALE_FRAC + 0.5)
        with m.If(self.valid & (step == 1 + self.top_k)):
            for i, score in enumerate(picked):
                weight: Value = round_shift_by(m, score * mantissa, shift, 40, name=f"weight{i}")
                if factor != 1 << SCALE_FRAC:
                    weight = round_shift(weight * factor, SCALE_FRAC)
                m.d.sync += self.expert_weight[i].eq(weight[:EXPERT_WEIGHT_BITS])
