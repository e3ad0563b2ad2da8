// The commands of one token in an order that their dependencies allow, read from the block.
#pragma once

#include <type_traits>
#include <variant>

#include "block.h"
#include "generated.h"

namespace nanok3 {

struct Step {
  AnyCommand command;
  bool head;  // only for logits
};

// All commands of one unit: rows of the command's fields.
template <class Command>
std::vector<AnyCommand> unit_commands(const Block& block) {
  static_assert(std::is_trivially_copyable_v<Command> && sizeof(Command) % sizeof(Int) == 0);
  constexpr std::size_t FIELDS = sizeof(Command) / sizeof(Int);
  const Vector& fields = block.array(std::string("commands.") + Command::UNIT);
  std::vector<AnyCommand> result;
  for (std::size_t at = 0; at + FIELDS <= fields.size(); at += FIELDS) {
    Command command;
    std::memcpy(&command, &fields[at], sizeof command);
    result.emplace_back(command);
  }
  return result;
}

template <class... Commands>
std::vector<std::vector<AnyCommand>> all_commands(const Block& block, const std::variant<Commands...>*) {
  return {unit_commands<Commands>(block)...};
}

// `program.order` names the unit of each step; a unit's commands come in their own order.
inline std::vector<Step> steps(const Block& block) {
  const Vector &order = block.array("program.order"), &head = block.array("program.head", order.size());
  const auto units = all_commands(block, static_cast<const AnyCommand*>(nullptr));
  std::vector<std::size_t> next(units.size());
  std::vector<Step> result;
  for (std::size_t i = 0; i < order.size(); ++i)
    result.push_back({units.at(order[i]).at(next.at(order[i])++), head[i] != 0});
  return result;
}

}  // namespace nanok3
