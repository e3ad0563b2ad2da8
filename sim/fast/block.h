// The parameter block that Python hands over: named arrays of 64-bit integers (sim/fast/block.py).
#pragma once

#include <cstring>
#include <map>
#include <stdexcept>
#include <string>

#include "fixed.h"

namespace nanok3 {

class Block {
 public:
  void put(const std::string& name, const Int* data, std::size_t size) { entries_[name].assign(data, data + size); }

  const Vector& array(const std::string& name) const {
    const auto entry = entries_.find(name);
    if (entry == entries_.end()) throw std::invalid_argument("the parameter block has no " + name);
    return entry->second;
  }

  // An array whose size is known.
  const Vector& array(const std::string& name, std::size_t size) const {
    const Vector& values = array(name);
    if (values.size() != size)
      throw std::invalid_argument(name + " has " + std::to_string(values.size()) + " values, not " +
                                  std::to_string(size));
    return values;
  }

  Int value(const std::string& name) const { return array(name, 1)[0]; }

  // float64 values that travel as their bit patterns.
  std::vector<double> reals(const std::string& name) const {
    const Vector& bits = array(name);
    std::vector<double> values(bits.size());
    static_assert(sizeof(double) == sizeof(Int));
    std::memcpy(values.data(), bits.data(), bits.size() * sizeof(Int));
    return values;
  }

 private:
  std::map<std::string, Vector> entries_;
};

}  // namespace nanok3
