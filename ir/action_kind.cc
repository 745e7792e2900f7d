#include "ir/action_kind.h"

#include "ir/check.h"

namespace pipewright::ir {
namespace {

constexpr ActionKindInfo kActionKinds[] = {
#define PW_ACTION_KIND(enumerator, token, group, microbatch, meaning) \
  {ActionKind::enumerator, token, ActionGroup::group, microbatch, meaning},
#include "ir/action_kinds.def"
#undef PW_ACTION_KIND
};

}  // namespace

std::span<const ActionKindInfo> action_kinds() { return kActionKinds; }

const ActionKindInfo& info(ActionKind kind) {
  PW_CHECK(kind != ActionKind::kIdle, "an idle slot has no row in the table of action kinds");
  return kActionKinds[static_cast<size_t>(kind) - 1];
}

std::optional<ActionKind> kind_of_token(std::string_view token) {
  for (const ActionKindInfo& row : kActionKinds) {
    if (row.token == token) return row.kind;
  }
  return std::nullopt;
}

}  // namespace pipewright::ir
