#include "pipewright/ir/action_kind.h"

#include <array>

namespace pipewright::ir {
namespace {

// A perfect hash of the tokens: finding a kind takes one table lookup and one string comparison.
// That no two tokens collide is checked at compile time below.
constexpr size_t kSlots = 32;
constexpr size_t slot_of(std::string_view token) {
  const auto letter = [](char value) {
    return static_cast<size_t>(static_cast<unsigned char>(value));
  };
  return (token.size() + letter(token.front()) + letter(token.back())) % kSlots;
}

constexpr std::array<uint8_t, kSlots> make_slots() {
  std::array<uint8_t, kSlots> slots{};  // index in kActionKinds + 1; 0: empty
  for (size_t index = 0; index < std::size(kActionKinds); ++index) {
    slots[slot_of(kActionKinds[index].token)] = static_cast<uint8_t>(index + 1);
  }
  return slots;
}
constexpr std::array<uint8_t, kSlots> kSlotTable = make_slots();

constexpr bool every_token_has_its_slot() {
  for (size_t index = 0; index < std::size(kActionKinds); ++index) {
    if (kSlotTable[slot_of(kActionKinds[index].token)] != index + 1) return false;
  }
  return true;
}
static_assert(every_token_has_its_slot(), "two tokens collide: slot_of needs another formula");

}  // namespace

std::optional<ActionKind> kind_of_token(std::string_view token) {
  if (token.empty()) return std::nullopt;
  const uint8_t index = kSlotTable[slot_of(token)];
  if (index == 0 || kActionKinds[index - 1].token != token) return std::nullopt;
  return kActionKinds[index - 1].kind;
}

}  // namespace pipewright::ir
