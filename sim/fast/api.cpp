// The C interface that sim/fast/machine.py binds.  Nothing here throws into Python: errors come back as text.

#include <cstdio>

#include "chip.h"

using nanok3::Block;
using nanok3::Chip;
using nanok3::Int;

extern "C" {

// A chip from `count` named arrays, or null with a reason in `error`.
Chip* nanok3_new(const char* const* names, const Int* const* data, const std::size_t* sizes, std::size_t count,
                 char* error, std::size_t error_size) {
  try {
    Block block;
    for (std::size_t i = 0; i < count; ++i) block.put(names[i], data[i], sizes[i]);
    return new Chip(block);
  } catch (const std::exception& problem) {
    std::snprintf(error, error_size, "%s", problem.what());
    return nullptr;
  }
}

void nanok3_free(Chip* chip) { delete chip; }

void nanok3_reset(Chip* chip) { chip->reset(); }

Int nanok3_position(const Chip* chip) { return chip->position(); }

void nanok3_logits(const Chip* chip, Int* out) { std::copy(chip->logits().begin(), chip->logits().end(), out); }

// Take `count` given tokens (at least one), logits for the last only; returns the best next token.
Int nanok3_feed(Chip* chip, const Int* tokens, Int count) {
  for (Int i = 0; i + 1 < count; ++i) chip->step(tokens[i], false);
  chip->step(tokens[count - 1], true);
  return chip->best();
}

// Decode greedily: feed `token`, then each token that comes out but the last of `count`.
void nanok3_decode(Chip* chip, Int token, Int count, Int* out) {
  for (Int i = 0; i < count; ++i) {
    chip->step(token, true);
    out[i] = token = chip->best();
  }
}

// --- single functions, for tests ---

void nanok3_sigmoid(const Chip* chip, const Int* x, Int count, Int* y) {
  for (Int i = 0; i < count; ++i) y[i] = chip->functions().sigmoid(x[i]);
}

void nanok3_exp2_neg(const Chip* chip, const Int* t, Int count, Int* y) {
  for (Int i = 0; i < count; ++i) y[i] = chip->functions().exp2_neg(t[i]);
}

void nanok3_recip(const Chip* chip, const Int* v, Int count, Int* mantissa, Int* exponent) {
  for (Int i = 0; i < count; ++i) {
    const nanok3::Scaled s = chip->functions().recip(v[i]);
    mantissa[i] = s.mantissa, exponent[i] = s.exponent;
  }
}

void nanok3_rsqrt(const Chip* chip, const Int* v, Int count, Int frac, Int* mantissa, Int* exponent) {
  for (Int i = 0; i < count; ++i) {
    const nanok3::Scaled s = chip->functions().rsqrt(v[i], frac);
    mantissa[i] = s.mantissa, exponent[i] = s.exponent;
  }
}

// One block of 32 integers with `frac` fraction bits: elements in units of 2**-9, and the E8M0 code.
void nanok3_quantise(const Chip* chip, const Int* x, Int frac, Int* units, Int* scale) {
  const nanok3::MxBlock block = chip->quantiser()(x, {24, static_cast<int>(frac), true});
  std::copy(block.units.begin(), block.units.end(), units);
  *scale = block.scale;
}

}  // extern "C"
