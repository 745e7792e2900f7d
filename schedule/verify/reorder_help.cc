// A cycle of a compute order has edges "`0B0` waits for `1B0`, which comes after `1F1`": if `1B0`
// were before `1F1`, that edge would be gone. Each such move is tried, and the first one is
// proposed after which the whole order verifies. Each trial costs a verification, so only a few
// edges are tried.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/graph/channel_graph.h"
#include "pipewright/schedule/graph/deadlock.h"
#include "pipewright/schedule/verify/verify_checks.h"

namespace pipewright::schedule {
namespace {

constexpr int kTrials = 8;

bool is_valid(const ir::ComputeOrder& order) {
  ir::Diagnostics errors;
  const std::optional<WorkIndex> index = WorkIndex::build(order, &errors);
  if (!index) return false;
  check_local_order(order, *index, &errors);
  return !errors.has_errors() && ChannelGraph::of_order(order).blocked().empty();
}

}  // namespace

std::string reorder_help(const ir::ComputeOrder& order, std::span<const Wait> cycle) {
  const ChannelGraph graph = ChannelGraph::of_order(order);
  int trials = 0;
  for (const Wait& wait : cycle) {
    const ChannelGraph::Cell late = graph.cell_of(wait.waits_for),
                             early = graph.cell_of(wait.blocked_by);
    if (late.rank != early.rank || late.step <= early.step) continue;
    if (trials++ == kTrials) break;
    ir::ComputeOrder moved = order;
    const auto row = moved.rows[late.rank].begin();
    const auto at = [&](size_t step) { return row + static_cast<std::ptrdiff_t>(step); };
    std::rotate(at(early.step), at(late.step), at(late.step + 1));
    if (!is_valid(moved)) continue;
    const ir::Row& before = order.rows[late.rank];
    return fmt::format("move `{}` before `{}`", ir::to_string(before[late.step]),
                       ir::to_string(before[early.step]));
  }
  return "";
}

}  // namespace pipewright::schedule
