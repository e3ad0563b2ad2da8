// Scalar functions as piecewise quadratics: golden/fixed/functions.py.  The tables are golden's, from the block.
#pragma once

#include <array>
#include <cstdlib>

#include "block.h"
#include "generated.h"

namespace nanok3 {

// c0 + c1 u + c2 u^2 on a segment, u = dx * 2**-dx_bits; coefficients have GUARD bits below the output.
struct Quadratic {
  std::vector<std::array<Int, 3>> table;
  Int dx_bits, out_frac;

  Quadratic(const Block& block, const std::string& name)
      : dx_bits(block.value(name + ".dx_bits")), out_frac(block.value(name + ".out_frac")) {
    const Vector& flat = block.array(name + ".table");
    for (std::size_t i = 0; i + 2 < flat.size(); i += 3) table.push_back({flat[i], flat[i + 1], flat[i + 2]});
  }

  Int segments() const { return static_cast<Int>(table.size()); }
  Int rest(Int x) const { return x & ((Int{1} << dx_bits) - 1); }

  Int operator()(Int index, Int dx) const {
    const std::array<Int, 3>& c = table[index];
    const Int slope = c[1] + round_shift(c[2] * dx, dx_bits);
    return round_shift(c[0] + round_shift(slope * dx, dx_bits), GUARD);
  }
};

// mantissa * 2**-(MANTISSA_FRAC + exponent).
struct Scaled {
  Int mantissa, exponent;
};
constexpr Int MANTISSA_FRAC = 18;

class Functions {
 public:
  explicit Functions(const Block& block)
      : sigmoid_(block, "sigmoid"), exp2_(block, "exp2"), rsqrt_(block, "rsqrt"), recip_(block, "recip") {
    const Vector& flat = block.array("sigmoid.regions");  // start, first segment, log2 of a segment's width
    for (std::size_t i = 0; i + 2 < flat.size(); i += 3) regions_.push_back({flat[i], flat[i + 1], flat[i + 2]});
    const Region& last = regions_.back();
    sigmoid_end_ = last.start + ((sigmoid_.segments() - last.first) << last.shift);
  }

  // sigmoid of x (SIGMOID_IN_FRAC fraction bits) as SIG; exactly 0 or 1 beyond the table.
  Int sigmoid(Int x) const {
    constexpr Int one = Int{1} << SIG.frac;
    const Int a = std::abs(x), inside = std::min(a, sigmoid_end_ - 1);
    Region region = regions_[0];
    for (std::size_t i = 1; i < regions_.size(); ++i) region = inside >= regions_[i].start ? regions_[i] : region;
    const Int at = inside - region.start, index = region.first + (at >> region.shift);
    const Int dx = (at & ((Int{1} << region.shift) - 1)) << (sigmoid_.dx_bits - region.shift);
    const Int y = a >= sigmoid_end_ ? one : std::min(sigmoid_(index, dx), one);
    return x < 0 ? one - y : y;
  }

  // 2**-t of t >= 0 (EXP2_IN_FRAC fraction bits) as UNIT.
  Int exp2_neg(Int t) const {
    const Int whole = std::min<Int>(t >> EXP2_IN_FRAC, 32);
    const Int y = exp2_((t >> exp2_.dx_bits) & (exp2_.segments() - 1), exp2_.rest(t));
    return round_shift(y, whole + exp2_.out_frac - UNIT.frac);
  }

  // 1/sqrt(v * 2**-frac) of v >= 1: v * 2**-frac = m * 4**k with m in [1, 4); k is the exponent.
  Scaled rsqrt(Int v, Int frac) const {
    const Int k = (floor_log2(v) - frac) >> 1;
    const Int m = truncated(v, 2 * k + frac - MANTISSA_FRAC);
    return {from_one(rsqrt_, m), k};
  }

  // 1/v of v >= 1; the exponent is floor(log2 v).
  Scaled recip(Int v) const {
    const Int p = floor_log2(v);
    return {from_one(recip_, truncated(v, p - MANTISSA_FRAC)), p};
  }

 private:
  struct Region {
    Int start, first, shift;
  };

  static Int truncated(Int v, Int shift) {
    return (v << std::max<Int>(-shift, 0)) >> std::max<Int>(shift, 0);
  }

  // A table whose first segment starts at m = 1, m with MANTISSA_FRAC fraction bits.
  static Int from_one(const Quadratic& f, Int m) {
    return f((m >> f.dx_bits) - (Int{1} << (MANTISSA_FRAC - f.dx_bits)), f.rest(m));
  }

  Quadratic sigmoid_, exp2_, rsqrt_, recip_;
  std::vector<Region> regions_;
  Int sigmoid_end_;
};

}  // namespace nanok3
