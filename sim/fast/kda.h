// The KDA state engine in the chip's three steps: golden/fixed/kda.py.
#pragma once

#include "generated.h"

namespace nanok3 {

class Kda {
 public:
  Kda(Int layers, Int heads)
      : heads_(heads), state_(layers * heads * HEAD * HEAD), alpha_(heads * HEAD), ks_(heads * HEAD),
        qs_(heads * HEAD), u_(heads * HEAD), beta_(heads), k(heads * HEAD), q(heads * HEAD) {}

  void reset() { std::fill(state_.begin(), state_.end(), 0); }

  // Sums k.(alpha S) and q.(alpha S) over the keys; alpha UNIT [heads * keys].
  void scan(Int layer, const Int* alpha) {
    std::copy(alpha, alpha + heads_ * HEAD, alpha_.begin());
    std::fill(ks_.begin(), ks_.end(), 0);
    std::fill(qs_.begin(), qs_.end(), 0);
    for (Int row = 0; row < heads_ * HEAD; ++row) {  // a head's key
      const Int* state = &state_[(layer * heads_ * HEAD + row) * HEAD];
      Int *ks = &ks_[row / HEAD * HEAD], *qs = &qs_[row / HEAD * HEAD];
      for (Int i = 0; i < HEAD; ++i) {
        const Int seen = saturate(round_shift(alpha_[row] * state[i], UNIT.frac + STATE.frac - READ.frac), READ);
        ks[i] += k[row] * seen;
        qs[i] += q[row] * seen;
      }
    }
  }

  // Correction u and read-out o (NRM) from v VEC [heads * values] and beta SIG [heads].
  void read(const Int* v, const Int* beta, Int* o) {
    for (Int h = 0; h < heads_; ++h) {
      beta_[h] = round_shift(beta[h], SIG.frac - UNIT.frac);
      Int qk = 0;
      for (Int i = h * HEAD; i < (h + 1) * HEAD; ++i) qk += q[i] * k[i];
      const Int beta_qk = round_shift(beta_[h] * round_shift(qk, KEY.frac), UNIT.frac);
      for (Int i = h * HEAD; i < (h + 1) * HEAD; ++i) {
        u_[i] = saturate(v[i] - round_shift(ks_[i], KEY.frac + READ.frac - VEC.frac), VEC);
        const Int own = (beta_qk * u_[i]) << (READ.frac - VEC.frac);
        o[i] = saturate(round_shift(qs_[i] + own, KEY.frac + READ.frac - NRM.frac), NRM);
      }
    }
  }

  // The new state: alpha S + beta k u.
  void write(Int layer) {
    for (Int row = 0; row < heads_ * HEAD; ++row) {
      Int* state = &state_[(layer * heads_ * HEAD + row) * HEAD];
      const Int* u = &u_[row / HEAD * HEAD];
      const Int beta_k = round_shift(beta_[row / HEAD] * k[row], UNIT.frac);
      for (Int i = 0; i < HEAD; ++i) {
        const Int added = (beta_k * u[i]) << (UNIT.frac + STATE.frac - KEY.frac - VEC.frac);
        state[i] = saturate(round_shift(alpha_[row] * state[i] + added, UNIT.frac), STATE);
      }
    }
  }

 private:
  const Int heads_;
  Vector state_, alpha_, ks_, qs_, u_, beta_;  // state [layer][head][key][value]

 public:
  Vector k, q;  // KEY [heads * keys]
};

}  // namespace nanok3
