// The MLA engine: scores against the cached latent, softmax and context: golden/fixed/mla.py.
#pragma once

#include "vector.h"

namespace nanok3 {

class Mla {
 public:
  Mla(const Block& block, const Functions& functions, Int layers, Int heads, Int rope, Int positions)
      : f_(functions), factor_(block.value("mla.score_factor")), heads_(heads), rope_(rope), positions_(positions),
        cache_(layers * (HEAD + rope) * positions), query_(HEAD + rope), scores_(positions), e_(positions),
        context(heads * HEAD), mantissa(heads) {}

  // Entry of one position: latent NRM [32] and shared key VEC [rope].
  void store(Int layer, Int position, const Int* latent, const Int* key) {
    for (Int i = 0; i < HEAD; ++i) entry(layer, i)[position] = to_cache(latent[i], NRM.frac);
    for (Int i = 0; i < rope_; ++i) entry(layer, HEAD + i)[position] = to_cache(key[i], VEC.frac);
  }

  // Context CTX and 1/m mantissas over positions 0..seen-1; absorbed query VEC [heads * 32], rope part [heads * rope].
  void attend(Int layer, Int seen, const Int* absorbed, const Int* q_rope) {
    for (Int h = 0; h < heads_; ++h) {
      for (Int i = 0; i < HEAD; ++i) query_[i] = to_query(absorbed[h * HEAD + i]);
      for (Int i = 0; i < rope_; ++i) query_[HEAD + i] = to_query(q_rope[h * rope_ + i]);
      score(layer, seen);
      weigh(layer, seen, &context[h * HEAD], mantissa[h]);
    }
  }

 private:
  static_assert(CACHE.width <= 32);

  static std::int32_t to_cache(Int x, Int frac) {
    return static_cast<std::int32_t>(saturate(round_shift(x, frac - CACHE.frac), CACHE));
  }
  static Int to_query(Int x) { return saturate(round_shift(x, VEC.frac - QUERY.frac), QUERY); }

  // All positions of one element of a layer's entries: sums over positions and over elements both run along memory.
  std::int32_t* entry(Int layer, Int element) { return &cache_[(layer * (HEAD + rope_) + element) * positions_]; }

  void score(Int layer, Int seen) {
    std::fill(scores_.begin(), scores_.begin() + seen, 0);
    for (Int i = 0; i < HEAD + rope_; ++i) {
      const std::int32_t* cached = entry(layer, i);
      for (Int t = 0; t < seen; ++t) scores_[t] += query_[i] * cached[t];
    }
    for (Int t = 0; t < seen; ++t) {
      const Int dot = round_shift(scores_[t], QUERY.frac + CACHE.frac - SCORE.frac);
      scores_[t] = saturate(round_shift(dot * factor_, SCORE_FACTOR_FRAC), SCORE);
    }
  }

  void weigh(Int layer, Int seen, Int* out, Int& inverse) {
    const Scaled sum = exponentials(f_, scores_.data(), seen, e_.data());
    inverse = sum.mantissa;
    for (Int i = 0; i < HEAD; ++i) {
      const std::int32_t* cached = entry(layer, i);
      Int total = 0;
      for (Int t = 0; t < seen; ++t) total += e_[t] * cached[t];
      out[i] = saturate(round_shift(total, CACHE.frac - CTX.frac + sum.exponent), CTX);
    }
  }

  const Functions& f_;
  const Int factor_, heads_, rope_, positions_;
  std::vector<std::int32_t> cache_;  // [layer][element][position]
  Vector query_, scores_, e_;

 public:
  Vector context, mantissa;  // CTX [heads * 32]; [heads], MANTISSA_FRAC fraction bits
};

}  // namespace nanok3
