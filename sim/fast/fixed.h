// Integers and the three operations that everything is built from: golden/fixed/numbers.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace nanok3 {

using Int = std::int64_t;
using Vector = std::vector<Int>;

// A fixed-point format: value = integer * 2**-frac, `width` bits in all.
struct Fixed {
  int width, frac;
  bool is_signed;

  constexpr Int max() const { return (Int{1} << (is_signed ? width - 1 : width)) - 1; }
  constexpr Int min() const { return is_signed ? -(Int{1} << (width - 1)) : 0; }
};

// x * 2**-shift rounded half-up; a negative shift is an exact left shift.  |shift| < 62; branch-free, so that loops
// over elements with shifts of their own vectorise.
inline Int round_shift(Int x, Int shift) {
  const Int right = std::max<Int>(shift, 0), left = std::max<Int>(-shift, 0);
  const Int half = (Int{1} << right) >> 1;
  return ((x + half) >> right) << left;
}

inline Int saturate(Int x, const Fixed& format) { return std::min(std::max(x, format.min()), format.max()); }

// floor(log2 x) of x >= 1.
inline Int floor_log2(Int x) { return 63 - __builtin_clzll(static_cast<unsigned long long>(x)); }

}  // namespace nanok3
