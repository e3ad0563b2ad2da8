"""The matmul array: command sequencing, operand decoding, and the rows with their registers."""

from functools import reduce
from operator import or_

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data
from amaranth.lib.wiring import In, Out

from golden.fixed.mx import E8M0_BIAS
from golden.fixed.numbers import VEC
from hw.block import Block
from hw.layouts import (
    LANE_ADDR_BITS,
    PICKED,
    SLOT_FILE,
    WEIGHT_ADDR_BITS,
    ArrayCommand,
    Dest,
    Func,
    LoadBus,
    MxBlock,
    Space,
    registers,
    vector,
)
from hw.memory.sram import Sram
from hw.params import BLOCK, T_REGS, Params
from hw.timing import ArrayTiming
from hw.units.row import SHIFT_BASE, ArrayRow, Operand, RowControl

GROUP_BITS = 7
LOAD_BITS = 32
E4M3_ONE = 0x38
TIMING = ArrayTiming()
LATENCY = {
    func: TIMING.latency.of(func)
    for func in (Func.LINEAR, Func.EMBED, Func.HEAD, Func.GATE, Func.CONV, Func.SITU, Func.DECAY)
}
SLOW = (Func.GATE, Func.CONV, Func.SITU, Func.DECAY)


class Word(data.Struct):
    """A word on its way through the array; the issue cycle is stage 0."""

    valid: 1
    first: 1  # of its group
    last: 1
    end: 1  # last of its command
    func: Func
    dest: Dest
    group: GROUP_BITS  # HEAD: counted from 0; else lanes group * array_rows
    up: 1  # SITU: up branch
    lane_word: LANE_ADDR_BITS  # CONV, DECAY: lane-constant word


def decode_e4m3(m: Module, code: Value, name: str) -> tuple[Signal, Signal]:
    """(magnitude in units of 2**-9, three times it) of an E4M3 code (golden.fixed.mx.e4m3_units)."""
    mantissa, exponent = code[:3], code[3:7]
    normal = exponent.any()
    once, thrice = Signal(18, name=f"once_{name}"), Signal(20, name=f"thrice_{name}")
    significand = Cat(mantissa, normal)
    by = Mux(normal, exponent - 1, 0)[:4]
    m.d.comb += [once.eq(significand << by), thrice.eq((significand * 3) << by)]
    return once, thrice


class ArrayUnit(Block):
    """``array_rows`` rows of 32 multiply-accumulates with lane functions and the registers T0..T3 and P.

    Ports: see docs/chip.md; commands: hw.layouts.ArrayCommand.

    Latency (hw.timing.ArrayTiming): ``done`` is LATENCY[func] cycles after the cycle of the last word, the one in which
    its address is on ``weight_addr``, which is also that of ``take``. EMBED: one word, then one row group per cycle,
    ``done`` one cycle after the last, which is groups + 1 after the word.
    ``head_valid`` is 2 cycles after a HEAD group's last word.

    Throughput: one word per cycle, except that the last word of a group waits where two groups would meet (``_hold``):
    results are written in order and one group per cycle, so that a LINEAR group issues its last word at least 3 cycles
    after that of a CONV group; CONV groups are at least 2 cycles apart.

    Combinational paths: valid, cmd, head_ready, head_serial, expert, token -> weight_en, weight_addr, take. ``slots``
    are read in the word's cycle. ``first`` is sampled with the last word of a CONV group.
    Equals golden.fixed.mx.matvec and dequantise_row, and golden.fixed.lanes.
    """

    def __init__(self, p: Params) -> None:
        self.p = p
        self.consts = Sram(self.lane_words(p), p.lane_const_width, write_granularity=LOAD_BITS)
        self.history = Sram(self.history_words(p), p.history_width, bank_width=3 * VEC.width)  # a bank a row
        super().__init__(
            {
                "cmd": In(ArrayCommand),
                "valid": In(1),
                "take": Out(1),
                "done": Out(1),
                "weight_en": Out(1),
                "weight_addr": Out(WEIGHT_ADDR_BITS),
                "weight_data": In(p.weight_width),
                "slots": In(SLOT_FILE),
                "expert": In(PICKED),
                "token": In(p.token_bits),
                "first": In(1),
                "head_ready": In(1),
                "head_serial": In(1),
                "load": In(LoadBus),
                "t": Out(registers(p)),
                "prefix": Out(vector(p)),
                "head_valid": Out(1),
                "head_group": Out(GROUP_BITS),
                "head_logits": Out(data.ArrayLayout(signed(VEC.width), p.array_rows)),
            }
        )

    @staticmethod
    def lane_words(p: Params) -> int:
        """Words of the lane-constant memory: the CONV groups (q, k, v) of all KDA layers, then the DECAY groups."""
        return 4 * p.groups * p.kda_layers

    @staticmethod
    def history_words(p: Params) -> int:
        """Words of the conv-history memory: one for each lane-constant word of CONV."""
        return 3 * p.groups * p.kda_layers

    def body(self, platform: object) -> Module:
        m = Module()
        m.submodules.consts, m.submodules.history = self.consts, self.history
        stages = [Signal(Word, name=f"w{i}") for i in range(max(LATENCY.values()) + 1)]
        for before, after in zip(stages, stages[1:], strict=False):
            self._advance(m, before, after)
        self._issue(m, stages)
        self._outputs(m, stages)
        rows = self._rows(m, stages)
        self._lane_memories(m, stages, rows)
        return m

    @staticmethod
    def _advance(m: Module, before: Signal, after: Signal) -> None:
        """One pipeline register; only ``valid`` needs its reset."""
        for name in ("first", "last", "end", "func", "dest", "group", "up", "lane_word"):
            old, new = Value.cast(getattr(before, name)), Value.cast(getattr(after, name))
            m.d.sync += new.eq(old)
        m.d.sync += after.valid.eq(before.valid)

    def _issue(self, m: Module, stages: list[Signal]) -> None:
        """Stage 0: which word is issued, its address, when the command is taken."""
        p, cmd, w = self.p, self.cmd, stages[0]
        embed = cmd.func == Func.EMBED
        index, group, block = Signal(WEIGHT_ADDR_BITS), Signal(GROUP_BITS), Signal(2)
        fetched = Signal()  # EMBED: the word with the token's row is in the memory's output
        fetch, issue = Signal(), Signal()
        m.d.comb += [
            w.first.eq(embed | (block == 0)),
            w.last.eq(embed | (block == (cmd.blocks - 1)[:2])),
            w.end.eq(w.last & (group == Mux(embed, p.groups - 1, cmd.groups - 1)[:GROUP_BITS])),
            w.func.eq(cmd.func),
            w.dest.eq(Mux(embed, Dest.P, cmd.dest)),
            w.group.eq(Mux(embed, 0, cmd.group0) + Mux(cmd.func == Func.SITU, group >> 1, group)),
            w.up.eq(group[0]),
            w.lane_word.eq(cmd.constant + group),
            fetch.eq(self.valid & embed & ~fetched),
            issue.eq(self.valid & (fetched | ~embed) & ~self._hold(m, stages)),
            w.valid.eq(issue),
            self.take.eq(issue & w.end),
        ]
        with m.If(fetch):
            m.d.sync += fetched.eq(1)
        with m.If(issue):
            m.d.sync += [index.eq(index + 1), block.eq(block + 1)]
            with m.If(w.last):
                m.d.sync += [group.eq(group + 1), block.eq(0)]
            with m.If(w.end):
                m.d.sync += [index.eq(0), group.eq(0), fetched.eq(0)]

        tokens_per_word = p.array_rows // p.hidden_blocks
        picked = Mux(cmd.expert[1], self.expert[1], self.expert[0])
        offset = Mux(cmd.expert.any(), picked * p.expert_words, 0)
        m.d.comb += [
            self.weight_en.eq(fetch | (issue & ~embed)),
            self.weight_addr.eq(cmd.base + Mux(embed, self.token >> tokens_per_word.bit_length() - 1, offset + index)),
        ]
        self._operand(m, embed, group, block)

    def _hold(self, m: Module, stages: list[Signal]) -> Signal:
        """The word must wait: HEAD may not go on, or the last word of a group would meet an earlier group."""
        w0, w1, w2 = stages[:3]
        # completion is in order, one group a cycle (there is one write port): cycles until the latest one is done
        latency, pending = Signal(range(6)), Signal(range(5))
        with m.Switch(w0.func):
            for func, cycles in LATENCY.items():
                with m.Case(func):
                    m.d.comb += latency.eq(cycles)
        with m.If(w0.valid & w0.last):
            m.d.sync += pending.eq(latency - 1)
        with m.Elif(pending.any()):
            m.d.sync += pending.eq(pending - 1)

        def ended(w: Signal, *funcs: Func) -> Value:
            return w.valid & w.last & self._among(w, *funcs)

        def meets(name: str) -> Value:
            """The last word is of this function and would meet a group before it."""
            found = [
                ended(stages[h.distance], *(getattr(Func, f) for f in h.after))
                for h in TIMING.hazards
                if h.func == name
            ]
            return w0.last & self._among(w0, getattr(Func, name)) & reduce(or_, found)

        inside = (w1.valid & self._among(w1, Func.HEAD)) | (w2.valid & self._among(w2, Func.HEAD))
        hold: Value = w0.last & (latency <= pending)
        for name in dict.fromkeys(h.func for h in TIMING.hazards):
            hold = hold | meets(name)
        hold = hold | (self._among(w0, Func.HEAD) & w0.first & ~(self.head_ready & ~(self.head_serial & inside)))
        wait = Signal(name="hold")
        m.d.comb += wait.eq(hold)
        return wait

    @staticmethod
    def _among(w: Signal, *funcs: Func) -> Value:
        """The word's function is one of these."""
        found: Value = Const(0, 1)
        for func in funcs:
            found = found | (w.func == func)
        return found

    def _slow(self, w: Signal) -> Value:
        """The word's function uses the lane."""
        return self._among(w, *SLOW)

    def _operand(self, m: Module, embed: Value, group: Signal, block: Signal) -> None:
        """Stage 0 to 1: the slot of this word, decoded. EMBED: 1.0 in column 0, or 0 beyond hidden_size."""
        p = self.p
        self.operand = operand = Signal(Operand, reset_less=True)
        slot = Signal(MxBlock)
        m.d.comb += slot.eq(Array(self.slots[i] for i in range(len(self.slots)))[(self.cmd.slot + block)[:3]])
        present = group < p.model.hidden_size // p.array_rows
        for i in range(BLOCK):
            code = Mux(embed, Mux(present, E4M3_ONE, 0) if i == 0 else 0, slot.codes[i])
            wire = Signal(8, name=f"operand_{i}")
            m.d.comb += wire.eq(code)
            once, thrice = decode_e4m3(m, wire, str(i))
            m.d.sync += [operand.once[i].eq(once), operand.thrice[i].eq(thrice), operand.negative[i].eq(wire[7])]
        m.d.sync += operand.shift.eq(SHIFT_BASE - Mux(embed, E8M0_BIAS, slot.scale))

    def _element(self, m: Module, w: Signal) -> tuple[list[Signal], Signal]:
        """Stage 0 to 1: each row's E2M1 code, and the E8M0 code, of the embedding elements of group ``w.group`` in the
        word fetched before. Block b of the k-th token in a word is row k * hidden_blocks + b."""
        p = self.p
        blocks, rows = p.hidden_blocks, p.array_rows
        groups = p.model.hidden_size // rows
        group_bits = (groups - 1).bit_length()
        select = Cat(w.group[:group_bits], self.token[: (rows // blocks).bit_length() - 1])
        wires = [Signal(4, name=f"embed_code_next_{r}") for r in range(rows)]
        codes = [Signal(4, name=f"embed_code_{r}", reset_less=True) for r in range(rows)]
        scale = Signal(8, name="embed_scale", reset_less=True)
        with m.Switch(select):
            for token in range(rows // blocks):
                for group in range(groups):
                    column, source = group * rows % BLOCK, token * blocks + group * rows // BLOCK
                    with m.Case(group | token << group_bits):
                        for r, wire in enumerate(wires):
                            m.d.comb += wire.eq(self.weight_data.word_select(source * BLOCK + column + r, 4))
                        m.d.sync += scale.eq(self.weight_data[rows * BLOCK * 4 :].word_select(source, 8))
        m.d.sync += [code.eq(wire) for code, wire in zip(codes, wires, strict=True)]
        return codes, scale

    def _outputs(self, m: Module, stages: list[Signal]) -> None:
        """Completion and the head's port."""
        ends = [
            stages[cycles].valid & stages[cycles].end & self._among(stages[cycles], func)
            for func, cycles in LATENCY.items()
        ]
        w2 = stages[LATENCY[Func.HEAD]]
        m.d.comb += [
            self.done.eq(Cat(ends).any()),
            self.head_valid.eq(w2.valid & w2.last & self._among(w2, Func.HEAD)),
            self.head_group.eq(w2.group),
        ]

    def _row_control(self, m: Module, stages: list[Signal]) -> Signal:
        """The rows' control word; every bit comes from a register."""
        w0, w1, w2 = stages[:3]
        c = Signal(RowControl, name="control")
        ends = [w.valid & w.last for w in stages]

        def at(i: int, func: Func) -> Value:
            return ends[i] & (stages[i].func == func)

        conv = at(0, Func.CONV)
        with m.If(conv):
            m.d.sync += c.lane.clear.eq(self.first)
        m.d.sync += [
            c.valid.eq(w0.valid),
            c.first.eq(w0.first),
            c.last.eq(w0.last),
            c.embed.eq(w0.func == Func.EMBED),
            c.lane.conv1.eq(conv),
            c.lane.conv2.eq(at(1, Func.CONV)),
            c.lane.decay2.eq(at(1, Func.DECAY)),
            c.lane.up2.eq(at(1, Func.SITU) & w1.up),
            c.lane.conv3.eq(at(2, Func.CONV)),
            c.lane.up3.eq(at(2, Func.SITU) & w2.up),
            c.lane.situ3.eq(at(2, Func.SITU) & ~w2.up),
            c.lane.decay3.eq(at(2, Func.DECAY)),
            c.lane.decay4.eq(at(3, Func.DECAY)),
        ]
        return c

    def _write_control(self, m: Module, stages: list[Signal], c: Signal) -> tuple[Signal, Signal, Signal]:
        """Write enables of T and P and the group of P, for the write-back cycle."""
        p = self.p
        dest, group, write, slow = Signal(Dest), Signal(range(p.groups)), Signal(), Signal()
        # the word that is written in the next cycle; at most one
        for func, cycles in LATENCY.items():
            w = stages[cycles - 1]
            if func != Func.HEAD:
                with m.If(w.valid & w.last & self._among(w, func)):
                    result = w.up if func == Func.SITU else 1
                    m.d.comb += [dest.eq(w.dest), group.eq(w.group), write.eq(result), slow.eq(func in SLOW)]
        t_we = Signal(data.ArrayLayout(p.groups, T_REGS))
        p_we, p_read = Signal(p.groups), Signal(range(p.groups))
        chosen = Mux(write, 1 << group, 0)
        m.d.sync += [t_we[r].eq(Mux(dest == Dest(r), chosen, 0)) for r in range(T_REGS)]
        m.d.sync += [
            p_we.eq(Mux((dest == Dest.P) | (dest == Dest.P_ADD), chosen, 0)),
            p_read.eq(group),
            c.slow.eq(slow),
            c.add.eq(dest == Dest.P_ADD),
        ]
        return t_we, p_we, p_read

    def _rows(self, m: Module, stages: list[Signal]) -> list[ArrayRow]:
        """The rows and their wiring."""
        p = self.p
        control = self._row_control(m, stages)
        t_we, p_we, p_read = self._write_control(m, stages, control)
        codes, scale = self._element(m, stages[0])
        rows = [ArrayRow(p) for _ in range(p.array_rows)]
        for r, row in enumerate(rows):
            m.submodules[f"row_{r}"] = row
            m.d.comb += [
                Value.cast(row.codes).eq(self.weight_data.word_select(r, 4 * BLOCK)),
                row.scale.eq(self.weight_data[4 * BLOCK * p.array_rows :].word_select(r, 8)),
                row.x.eq(self.operand),
                row.embed_code.eq(codes[r]),
                row.embed_scale.eq(scale),
                row.control.eq(control),
                row.t_we.eq(t_we),
                row.p_we.eq(p_we),
                row.p_read.eq(p_read),
                Value.cast(row.consts).eq(self.consts.rdata.word_select(r, len(Value.cast(row.consts)))),
                Value.cast(row.history).eq(self.history.rdata.word_select(r, len(Value.cast(row.history)))),
                self.head_logits[r].eq(row.y),
            ]
            for group in range(p.groups):
                lane = group * p.array_rows + r
                m.d.comb += [self.t[reg][lane].eq(row.t[reg][group]) for reg in range(T_REGS)]
                m.d.comb += self.prefix[lane].eq(row.prefix[group])
        return rows

    def _lane_memories(self, m: Module, stages: list[Signal], rows: list[ArrayRow]) -> None:
        """Lane constants: read in stage 0 for CONV, in stage 1 for DECAY. History: read in stage 0, written in
        stage 3."""
        w0, w1, w3 = stages[0], stages[1], stages[3]
        load = self.load.valid & (self.load.space == Space.LANE)
        read_conv = w0.valid & w0.last & (w0.func == Func.CONV)
        read_decay = w1.valid & w1.last & (w1.func == Func.DECAY)
        write_back = w3.valid & w3.last & (w3.func == Func.CONV)
        consts, history = self.consts, self.history
        m.d.comb += [
            consts.en.eq(load | read_conv | read_decay),
            consts.we.eq(load),
            consts.wmask.eq(1 << self.load.part),
            consts.wdata.eq(self.load.data.replicate(consts.lanes)),
            consts.addr.eq(Mux(load, self.load.addr, Mux(read_decay, w1.lane_word, w0.lane_word))),
            history.en.eq(read_conv | write_back),
            history.we.eq(write_back),
            history.wdata.eq(Cat(row.history_next for row in rows)),
            history.addr.eq(Mux(write_back, w3.lane_word, w0.lane_word)),
        ]
