// The MoE router: biased top-k, unbiased renormalised weights: golden/fixed/router.py.
#pragma once

#include <limits>

#include "functions.h"

namespace nanok3 {

class Router {
 public:
  Router(const Block& block, const Functions& functions, Int layers, Int experts, Int top_k)
      : f_(functions), factor_(block.value("router.factor")), experts_(experts),
        bias_(block.array("router.bias", layers * experts)), score_(experts), key_(experts), picked(top_k),
        weights(top_k) {}

  // Pick experts by SIG scores and a layer's biases; ties go to the lowest index, a score of 0 counts as one ulp.
  void route(Int layer, const Int* scores) {
    for (Int e = 0; e < experts_; ++e) {
      score_[e] = std::max<Int>(scores[e], 1);
      key_[e] = score_[e] + (bias_[layer * experts_ + e] << (SIG.frac - BIAS.frac));
    }
    Int sum = 0;
    for (Int& pick : picked) {
      pick = std::max_element(key_.begin(), key_.end()) - key_.begin();
      key_[pick] = std::numeric_limits<Int>::min();
      sum += score_[pick];
    }
    const Scaled inverse = f_.recip(sum);
    const Int shift = MANTISSA_FRAC + inverse.exponent - UNIT.frac;
    for (std::size_t i = 0; i < picked.size(); ++i)
      weights[i] = scaled_by_factor(round_shift(score_[picked[i]] * inverse.mantissa, shift));
  }

 private:
  // Times routed_scaling_factor; exact when that is 1.
  Int scaled_by_factor(Int weight) const { return round_shift(weight * factor_, ROUTER_FACTOR_FRAC); }

  const Functions& f_;
  const Int factor_, experts_;
  const Vector bias_;  // BIAS [layer][expert]
  Vector score_, key_;

 public:
  Vector picked, weights;  // [top_k], UNIT's fraction
};

}  // namespace nanok3
