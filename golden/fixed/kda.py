"""KDA state engine: decay, delta rule and read-out in one read pass and one write pass.

The read-out uses the identity  q S_new = q (alpha S) + (q . beta k) u,  so both
products k.(alpha S) and q.(alpha S) come from the same pass over the old state
and the state is written afterwards, off the critical path.

q is used at unit length: the factor head_dim^-0.5 of the model only scales o, and the
head norm that follows removes it when its eps is multiplied by head_dim (exactly).
"""

from __future__ import annotations

from dataclasses import dataclass

from golden.fixed.numbers import KEY, NRM, READ, STATE, UNIT, VEC, Ints, round_shift, saturate


@dataclass
class KdaResult:
    """New state [..., keys, values] STATE, correction u [..., values] VEC, read-out o [..., values] NRM."""

    state: Ints
    u: Ints
    o: Ints


def state_update(state: Ints, k: Ints, q: Ints, v: Ints, alpha: Ints, beta: Ints) -> KdaResult:
    """One token of one head: state [..., keys, values] STATE, k q [..., keys] KEY, v [..., values] VEC,
    alpha [..., keys] UNIT, beta [...] UNIT."""
    decayed = alpha[..., None] * state  # 16 more fraction bits than STATE
    seen = saturate(round_shift(decayed, UNIT.frac + STATE.frac - READ.frac), READ)
    ks = (k[..., None] * seen).sum(axis=-2)
    qs = (q[..., None] * seen).sum(axis=-2)
    u = saturate(v - round_shift(ks, KEY.frac + READ.frac - VEC.frac), VEC)
    qk = round_shift((q * k).sum(axis=-1), KEY.frac)  # KEY's fraction, 20 bits
    beta_qk = round_shift(beta * qk, UNIT.frac)
    own = (beta_qk[..., None] * u) << (READ.frac - VEC.frac)
    o = saturate(round_shift(qs + own, KEY.frac + READ.frac - NRM.frac), NRM)
    beta_k = round_shift(beta[..., None] * k, UNIT.frac)
    added = (beta_k[..., None] * u[..., None, :]) << (UNIT.frac + STATE.frac - KEY.frac - VEC.frac)
    return KdaResult(saturate(round_shift(decayed + added, UNIT.frac), STATE), u, o)
