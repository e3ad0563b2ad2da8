// What an array row does with its sum before it is written back: golden/fixed/lanes.py.
#pragma once

#include "functions.h"

namespace nanok3 {

class Lanes {
 public:
  Lanes(const Block& block, const Functions& functions)
      : f_(functions),
        linear_beta_(block.value("situ.linear_beta")),
        tanh_factor_(block.value("situ.tanh_factor")),
        decay_factor_(block.value("decay.factor")) {}

  // sigmoid of VEC as SIG.
  Int gate(Int x) const { return f_.sigmoid(x * 2); }

  // x sigmoid(x) of VEC as VEC.
  Int silu(Int x) const { return round_shift(x * gate(x), SIG.frac); }

  // SiTU-GLU of VEC g and u as VEC; beta is 4.
  Int situ(Int g, Int u) const {
    const Int tanh_g = 2 * f_.sigmoid(g) - ONE;  // g read with one more fraction bit is g/2 = 2 (g/4)
    const Int phi = round_shift(tanh_g * gate(g), 2 * SIG.frac - 2 - PHI_FRAC);
    return round_shift(phi * situ_linear(u), 2 * PHI_FRAC - VEC.frac);
  }

  // KDA decay of VEC f as UNIT; bias DTB, rate RATE.
  Int decay(Int f, Int bias, Int rate) const {
    const Int z = saturate(round_shift((f + (bias << (VEC.frac - DTB.frac))) * rate, RATE.frac), VEC);
    return f_.exp2_neg(round_shift(gate(z) * decay_factor_, SIG.frac));
  }

  // Depthwise convolution: three older VEC values, oldest first, the newest, and taps CONST in the same order.
  static Int conv(const Int* past, Int x, const Int* taps) {
    const Int sum = past[0] * taps[0] + past[1] * taps[1] + past[2] * taps[2] + x * taps[3];
    return saturate(round_shift(sum, CONST.frac), VEC);
  }

 private:
  static constexpr Int ONE = Int{1} << SIG.frac;
  static constexpr Int PHI_FRAC = 16;  // fraction bits of both factors of SiTU's product

  // linear_beta tanh(u / linear_beta) of VEC with PHI_FRAC fraction bits.
  Int situ_linear(Int u) const {
    const Int tanh_u = 2 * f_.sigmoid(round_shift(u * tanh_factor_, TANH_SCALE_FRAC - 1)) - ONE;
    return round_shift(linear_beta_ * tanh_u, SIG.frac - PHI_FRAC);
  }

  const Functions& f_;
  const Int linear_beta_, tanh_factor_, decay_factor_;
};

}  // namespace nanok3
