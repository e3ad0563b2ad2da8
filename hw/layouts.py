"""Every payload of the chip in one place: commands of the units and the load bus.

A command stays on its wires, stable, from ``valid`` until the unit's ``take``
(see docs/chip.md).  Widths that depend on the preset are functions of Params.
"""

from amaranth.lib import data, enum

from golden.fixed.numbers import VEC
from hw.params import SLOTS, T_REGS, Params

WEIGHT_ADDR_BITS = 11
VECTOR_ADDR_BITS = 8
LANE_ADDR_BITS = 8
SLOT_BITS = (SLOTS - 1).bit_length()
REG_BITS = (T_REGS - 1).bit_length()


class Func(enum.Enum, shape=3):
    """What an array row does with its sum; the last two are not matmuls into registers."""

    LINEAR = 0  # VEC as it is
    GATE = 1  # sigmoid -> SIG
    CONV = 2  # 4-tap conv over the row's history, then SiLU -> VEC
    SITU = 3  # groups alternate gate, up; one result per pair -> VEC
    DECAY = 4  # KDA decay alpha -> UNIT
    EMBED = 5  # look up the embedding row of the current token, write P
    HEAD = 6  # VEC to the argmax (and logits stream), no register


class Dest(enum.Enum, shape=3):
    """Where an array result goes."""

    T0 = 0
    T1 = 1
    T2 = 2
    T3 = 3
    P = 4  # running prefix: overwrite
    P_ADD = 5  # running prefix: saturating add


class ArrayCommand(data.Struct):
    """``groups`` row groups of ``blocks`` words each, from weight word ``base`` on, group by group.

    Word g * blocks + b multiplies MX slot ``slot + b``.  Row group g lands in lanes
    (group0 + g) * array_rows of ``dest`` (SITU: pair g // 2).  ``constant`` is the first
    lane-constant word (CONV, DECAY: one per group); CONV's history has the same index.
    ``expert`` 1 or 2 adds the first or second picked expert * expert_words to base.
    """

    base: WEIGHT_ADDR_BITS
    groups: 7  # number of row groups
    blocks: 3  # 1 to 4
    slot: SLOT_BITS
    func: Func
    dest: Dest
    group0: 3
    constant: LANE_ADDR_BITS
    expert: 2


class Source(enum.Enum, shape=3):
    """Operand of the vector unit."""

    T0 = 0
    T1 = 1
    T2 = 2
    T3 = 3
    P = 4  # running prefix
    O = 5  # KDA read-out (NRM)  # noqa: E741
    C = 6  # MLA context (CTX) and its per-head 1/m
    MIX = 7  # weighted sum of candidates (see Combine)


class Combine(enum.Enum, shape=1):
    """Candidates and weights of a weighted sum."""

    RESIDUAL = 0  # snapshots 0..n-2 and P, softmax of the stored scores
    EXPERTS = 1  # T0..T(n-1), the router's weights


class Norm(enum.Enum, shape=2):
    """Normalisation step."""

    NONE = 0
    RMS = 1  # over the vector or per 32-wide segment
    L2 = 2  # per 32-wide segment, sum in place of mean, result KEY (17 fraction bits) in one rounding
    DIVIDE = 3  # by the MLA softmax sum (source C)


class VectorOp(enum.Enum, shape=2):
    """Kinds of vector command."""

    SNAP = 0  # snapshot[index] := P
    SCORE = 1  # score[index] := score of (snapshot[index], or P when src is P) with constant word ``constant``
    FLOW = 2  # source -> [norm] -> [weight] -> [gate] -> out


class Out(enum.Enum, shape=2):
    """Where a FLOW ends."""

    SLOTS = 0  # MX quantiser -> operand slots slot.. (one per segment)
    KDA_K = 1  # KEY -> the KDA engine's k
    KDA_Q = 2  # KEY -> the KDA engine's q
    CACHE = 3  # segment 0 -> CACHE entry of this position, with k_r from T3


class Eps(enum.Enum, shape=2):
    """Which epsilon a norm adds: config's rms_norm_eps, mla_norm_eps, l2_norm_eps, rms_norm_eps * head_dim."""

    RMS = 0
    MLA = 1
    L2 = 2
    HEAD = 3  # KDA's head norm: its input comes without q's head_dim^-0.5


class VectorCommand(data.Struct):
    """One vector operation; fields a kind does not use are 0."""

    op: VectorOp
    index: 3  # SNAP, SCORE: which snapshot / score
    src: Source
    combine: Combine
    n: 3  # candidates of a weighted sum
    norm: Norm
    whole: 1  # norm over all segments (hidden state) rather than per segment
    eps: Eps
    weight: 1  # multiply by constant word ``constant``
    weight_frac: 5  # fraction bits of that constant (CONST 12, ROWSCALE 14)
    gate: 1  # multiply by the SIG vector in T(gate_reg)
    gate_reg: REG_BITS
    out: Out
    slot: SLOT_BITS
    segments: 2  # how many segments are written: 1 or 2
    layer: 3  # CACHE: which MLA layer
    constant: VECTOR_ADDR_BITS


class KdaOp(enum.Enum, shape=2):
    """Commands of the KDA engine."""

    SCAN = 0  # pass over the state: needs k, q (KDA_K, KDA_Q) and alpha in T3
    READ = 1  # u and o from v in T1 and beta in T0[0..heads-1]
    WRITE = 2  # second pass: new state to memory


class KdaCommand(data.Struct):
    """One step of the KDA engine for KDA layer ``layer`` (counted among KDA layers)."""

    op: KdaOp
    layer: 3


class MlaCommand(data.Struct):
    """Attention of MLA layer ``layer`` (counted among MLA layers) over positions 0..position."""

    layer: 3


class RouterCommand(data.Struct):
    """Route with the biases of MoE layer ``layer`` (counted among MoE layers) the scores in T0."""

    layer: 3


class Space(enum.Enum, shape=2):
    """Memories the image loader writes."""

    WEIGHTS = 0
    VECTOR = 1  # vector constants: one 16-bit constant per lane
    LANE = 2  # lane constants: LANE_CONSTS 16-bit constants per array row
    ROUTER = 3  # router biases: one word of num_experts 16-bit constants per MoE layer


class LoadBus(data.Struct):
    """One 32-bit piece of the image: bits 32 * part .. of word ``addr`` of a memory; never back-pressured."""

    valid: 1
    space: Space
    addr: WEIGHT_ADDR_BITS
    part: 8
    data: 32


def vector(p: Params, width: int = VEC.width) -> data.ArrayLayout:
    """A vector register: ``lanes`` raw words."""
    return data.ArrayLayout(width, p.lanes)


class MxBlock(data.Struct):
    """One MXFP8 operand block: E4M3 codes and the E8M0 scale code."""

    codes: data.ArrayLayout(8, 32)  # type: ignore[valid-type]
    scale: 8


EXPERT_BITS = 5
EXPERT_WEIGHT_BITS = 19  # UNIT's fraction, up to 2 * routed_scaling_factor
MANTISSA_BITS = 19  # of recip and rsqrt, 18 fraction bits
SLOT_FILE = data.ArrayLayout(MxBlock, SLOTS)
PICKED = data.ArrayLayout(EXPERT_BITS, 2)
PICKED_WEIGHTS = data.ArrayLayout(EXPERT_WEIGHT_BITS, 2)


def registers(p: Params) -> data.ArrayLayout:
    """All T registers."""
    return data.ArrayLayout(vector(p), T_REGS)
