// MX arithmetic: the quantiser, the exact block dot product and its scales: golden/fixed/mx.py.
#pragma once

#include <array>

#include "block.h"
#include "generated.h"

namespace nanok3 {

constexpr int STRIP = 8;  // array rows whose sums one SIMD register holds; every number of rows is a multiple

// One MXFP8 block: elements in units of 2**-9 (they fit 19 bits) and the E8M0 code.
struct MxBlock {
  std::array<std::int32_t, BLOCK> units;
  Int scale;
};

// The E4M3 quantiser of one block; code values come from the block's table.
class Quantiser {
 public:
  explicit Quantiser(const Block& block) : units_(block.array("mx.e4m3_units", 256)) {}

  // Integers of `format` [32] to MXFP8: scale rule "floor", round to nearest even, magnitudes above 448 saturate.
  MxBlock operator()(const Int* x, const Fixed& format) const {
    Int amax = 0;
    for (int i = 0; i < BLOCK; ++i) amax = std::max(amax, std::abs(x[i]));
    const Int top = floor_log2(std::max<Int>(amax, 1));
    MxBlock result;
    result.scale = amax == 0 ? E8M0_BIAS : top - format.frac - 8 + E8M0_BIAS;
    for (int i = 0; i < BLOCK; ++i) {
      const Int magnitude = code(std::abs(x[i]), top);
      result.units[i] = static_cast<std::int32_t>(units_[x[i] < 0 ? magnitude | 128 : magnitude]);
    }
    return result;
  }

 private:
  // E4M3 magnitude code of `a` in a block whose largest magnitude has its leading one at bit `top`.
  static Int code(Int a, Int top) {
    const Int subnormal = top - 17;  // bits below the subnormals' step
    const Int drop = std::max(floor_log2(std::max<Int>(a, 1)) - 3, subnormal);
    const Int shift = std::max<Int>(drop, 0);
    const Int kept = (a << std::max<Int>(-drop, 0)) >> shift;
    const Int rest = a & ((Int{1} << shift) - 1), half = (Int{1} << shift) >> 1;
    const Int up = (rest > half) | ((rest == half) & (shift > 0) & ((kept & 1) == 1));
    return a == 0 ? 0 : std::min<Int>(((drop - subnormal) << 3) + kept + up, 126);
  }

  const Vector units_;
};

// A value in units of 2**-frac times 2**exponent as VEC.
inline Int scaled(Int value, Int frac, Int exponent) {
  const Int shift = std::min<Int>(std::max<Int>(frac - VEC.frac - exponent, -24), 31);
  return saturate(round_shift(value, shift), VEC);
}

// Weight words: per word `rows` blocks of 32 E2M1 elements in halves, and their E8M0 codes.
class Weights {
 public:
  Weights(const Block& block, Int rows)
      : rows_(rows), words_(block.value("weights.words")), scale_(block.array("weights.scale", words_ * rows)) {
    if (rows % STRIP) throw std::invalid_argument("array_rows must be a multiple of " + std::to_string(STRIP));
    const Vector& halves = block.array("weights.halves", words_ * rows * BLOCK);  // [word][row][column]
    halves_.resize(halves.size());
    for (Int block_row = 0; block_row < words_ * rows; ++block_row)
      for (Int column = 0; column < BLOCK; ++column)
        halves_[place(block_row, column)] = static_cast<std::int16_t>(halves[block_row * BLOCK + column]);
  }

  Int words() const { return words_; }

  // One row group: `blocks` words from `word` on times x; each block is rounded to VEC, their sum saturates.  y [rows].
  void multiply(Int word, Int blocks, const MxBlock* x, Int* y) const {
    for (Int first = 0; first < rows_; first += STRIP) {
      Int sum[STRIP] = {};
      for (Int b = 0; b < blocks; ++b) {
        const Int block_row = (word + b) * rows_ + first;
        const Sums dots = block_dots(&halves_[block_row * BLOCK], x[b].units.data());
        for (int r = 0; r < STRIP; ++r)
          sum[r] += scaled(dots[r], DOT_FRAC, scale_[block_row + r] + x[b].scale - 2 * E8M0_BIAS);
      }
      for (int r = 0; r < STRIP; ++r) y[first + r] = saturate(sum[r], VEC);
    }
  }

  // One array row's block of a word as VEC [32] (the embedding look-up).
  void dequantise(Int word, Int row, Int* y) const {
    const Int block_row = word * rows_ + row;
    for (Int c = 0; c < BLOCK; ++c) y[c] = scaled(halves_[place(block_row, c)], 1, scale_[block_row] - E8M0_BIAS);
  }

 private:
  using Sums = std::int32_t __attribute__((vector_size(4 * STRIP)));
  using Halves = std::int16_t __attribute__((vector_size(2 * STRIP)));

  // The rows of a strip lie side by side, column after column, so that dot products need no sum across a register;
  // 16 bits each, which g++ widens in one instruction.
  static Int place(Int block_row, Int column) {
    return block_row / STRIP * STRIP * BLOCK + column * STRIP + block_row % STRIP;
  }

  // Exact sums of one strip's 32 products, unit 2**-10; they fit 28 bits.
  static Sums block_dots(const std::int16_t* halves, const std::int32_t* x) {
    Sums sums = {};
    for (int c = 0; c < BLOCK; ++c) {
      Halves column;
      std::memcpy(&column, halves + c * STRIP, sizeof column);
      sums += __builtin_convertvector(column, Sums) * x[c];
    }
    return sums;
  }

  const Int rows_, words_;
  const Vector scale_;
  std::vector<std::int16_t> halves_;
};

}  // namespace nanok3
