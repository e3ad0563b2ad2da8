"""Vector unit: residual mixes, norms, gates and the MX quantiser in front of the array."""

from collections.abc import Mapping
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from golden.config import ConfigError
from golden.fixed.numbers import CACHE, CONST, CTX, KEY, NRM, ROWSCALE, VEC
from hw import layouts
from hw.arith.basic import round_shift, saturate
from hw.block import Block
from hw.layouts import (
    MANTISSA_BITS,
    PICKED_WEIGHTS,
    SLOT_FILE,
    Combine,
    Eps,
    LoadBus,
    Norm,
    Source,
    Space,
    VectorCommand,
    VectorOp,
    registers,
    vector,
)
from hw.memory.sram import Sram
from hw.params import BLOCK, SLOTS, T_REGS, Params
from hw.units.quantiser import block_zeros, scale_code
from hw.units.vector_lane import SHIFT_BITS, SHIFT_STEP, TILE, Multiplier, Operand, VectorTile, one_hot
from hw.units.vector_norm import EPS_BITS, VectorNorm
from hw.units.vector_scores import DOT_DROP, VectorScores

LOAD_BITS = 32
TILES = BLOCK // TILE  # of a segment
EPSILONS: tuple[Any, ...] = (Eps.RMS, Eps.MLA, Eps.L2, Eps.HEAD)
UNCHANGED = 13  # the shift of a multiplication that changes nothing


def check_command(command: Mapping[str, Any]) -> None:
    """Raise ValueError for a combination of fields that the unit does not have."""
    if command["op"] != VectorOp.FLOW:
        return
    src, norm = command["src"], command["norm"]
    plain = src != Source.O and norm == Norm.NONE  # a weight would see VEC
    if command["weight"]:
        allowed = ROWSCALE.frac if plain else CONST.frac
        if command["weight_frac"] != allowed:
            raise ValueError(f"weight_frac is {command['weight_frac']}; here it must be {allowed}")
    if (norm == Norm.DIVIDE) != (src == Source.C) and (norm == Norm.DIVIDE or command["weight"] or command["gate"]):
        raise ValueError("DIVIDE belongs to source C, and C is divided before anything else")
    if src == Source.C and norm in (Norm.RMS, Norm.L2):
        raise ValueError("the context has no norm")
    key = command["out"] in (layouts.Out.KDA_K, layouts.Out.KDA_Q)
    if key != (norm == Norm.L2) or (key and (command["weight"] or command["gate"])):
        raise ValueError("L2 makes keys and queries of the KDA engine, and nothing else does")
    if command["out"] == layouts.Out.CACHE and norm != Norm.RMS and not command["weight"] and not command["gate"]:
        raise ValueError("only NRM values go to the cache")
    if command["whole"] and src not in (Source.P, Source.MIX):
        raise ValueError("only the residual stream is normalised as a whole")


class VectorUnit(Block):
    """Executes VectorCommands: golden.fixed.vector, golden.fixed.mx.quantise, the division of mla.context.

    Ports are in docs/chip.md.  ``constants``: words of the constant memory (``lanes`` x 16 bits).

    Cycles, the first valid one being 1 (hw.timing: ``vector_cycles``, ``vector_take``):

    - SNAP: take and done in 1.
    - SCORE: take in 2, done in 3: squares and their sum; dot product and inverse norm; score.
    - FLOW: take and done in the sum of: weighted sum n (and 2 before it for a softmax), RMS or L2 3 (squares and sum;
      inverse root; multiplication), DIVIDE 1,
      weight 1, gate 1; at least 1.  The last of them also quantises and writes; only a bare norm into slots needs one
      cycle more, and so does a weight as the very first step when its constant was not yet shown a cycle earlier.

    Commands run back to back.  A command that would end in its first cycle, and a softmax, wait while the score of the
    command before is being written (one cycle).

    ``key``, ``k_we``, ``q_we``, ``cache_*`` are combinational from registers, cmd, valid and the operand inputs, and
    valid in the cycle of done.  ``take`` and ``done`` are combinational from cmd and valid.

    A token's lanes beyond the hidden size must be 0 in P (they are, docs/chip.md).
    """

    def __init__(self, p: Params, constants: int = 128) -> None:
        self.p = p
        self.heads = p.model.num_attention_heads
        self.memory = Sram(max(2, constants), p.lanes * CONST.width, write_granularity=LOAD_BITS)
        self._check_eps()
        super().__init__(
            {
                "cmd": In(VectorCommand),
                "valid": In(1),
                "take": Out(1),
                "done": Out(1),
                "t": In(registers(p)),
                "prefix": In(vector(p)),
                "kda_o": In(vector(p)),
                "context": In(vector(p)),
                "context_mantissa": In(data.ArrayLayout(MANTISSA_BITS, self.heads)),
                "expert_weight": In(PICKED_WEIGHTS),
                "load": In(LoadBus),
                "slots": Out(SLOT_FILE),
                "key": Out(data.ArrayLayout(KEY.width, p.lanes)),
                "k_we": Out(1),
                "q_we": Out(1),
                "cache_we": Out(1),
                "cache_latent": Out(data.ArrayLayout(CACHE.width, BLOCK)),
                "cache_layer": Out(3),
            }
        )

    def _eps(self, kind: Any, frac: int, n: int) -> int:
        """Epsilon in the unit of a sum of n squares (golden.fixed.vector.inverse_norm)."""
        model = self.p.model
        value = {
            Eps.RMS: model.rms_norm_eps,
            Eps.MLA: model.mla_norm_eps,
            Eps.L2: model.l2_norm_eps,
            Eps.HEAD: model.rms_norm_eps * model.kda_head_dim,
        }[kind]
        return max(1, int(value * n * 2.0 ** (2 * frac) + 0.5))

    def _check_eps(self) -> None:
        """The shift of a normalisation is at least 1, and epsilon fits its port."""
        for kind in EPSILONS:
            for n in (1, BLOCK, self.p.model.hidden_size):
                low, high = self._eps(kind, VEC.frac, n), self._eps(kind, NRM.frac, n)
                if high >= 1 << EPS_BITS or (n > 1 and low < 16):
                    raise ConfigError(f"{self.p.model.name}: norm epsilons must be from 1e-8 to 1e-2")

    def body(self, platform: Any) -> Module:
        return _Build(self).module()


class _Build:
    """One elaboration of the unit: signals that its parts share."""

    def __init__(self, unit: VectorUnit) -> None:
        self.u = unit
        self.p = unit.p
        self.m = Module()
        p = unit.p
        cmd = unit.cmd
        self.segments = range(p.segments)
        self.norms = [VectorNorm(TILES, TILES * (p.segments - 1)) for _ in self.segments]
        self.tiles = [[VectorTile(p.snapshots) for _ in range(TILES)] for _ in self.segments]
        self.scores = VectorScores(p.candidates, VEC.frac + self._half_log(p.model.hidden_size))
        # command
        self.is_flow = cmd.op == VectorOp.FLOW
        self.is_score = cmd.op == VectorOp.SCORE
        self.mix = cmd.src == Source.MIX
        self.experts = cmd.combine == Combine.EXPERTS
        self.norm = (cmd.norm == Norm.RMS) | (cmd.norm == Norm.L2)
        self.scaled = (cmd.norm != Norm.NONE) | cmd.weight | cmd.gate  # the result is NRM
        # steps of this cycle
        names = ("snap", "softmax", "weigh", "add", "square", "root", "dot", "scale", "divide", "weight", "gate", "out")
        self.step = {name: Signal(name=f"step_{name}") for name in names}
        self.start = Signal(name="start", init=1)
        self.candidate = Signal(3)
        self.last_candidate = Signal()
        self.last = Signal()  # the command ends in this cycle
        self.advance = Signal()  # the step is made
        self.pending = Signal()  # the score of the command before is being written
        self.have_constant = Signal()
        self.frac = Signal(5)  # of z

    @staticmethod
    def _half_log(n: int) -> int:
        """Half the bits that a mean over n adds to the fraction, rounded up."""
        return n.bit_length() // 2

    def module(self) -> Module:
        m = self.m
        for s in self.segments:
            m.submodules[f"norm{s}"] = self.norms[s]
            for i, tile in enumerate(self.tiles[s]):
                m.submodules[f"tile{s}_{i}"] = tile
        m.submodules.scores = self.scores
        m.submodules.constants = self.u.memory
        self._sequence()
        self._constants()
        self._operands()
        self._multipliers()
        self._norms()
        self._softmax()
        self._outputs()
        return m

    # --- control ---
    def _sequence(self) -> None:
        """Which step this cycle makes, and which comes next."""
        m, cmd, step = self.m, self.u.cmd, self.step
        plain = self.is_flow & ~self.mix
        norm, weight, gate = self.norm, cmd.weight, cmd.gate
        divide = cmd.norm == Norm.DIVIDE
        first = {
            "snap": cmd.op == VectorOp.SNAP,
            "softmax": self.is_flow & self.mix & ~self.experts,
            "add": self.is_flow & self.mix & self.experts,
            "square": self.is_score | (plain & norm),
            "divide": plain & divide,
            "weight": plain & (cmd.norm == Norm.NONE) & weight,
            "gate": plain & (cmd.norm == Norm.NONE) & ~weight & gate,
            "out": plain & (cmd.norm == Norm.NONE) & ~weight & ~gate,
        }
        later = ("weigh", "add", "square", "root", "dot", "scale", "weight", "gate", "out")
        state = {name: Signal(name=f"state_{name}") for name in later}
        for name, signal in step.items():
            now = self.start & first[name] if name in first else Const(0, 1)
            m.d.comb += signal.eq(now | (state[name] if name in state else 0))
        more = weight | gate
        last_add = step["add"] & self.last_candidate
        ends = {
            "add": last_add & ~norm & ~more,
            "scale": step["scale"] & ~more & (cmd.out != layouts.Out.SLOTS),
            "divide": step["divide"] & ~more,
            "weight": step["weight"] & ~gate,
        }
        m.d.comb += [
            self.last_candidate.eq(self.candidate + 1 == cmd.n),
            self.last.eq(Cat(step["snap"], step["gate"], step["out"], *ends.values()).any()),
        ]
        wait_score = self.pending & self.start & (self.last | step["softmax"])
        wait_constant = self.start & step["weight"] & ~self.have_constant
        m.d.comb += [
            self.advance.eq(self.u.valid & ~wait_score & ~wait_constant),
            self.u.take.eq(self.advance & (self.last | step["dot"])),
            self.u.done.eq(self.pending | (self.advance & self.last)),
        ]
        before_weight = (last_add & ~norm) | step["scale"] | step["divide"]
        following = {
            "weigh": step["softmax"],
            "add": step["weigh"] | (step["add"] & ~self.last_candidate),
            "square": last_add & norm,
            "dot": step["square"] & self.is_score,
            "root": step["square"] & self.is_flow,
            "scale": step["root"],
            "weight": before_weight & weight,
            "gate": (before_weight & ~weight & gate) | (step["weight"] & gate),
            "out": step["scale"] & ~more & (cmd.out == layouts.Out.SLOTS),
        }
        m.d.sync += self.pending.eq(self.advance & step["dot"])
        with m.If(self.advance):
            m.d.sync += [state[name].eq(value) for name, value in following.items()]
            m.d.sync += self.start.eq(self.u.take)
            m.d.sync += self.candidate.eq(Mux(self.u.take, 0, self.candidate + step["add"]))

    def _constants(self) -> None:
        """The constant memory: reads the word of the command that is shown, unless it is on the output already."""
        m, u = self.m, self.u
        held, fresh = Signal.like(u.cmd.constant, reset_less=True), Signal()
        write = u.load.valid & (u.load.space == Space.VECTOR)
        read = (self.is_score | (self.is_flow & u.cmd.weight)) & ~self.have_constant & ~write
        m.d.comb += [
            self.have_constant.eq(fresh & (held == u.cmd.constant)),
            u.memory.en.eq(write | read),
            u.memory.we.eq(write),
            u.memory.addr.eq(Mux(write, u.load.addr, u.cmd.constant)),
            u.memory.wmask.eq(Cat(u.load.part == i for i in range(u.memory.lanes))),
            u.memory.wdata.eq(u.load.data.replicate(u.memory.lanes)),
        ]
        with m.If(write):
            m.d.sync += fresh.eq(0)
        with m.Elif(read):
            m.d.sync += [fresh.eq(1), held.eq(u.cmd.constant)]

    # --- lanes ---
    def _operand_select(self) -> Value:
        """One-hot operand of this cycle."""
        cmd, step = self.u.cmd, self.step
        direct = (self.start | step["scale"]) & self.is_flow & ~self.mix
        mix = step["add"] & ~self.experts
        scoring = self.is_score
        expert = step["add"] & self.experts
        prefix_last = mix & self.last_candidate
        bits = [(direct & (cmd.src == Source(r))) | (expert & (self.candidate == r)) for r in range(T_REGS)]
        bits += [
            (direct & (cmd.src == Source.P)) | (scoring & (cmd.src == Source.P)) | prefix_last,
            direct & (cmd.src == Source.O),
            direct & (cmd.src == Source.C),
            self.is_flow & ~direct & ~step["add"],
        ]
        for s in range(self.p.snapshots):
            scored = scoring & (cmd.src != Source.P) & (cmd.index == s)
            bits.append(scored | (mix & ~self.last_candidate & (self.candidate == s)))
        assert len(bits) == Operand.SNAPSHOT.value + self.p.snapshots
        return Cat(*bits)

    def _operands(self) -> None:
        """Data, operand selects and register enables of the tiles."""
        m, u, step = self.m, self.u, self.step
        operand = Signal(Operand.SNAPSHOT.value + self.p.snapshots)
        snapshot = Signal(self.p.snapshots)
        gate_register = Cat(u.cmd.gate_reg == r for r in range(T_REGS))
        writes = u.valid & step["snap"] & self.advance
        m.d.comb += [
            operand.eq(self._operand_select()),
            snapshot.eq(Cat(writes & (u.cmd.index == s) for s in range(self.p.snapshots))),
        ]
        for s, i, tile in self._each_tile():
            lanes = range(BLOCK * s + TILE * i, BLOCK * s + TILE * (i + 1))
            for k, lane in enumerate(lanes):
                m.d.comb += [tile.t[r][k].eq(u.t[r][lane]) for r in range(T_REGS)]
                m.d.comb += [
                    tile.prefix[k].eq(u.prefix[lane]),
                    tile.o[k].eq(u.kda_o[lane]),
                    tile.c[k].eq(u.context[lane]),
                    tile.constant[k].eq(u.memory.rdata.word_select(lane, CONST.width)),
                ]
            m.d.comb += [
                tile.operand.eq(operand),
                tile.gate.eq(gate_register),
                tile.load.eq(~step["square"] & ~step["root"]),
                tile.partial.eq(step["add"] & ~self.last_candidate),
                tile.snapshot.eq(snapshot),
            ]

    def _each_tile(self) -> list[tuple[int, int, VectorTile]]:
        return [(s, i, tile) for s in self.segments for i, tile in enumerate(self.tiles[s])]

    def _multipliers(self) -> None:
        """Multiplier, pre-shift, rounding and shift of every step.

        A shift S (the golden functions' fraction arithmetic) is done as 1 + 4 * shift after a multiplier times
        2**(1 + 4 * shift - S).
        """
        m, cmd, step = self.m, self.u.cmd, self.step
        vec_gate = (cmd.norm == Norm.NONE) & ~cmd.weight & (cmd.src != Source.O)
        double = Signal()  # of the constant, which is doubled anyway, or of the gate
        m.d.comb += double.eq(Mux(step["gate"], ~vec_gate, ~step["dot"] & (cmd.weight_frac == ROWSCALE.frac)))
        fixed = Signal(SHIFT_BITS)
        m.d.comb += fixed.eq(
            one_hot(
                Cat(step["add"], step["divide"], step["weight"], step["gate"], step["out"]),
                [Const(4, 3), Const(5, 3), Const(3, 3), Mux(vec_gate, Const(4, 3), Const(5, 3)), Const(3, 3)],
            )
        )
        assert 1 + SHIFT_STEP * 3 == UNCHANGED
        multiplier = Signal(len(Multiplier))
        wide_steps = Cat(step["add"], step["scale"], step["divide"], step["out"]).any()
        m.d.comb += multiplier.eq(Cat(step["square"], step["weight"] | step["dot"], step["gate"], wide_steps))
        accumulate, rounds = Signal(), Signal()
        m.d.comb += [
            accumulate.eq(step["add"] & (self.candidate != 0)),
            rounds.eq(~step["square"] & ~step["dot"]),
        ]
        for s in self.segments:
            wide, shift = self._segment_multiplier(s, fixed)
            half = Signal(1 << SHIFT_BITS, name=f"half{s}")
            m.d.comb += half.eq(Cat(rounds & (shift == i) for i in range(1 << SHIFT_BITS)))
            for tile in self.tiles[s]:
                m.d.comb += [
                    tile.multiplier.eq(multiplier),
                    tile.double.eq(double),
                    tile.accumulate.eq(accumulate),
                    tile.wide.eq(wide),
                    tile.shift.eq(shift),
                    tile.half.eq(half),
                ]

    def _segment_multiplier(self, s: int, fixed: Value) -> tuple[Signal, Signal]:
        """The segment's WIDE multiplier and its shift."""
        m, u, step, norm = self.m, self.u, self.step, self.norms[s]
        # normalisation: S - 1 = pair + 1 - (half of the mean's fraction bits) for NRM, one less for KEY
        mean_part = self._half_log(BLOCK)
        assert mean_part == self._half_log(self.p.model.hidden_size)
        shift_less_1 = Signal(6, name=f"scale_shift{s}")
        m.d.comb += shift_less_1.eq(Mux(u.cmd.norm == Norm.L2, norm.pair, norm.pair - (mean_part - 1)))
        negated = Signal(2, name=f"pre_shift{s}")
        m.d.comb += negated.eq(-shift_less_1)
        mantissa = Signal(MANTISSA_BITS + SHIFT_STEP - 1, name=f"mantissa{s}")
        m.d.comb += mantissa.eq(norm.mantissa << negated)
        shift, wide = Signal(SHIFT_BITS, name=f"shift{s}"), Signal(signed(VEC.width), name=f"wide{s}")
        m.d.comb += shift.eq(Mux(step["scale"], (shift_less_1 + (SHIFT_STEP - 1)) >> 2, fixed))
        context = u.context_mantissa[s] << 2 if s < u.heads else Const(0, MANTISSA_BITS)
        expert = u.expert_weight[0] if self.p.model.num_experts_per_token == 1 else u.expert_weight[self.candidate[0]]
        weight = Mux(self.experts, expert, self.scores.weight) << 1
        unchanged = Const(1 << UNCHANGED, UNCHANGED + 1)
        m.d.comb += wide.eq(
            one_hot(
                Cat(step["scale"], step["divide"], step["add"], step["out"]), [mantissa, context, weight, unchanged]
            )
        )
        return wide, shift

    # --- shared arithmetic ---
    def _norms(self) -> None:
        """Sums, epsilon and fraction of the inverse norms."""
        m, u = self.m, self.u
        cmd = u.cmd
        hidden = self.p.model.hidden_size
        eps, odd, whole = Signal(EPS_BITS), Signal(), Signal()
        m.d.comb += whole.eq(cmd.whole | self.is_score)
        l2 = self.is_flow & (cmd.norm == Norm.L2)
        with m.Switch(Cat(cmd.eps, cmd.src == Source.O, l2, whole)):
            for kind in EPSILONS:
                for source, frac in ((0, VEC.frac), (1, NRM.frac)):
                    for is_l2, is_whole in ((0, 0), (0, 1), (1, 0), (1, 1)):
                        n = 1 if is_l2 else hidden if is_whole else BLOCK
                        with m.Case(kind.value | source << 2 | is_l2 << 3 | is_whole << 4):
                            m.d.comb += [eps.eq(u._eps(kind, frac, n)), odd.eq(n.bit_length() % 2 == 0)]
        extra = Signal(EPS_BITS)
        with m.If(self.step["square"]):
            m.d.comb += extra.eq(eps)
        with m.Else():  # in the dot product: half of the bits that mix_score drops from twice the dot
            m.d.comb += extra.eq(1 << DOT_DROP)
        for s, norm in enumerate(self.norms):
            others = [tile for o in self.segments if o != s for tile in self.tiles[o]]
            m.d.comb += [norm.extra.eq(extra), norm.odd.eq(odd), norm.whole.eq(whole)]
            m.d.comb += [norm.own[i].eq(tile.sum) for i, tile in enumerate(self.tiles[s])]
            m.d.comb += [norm.other[i].eq(tile.sum) for i, tile in enumerate(others)]

    def _softmax(self) -> None:
        """Score registers and softmax."""
        m, scores, step = self.m, self.scores, self.step
        index = Signal.like(self.u.cmd.index, reset_less=True)
        m.d.sync += index.eq(self.u.cmd.index)
        m.d.comb += [
            scores.total.eq(self.norms[0].total),
            scores.mantissa.eq(self.norms[0].mantissa),
            scores.pair.eq(self.norms[0].pair),
            scores.write.eq(self.pending),
            scores.index.eq(index),
            scores.n.eq(self.u.cmd.n),
            scores.exponentials.eq(step["softmax"]),
            scores.weigh.eq(step["weigh"]),
            scores.follow.eq(Mux(step["weigh"], 0, self.candidate + 1)),
        ]

    def _outputs(self) -> None:
        """Quantiser, slots, and the ports of the KDA engine and the cache."""
        m, u = self.m, self.u
        cmd = u.cmd
        write = self.advance & self.last & self.is_flow
        frac = Mux(self.scaled | (cmd.src == Source.O), NRM.frac, Mux(cmd.src == Source.C, CTX.frac, VEC.frac))
        m.d.comb += [
            self.frac.eq(frac),
            u.k_we.eq(write & (cmd.out == layouts.Out.KDA_K)),
            u.q_we.eq(write & (cmd.out == layouts.Out.KDA_Q)),
            u.cache_we.eq(write & (cmd.out == layouts.Out.CACHE)),
            u.cache_layer.eq(cmd.layer),
        ]
        blocks = [self._quantised(s) for s in self.segments]
        for s, i, tile in self._each_tile():
            for k in range(TILE):
                lane = BLOCK * s + TILE * i + k
                m.d.comb += u.key[lane].eq(saturate(m, tile.z[k], KEY, name=f"key{lane}"))
                if s == 0:
                    short = round_shift(tile.z[k], NRM.frac - CACHE.frac)
                    m.d.comb += u.cache_latent[lane].eq(saturate(m, short, CACHE, name=f"latent{lane}"))
        for i in range(SLOTS):
            slot = Signal.like(Value.cast(u.slots[i]), name=f"slot{i}", reset_less=True)
            m.d.comb += Value.cast(u.slots[i]).eq(slot)
            for s, block in enumerate(blocks):
                with m.If(write & (cmd.out == layouts.Out.SLOTS) & (cmd.slot + s == i) & (cmd.segments > s)):
                    m.d.sync += slot.eq(block)

    def _quantised(self, s: int) -> Value:
        """The MX block of segment ``s`` as SLOT_FILE lays it out."""
        m, tiles = self.m, self.tiles[s]
        ored = Signal(VEC.width, name=f"ored{s}")
        either: Value = tiles[0].ored
        for tile in tiles[1:]:
            either = either | tile.ored
        m.d.comb += ored.eq(either)
        zeros = block_zeros(m, ored, f"segment{s}")
        m.d.comb += [tile.zeros.eq(zeros) for tile in tiles]
        scale = scale_code(m, ored, zeros, self.frac, f"segment{s}")
        return Cat(*(Value.cast(tile.codes) for tile in tiles), scale)
