// Registers and memories of one chip, and the execution of its commands: the compiled sibling of sim/machine.py.
#pragma once

#include "kda.h"
#include "lanes.h"
#include "mla.h"
#include "mx.h"
#include "program.h"
#include "router.h"
#include "vector.h"

namespace nanok3 {

// Shapes of a chip (hw/params.py).
struct Shape {
  explicit Shape(const Block& b)
      : rows(b.value("array_rows")), lanes(b.value("lanes")), hidden(b.value("hidden_size")),
        vocab(b.value("vocab_size")), positions(b.value("max_positions")), snapshots(b.value("snapshots")),
        kda_layers(b.value("kda_layers")), kda_heads(b.value("kda_num_heads")), mla_layers(b.value("mla_layers")),
        mla_heads(b.value("num_attention_heads")), rope(b.value("qk_rope_head_dim")),
        moe_layers(b.value("moe_layers")), experts(b.value("num_experts")),
        top_k(b.value("num_experts_per_token")), expert_words(b.value("expert_words")) {}

  Int rows, lanes, hidden, vocab, positions, snapshots, kda_layers, kda_heads, mla_layers, mla_heads, rope,
      moe_layers, experts, top_k, expert_words;
};

class Chip {
 public:
  explicit Chip(const Block& block)
      : shape_(block), functions_(block), lanes_(block, functions_), quantiser_(block), weights_(block, shape_.rows),
        kda_(shape_.kda_layers, shape_.kda_heads),
        mla_(block, functions_, shape_.mla_layers, shape_.mla_heads, shape_.rope, shape_.positions),
        router_(block, functions_, shape_.moe_layers, shape_.experts, shape_.top_k),
        program_(steps(block)), lane_words_(block.value("lane.words")),
        lane_constants_(block.array("lane.constants", lane_words_ * shape_.rows * LANE_CONSTS)),
        vector_words_(block.value("vector.words")),
        vector_constants_(block.array("vector.constants", vector_words_ * shape_.lanes)),
        eps_(block.reals("eps")), t_(T_REGS, Vector(shape_.lanes)), prefix_(shape_.lanes),
        snapshots_(shape_.snapshots, Vector(shape_.lanes)),
        scores_(shape_.snapshots + 1), slots_(SLOTS), o_(shape_.lanes), history_(lane_words_ * shape_.rows * 3),
        logits_(shape_.vocab), sums_(2, Vector(shape_.rows)), work_(shape_.lanes) {
    for (const Step& step : program_) std::visit([this](const auto& c) { check(c); }, step.command);
  }

  Chip(const Chip&) = delete;  // units refer to the chip's functions
  Chip& operator=(const Chip&) = delete;

  const Functions& functions() const { return functions_; }
  const Quantiser& quantiser() const { return quantiser_; }
  const Shape& shape() const { return shape_; }
  const Vector& logits() const { return logits_; }
  Int position() const { return position_; }

  // Position 0 comes next: convolution history and KDA state read as 0 there, nothing else is read before written.
  void reset() {
    position_ = 0;
    kda_.reset();
    std::fill(history_.begin(), history_.end(), 0);
  }

  // Run the program for one token; without `head` the logits stay as they are.
  void step(Int token, bool head) {
    token_ = token;
    for (const Step& step : program_)
      if (head || !step.head) std::visit([this](const auto& c) { execute(c); }, step.command);
    ++position_;
  }

  // Lowest index of the largest logit.
  Int best() const { return std::max_element(logits_.begin(), logits_.end()) - logits_.begin(); }

 private:
  // --- array ---
  void execute(const ArrayCommand& c) {
    if (c.func == Func::EMBED) return embed(c);
    const Int base = c.base + (c.expert ? router_.picked[c.expert - 1] * shape_.expert_words : 0);
    for (Int g = 0; g < c.groups; ++g) {
      Int* sum = sums_[g & 1].data();
      weights_.multiply(base + g * c.blocks, c.blocks, &slots_[c.slot], sum);
      if (c.func == Func::HEAD)
        std::copy(sum, sum + std::min(shape_.rows, shape_.vocab - g * shape_.rows), &logits_[g * shape_.rows]);
      else if (c.func != Func::SITU)
        finish(c, g, sum);
      else if (g & 1)
        situ(c, g / 2);
    }
  }

  void embed(const ArrayCommand& c) {
    const Int blocks = shape_.hidden / BLOCK, per_word = shape_.rows / blocks;
    std::fill(prefix_.begin(), prefix_.end(), 0);
    for (Int b = 0; b < blocks; ++b)
      weights_.dequantise(c.base + token_ / per_word, token_ % per_word * blocks + b, &prefix_[b * BLOCK]);
  }

  // Lane function and write-back of row group g.
  void finish(const ArrayCommand& c, Int g, Int* sum) {
    const Int word = uses_constants(c.func) ? c.constant + g : 0;
    for (Int r = 0; r < shape_.rows; ++r) sum[r] = lane(c.func, sum[r], word * shape_.rows + r);
    write(c, g, sum);
  }

  // `place`: which row's constants and history.
  Int lane(Func func, Int x, Int place) {
    const Int* constants = &lane_constants_[place * LANE_CONSTS];
    switch (func) {
      case Func::GATE:
        return lanes_.gate(x);
      case Func::CONV: {
        Int* past = &history_[place * 3];
        const Int y = lanes_.silu(Lanes::conv(past, x, constants));
        past[0] = past[1], past[1] = past[2], past[2] = x;
        return y;
      }
      case Func::DECAY:
        return lanes_.decay(x, constants[0], constants[1] & 0xFFFF);  // the rate is unsigned
      default:
        return x;
    }
  }

  // Groups alternate gate and up.
  void situ(const ArrayCommand& c, Int pair) {
    Vector &gate = sums_[0], &up = sums_[1];
    for (Int r = 0; r < shape_.rows; ++r) gate[r] = lanes_.situ(gate[r], up[r]);
    write(c, pair, gate.data());
  }

  void write(const ArrayCommand& c, Int group, const Int* y) {
    const Int start = (c.group0 + group) * shape_.rows;
    if (c.dest == Dest::P_ADD) {
      for (Int r = 0; r < shape_.rows; ++r) prefix_[start + r] = saturate(prefix_[start + r] + y[r], VEC);
      return;
    }
    Vector& dest = c.dest == Dest::P ? prefix_ : t_[static_cast<Int>(c.dest)];
    std::copy(y, y + shape_.rows, &dest[start]);
  }

  static bool uses_constants(Func func) { return func == Func::CONV || func == Func::DECAY; }

  // --- vector unit ---
  void execute(const VectorCommand& c) {
    if (c.op == VectorOp::SNAP) {
      snapshots_[c.index] = prefix_;
    } else if (c.op == VectorOp::SCORE) {
      const Vector& v = c.src == Source::P ? prefix_ : snapshots_[c.index];
      scores_[c.index] = mix_score(functions_, v.data(), vector_constant(c.constant), shape_.hidden, eps(Eps::RMS));
    } else {
      flow(c);
    }
  }

  void flow(const VectorCommand& c) {
    const Int width = c.segments * BLOCK;
    Int* x = work_.data();
    Fixed format = load(c, x, width);
    if (norm(c, x, width, format.frac)) format = NRM;
    if (c.weight) {
      scale(x, vector_constant(c.constant), width, format.frac + c.weight_frac);
      format = NRM;
    }
    if (c.gate) {
      scale(x, t_[c.gate_reg].data(), width, format.frac + SIG.frac);
      format = NRM;
    }
    store(c, x, width, format);
  }

  // The operand, `width` lanes of it; returns its format.
  Fixed load(const VectorCommand& c, Int* x, Int width) const {
    if (c.src == Source::MIX) {
      mix(c, x, width);
      return VEC;
    }
    const Vector& source = c.src == Source::P   ? prefix_
                           : c.src == Source::O ? o_
                           : c.src == Source::C ? mla_.context
                                                : t_[static_cast<Int>(c.src)];
    std::copy(source.begin(), source.begin() + width, x);
    return c.src == Source::O ? NRM : c.src == Source::C ? CTX : VEC;
  }

  void mix(const VectorCommand& c, Int* x, Int width) const {
    std::vector<const Int*> vectors;
    if (c.combine == Combine::EXPERTS) {
      for (Int i = 0; i < c.n; ++i) vectors.push_back(t_[i].data());
      return weighted_sum(router_.weights.data(), vectors, width, x);
    }
    Vector weights(c.n);
    softmax_weights(functions_, scores_.data(), c.n, weights.data());
    for (Int i = 0; i + 1 < c.n; ++i) vectors.push_back(snapshots_[i].data());
    vectors.push_back(prefix_.data());
    weighted_sum(weights.data(), vectors, width, x);
  }

  // The normalisation step, in place; false when there is none.
  bool norm(const VectorCommand& c, Int* x, Int width, Int frac) const {
    if (c.norm == Norm::NONE) return false;
    const Int part = c.whole ? width : BLOCK;
    for (Int start = 0; start < width; start += part) {
      if (c.norm == Norm::DIVIDE)
        divide(x + start, mla_.mantissa[start / BLOCK]);
      else
        normalise(functions_, x + start, part, frac, eps(c.eps), c.norm == Norm::RMS,
                  c.norm == Norm::RMS ? NRM : KEY);
    }
    return true;
  }

  static void divide(Int* x, Int mantissa) {
    for (Int i = 0; i < BLOCK; ++i)
      x[i] = saturate(round_shift(x[i] * mantissa, CTX.frac + MANTISSA_FRAC - NRM.frac), NRM);
  }

  void store(const VectorCommand& c, const Int* x, Int width, const Fixed& format) {
    switch (c.out) {
      case Out::SLOTS:
        for (Int s = 0; s < c.segments; ++s) slots_[c.slot + s] = quantiser_(x + s * BLOCK, format);
        return;
      case Out::KDA_K:
      case Out::KDA_Q:
        std::copy(x, x + width, (c.out == Out::KDA_K ? kda_.k : kda_.q).begin());
        return;
      case Out::CACHE:
        mla_.store(c.layer, position_, x, &t_[3][shape_.rope * shape_.mla_heads]);
    }
  }

  double eps(Eps which) const { return eps_[static_cast<std::size_t>(which)]; }
  const Int* vector_constant(Int word) const { return &vector_constants_[word * shape_.lanes]; }

  // --- engines ---
  void execute(const KdaCommand& c) {
    if (c.op == KdaOp::SCAN)
      kda_.scan(c.layer, t_[3].data());
    else if (c.op == KdaOp::READ)
      kda_.read(t_[1].data(), t_[0].data(), o_.data());
    else
      kda_.write(c.layer);
  }

  void execute(const MlaCommand& c) { mla_.attend(c.layer, position_ + 1, t_[0].data(), t_[3].data()); }

  void execute(const RouterCommand& c) { router_.route(c.layer, t_[0].data()); }

  // --- commands that would leave the registers or memories are refused before anything runs ---
  static void in_range(const char* what, Int first, Int count, Int size) {
    if (first < 0 || count < 0 || first + count > size)
      throw std::invalid_argument("a command leaves the " + std::string(what) + ": " + std::to_string(first) + " + " +
                                  std::to_string(count) + " of " + std::to_string(size));
  }

  void check(const ArrayCommand& c) const {
    if (c.func == Func::EMBED) {
      const Int per_word = shape_.rows * BLOCK / shape_.hidden;
      return in_range("weights", c.base, (shape_.vocab + per_word - 1) / per_word, weights_.words());
    }
    in_range("picked experts", c.expert, 0, shape_.top_k);
    const Int last_expert = c.expert ? (shape_.experts - 1) * shape_.expert_words : 0;
    in_range("weights", c.base, last_expert + c.groups * c.blocks, weights_.words());
    in_range("operand slots", c.slot, c.blocks, SLOTS);
    if (uses_constants(c.func)) in_range("lane constants", c.constant, c.groups, lane_words_);
    const Int results = c.func == Func::SITU ? c.groups / 2 : c.groups;
    if (c.func == Func::HEAD)
      in_range("logits", c.groups * shape_.rows, 0, (shape_.vocab + shape_.rows - 1) / shape_.rows * shape_.rows);
    else
      in_range("vector registers", c.group0 * shape_.rows, results * shape_.rows, shape_.lanes);
  }

  void check(const VectorCommand& c) const {
    in_range("vector constants", c.constant, 1, vector_words_);
    if (c.op == VectorOp::SNAP) return in_range("snapshots", c.index, 1, shape_.snapshots);
    if (c.op == VectorOp::SCORE) {
      if (c.src != Source::P) in_range("snapshots", c.index, 1, shape_.snapshots);
      return in_range("scores", c.index, 1, shape_.snapshots + 1);
    }
    in_range("vector registers", 0, c.segments * BLOCK, shape_.lanes);
    if (c.src == Source::C) in_range("context", 0, c.segments, shape_.mla_heads);
    if (c.src == Source::MIX && c.combine == Combine::EXPERTS)
      in_range("picked experts", 1, c.n - 1, shape_.top_k);
    else if (c.src == Source::MIX)
      in_range("scores", 1, c.n - 1, shape_.snapshots + 1);
    if (c.out == Out::SLOTS) in_range("operand slots", c.slot, c.segments, SLOTS);
    if (c.out == Out::KDA_K || c.out == Out::KDA_Q) in_range("KDA heads", 0, c.segments, shape_.kda_heads);
    if (c.out == Out::CACHE) in_range("MLA layers", c.layer, 1, shape_.mla_layers);
  }

  void check(const KdaCommand& c) const { in_range("KDA layers", c.layer, 1, shape_.kda_layers); }
  void check(const MlaCommand& c) const { in_range("MLA layers", c.layer, 1, shape_.mla_layers); }
  void check(const RouterCommand& c) const { in_range("MoE layers", c.layer, 1, shape_.moe_layers); }

  const Shape shape_;
  const Functions functions_;
  const Lanes lanes_;
  const Quantiser quantiser_;
  const Weights weights_;
  Kda kda_;
  Mla mla_;
  Router router_;
  const std::vector<Step> program_;
  const Int lane_words_;
  const Vector lane_constants_;  // signed 16 bits [word][row][LANE_CONSTS]
  const Int vector_words_;
  const Vector vector_constants_;  // signed 16 bits [word][lane]
  const std::vector<double> eps_;  // by Eps

  std::vector<Vector> t_;
  Vector prefix_;
  std::vector<Vector> snapshots_;
  Vector scores_;
  std::vector<MxBlock> slots_;
  Vector o_, history_;  // history: VEC [lane word][row][3], oldest first
  Vector logits_;
  std::vector<Vector> sums_;  // of the last two row groups
  Vector work_;               // operand of a FLOW on its way
  Int position_ = 0, token_ = 0;
};

}  // namespace nanok3
