// Norms, residual-mix scores, softmax over candidates and weighted sums: golden/fixed/vector.py.
#pragma once

#include <cmath>

#include "functions.h"

namespace nanok3 {

// rsqrt of (sum or mean of x^2) + eps over n values with `frac` fraction bits; n is a power of two.
inline Scaled inverse_norm(const Functions& f, const Int* x, Int n, Int frac, double eps, bool mean) {
  Int sum = 0;
  for (Int i = 0; i < n; ++i) sum += x[i] * x[i];
  const double units = std::floor(eps * static_cast<double>(mean ? n : 1) * std::ldexp(1.0, 2 * frac) + 0.5);
  return f.rsqrt(sum + std::max<Int>(1, static_cast<Int>(units)), 2 * frac + (mean ? floor_log2(n) : 0));
}

// x / sqrt(mean(x^2) + eps), or of the sum (L2), as `out`, in place.
inline void normalise(const Functions& f, Int* x, Int n, Int frac, double eps, bool mean, const Fixed& out) {
  const Scaled root = inverse_norm(f, x, n, frac, eps, mean);
  const Int shift = frac + MANTISSA_FRAC - out.frac + root.exponent;
  for (Int i = 0; i < n; ++i) x[i] = saturate(round_shift(x[i] * root.mantissa, shift), out);
}

// x * weight elementwise as NRM, in place; `frac`: fraction bits of the product.
inline void scale(Int* x, const Int* weight, Int n, Int frac) {
  for (Int i = 0; i < n; ++i) x[i] = saturate(round_shift(x[i] * weight[i], frac - NRM.frac), NRM);
}

// Residual-mix score of VEC v [n] as SCORE; the projection is CONST and holds p * w * log2(e).
inline Int mix_score(const Functions& f, const Int* v, const Int* projection, Int n, double eps) {
  constexpr Int DROPPED = 6;  // bits of the dot product that its 40 bits leave out
  const Scaled root = inverse_norm(f, v, n, VEC.frac, eps, true);
  Int dot = 0;
  for (Int i = 0; i < n; ++i) dot += v[i] * projection[i];
  const Int shift = VEC.frac + CONST.frac - DROPPED + MANTISSA_FRAC - SCORE.frac + root.exponent;
  return saturate(round_shift(round_shift(dot, DROPPED) * root.mantissa, shift), SCORE);
}

// exp2 of (score - largest score) as UNIT, and the sum's reciprocal.
inline Scaled exponentials(const Functions& f, const Int* scores, Int n, Int* e) {
  Int largest = scores[0], sum = 0;
  for (Int i = 1; i < n; ++i) largest = std::max(largest, scores[i]);
  for (Int i = 0; i < n; ++i) e[i] = f.exp2_neg((largest - scores[i]) << (EXP2_IN_FRAC - SCORE.frac));
  for (Int i = 0; i < n; ++i) sum += e[i];
  return f.recip(sum);
}

// Softmax weights UNIT of n SCOREs.
inline void softmax_weights(const Functions& f, const Int* scores, Int n, Int* weights) {
  const Scaled inverse = exponentials(f, scores, n, weights);
  const Int shift = MANTISSA_FRAC + inverse.exponent - UNIT.frac;
  for (Int i = 0; i < n; ++i) weights[i] = round_shift(weights[i] * inverse.mantissa, shift);
}

// sum_i w_i v_i of VEC vectors with UNIT weights: exact sum, one rounding, VEC [width].
inline void weighted_sum(const Int* weights, const std::vector<const Int*>& vectors, Int width, Int* out) {
  std::fill(out, out + width, 0);
  for (std::size_t i = 0; i < vectors.size(); ++i)
    for (Int j = 0; j < width; ++j) out[j] += weights[i] * vectors[i][j];
  for (Int j = 0; j < width; ++j) out[j] = saturate(round_shift(out[j], UNIT.frac), VEC);
}

}  // namespace nanok3
