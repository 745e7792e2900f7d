#include "pipewright/schedule/verify/work_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "pipewright/ir/check.h"
#include "pipewright/ir/counted.h"
#include "pipewright/ir/text/action_text.h"

namespace pipewright::schedule {
namespace {

using ir::ActionKind;
using ir::ActionPart;

// Ascending numbers as text, with at most four ranges: "3", "3 to 5", "3, 7 to 9, ...".
std::string ranges(const std::vector<int>& numbers) {
  std::string text;
  int shown = 0;
  for (size_t begin = 0; begin < numbers.size();) {
    size_t end = begin + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (shown++ == 4) return text + ", ...";
    if (!text.empty()) text += ", ";
    text += end == begin + 1 ? std::to_string(numbers[begin])
                             : fmt::format("{} to {}", numbers[begin], numbers[end - 1]);
    begin = end;
  }
  return text;
}

}  // namespace

std::optional<WorkIndex> WorkIndex::build(const ir::Schedule& schedule,
                                          ir::Diagnostics* diagnostics) {
  const size_t errors_before = diagnostics->total();
  WorkIndex index;
  index.has_backward_ = ir::has_backward(schedule);
  size_t num_forwards = 0;
  for (const ir::Row& row : schedule.rows) {
    for (const ir::Action& action : row) {
      for (const ActionPart part : action.parts())
        num_forwards += part.kind() == ActionKind::kForward;
    }
  }
  // One action with a huge microbatch index must not cost the memory of all the missing ones.
  const size_t num_cells = static_cast<size_t>(schedule.placement.num_stages()) *
                           static_cast<size_t>(schedule.num_microbatches);
  if (num_forwards < num_cells / 2) {
    diagnostics
        ->error(
            ir::Rule::kMissingWork,
            fmt::format("{} of {} forwards are missing: {} with {} each", num_cells - num_forwards,
                        num_cells, ir::counted(schedule.placement.num_stages(), "stage", "stages"),
                        ir::counted(schedule.num_microbatches, "microbatch", "microbatches")))
        .help = "a microbatch index that is too high makes all below it missing";
    return std::nullopt;
  }
  Cell absent;
  absent.fill(kAbsent);
  index.cells_ = {schedule.placement, schedule.num_microbatches, absent};
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    const ir::Row& row = schedule.rows[rank];
    for (size_t step = 0; step < row.size(); ++step) {
      for (const ActionPart part : row[step].parts()) {
        const size_t slot = slot_of(part.kind());
        if (slot == kNoSlot) continue;
        Cell& steps = index.cells_.at(part.stage(), part.microbatch());
        if (steps[slot] == kAbsent) {
          steps[slot] = static_cast<uint32_t>(step);
          continue;
        }
        ir::Diagnostic& error = diagnostics->error(
            ir::Rule::kDuplicateAction,
            fmt::format("`{}` appears twice on rank {}", ir::to_string(part), rank),
            ir::place_at(rank, step));
        error.notes.push_back({fmt::format("`{}` is here first", ir::to_string(part)),
                               ir::place_at(rank, steps[slot])});
        error.help = "remove it";
      }
    }
  }
  index.check_complete(schedule, diagnostics);
  if (diagnostics->total() > errors_before) return std::nullopt;
  return index;
}

void WorkIndex::check_complete(const ir::Schedule& schedule, ir::Diagnostics* diagnostics) const {
  for (int stage = 0; stage < schedule.placement.num_stages(); ++stage) {
    const int rank = schedule.placement.rank_of(stage);
    std::vector<int> no_forward, no_backward, no_weight;
    for (int microbatch = 0; microbatch < schedule.num_microbatches; ++microbatch) {
      const Cell& steps = cells_.at(stage, microbatch);
      if (steps[kForwardSlot] == kAbsent) no_forward.push_back(microbatch);
      if (!has_backward_) continue;
      const bool whole = steps[kBackwardSlot] != kAbsent;
      if (whole) check_whole(stage, microbatch, rank, diagnostics);
      if (!whole && steps[kInputSlot] == kAbsent) {
        no_backward.push_back(microbatch);
      } else if (!whole && steps[kWeightSlot] == kAbsent) {
        no_weight.push_back(microbatch);
      }
    }
    const auto report = [&](const std::vector<int>& microbatches, std::string_view what,
                            ActionKind missing) {
      if (microbatches.empty()) return;
      ir::Place place;
      place.rank = rank;
      const ActionPart first(missing, stage, microbatches[0]);
      diagnostics
          ->error(ir::Rule::kMissingWork,
                  fmt::format("stage {} on rank {} has no {} of microbatch{} {}", stage, rank, what,
                              microbatches.size() == 1 ? "" : "es", ranges(microbatches)),
                  place)
          .help = fmt::format("add `{}`{} on rank {}", ir::to_string(first),
                              microbatches.size() == 1 ? "" : " and the others", rank);
    };
    report(no_forward, "F", ActionKind::kForward);
    report(no_backward, "B or I", ActionKind::kBackward);
    report(no_weight, "W", ActionKind::kBackwardWeight);
  }
}

// A B together with an I or a W: one of the two forms of the backward is too many. A complete I and
// W stay, and otherwise the B.
void WorkIndex::check_whole(int stage, int microbatch, int rank,
                            ir::Diagnostics* diagnostics) const {
  const Cell& steps = cells_.at(stage, microbatch);
  const bool split = steps[kInputSlot] != kAbsent && steps[kWeightSlot] != kAbsent;
  const auto name_of = [&](size_t slot) {
    return ir::to_string(ActionPart(kSlots[slot], stage, microbatch));
  };
  for (const size_t rival : {kInputSlot, kWeightSlot}) {
    if (steps[rival] == kAbsent) continue;
    const auto [first, second] = std::minmax(steps[rival], steps[kBackwardSlot]);
    const auto at = [&](size_t step) { return ir::place_at(static_cast<size_t>(rank), step); };
    const bool rival_first = steps[rival] == first;
    const std::string earlier = name_of(rival_first ? rival : kBackwardSlot),
                      later = name_of(rival_first ? kBackwardSlot : rival);
    ir::Diagnostic& error = diagnostics->error(
        ir::Rule::kBackwardTwice,
        fmt::format("`{}` and `{}` both compute {} of stage {} for microbatch {}", earlier, later,
                    rival == kInputSlot ? "the input gradient" : "the gradients of the weights",
                    stage, microbatch),
        at(second));
    error.notes.push_back({fmt::format("`{}` is here first", earlier), at(first)});
    error.help = fmt::format("remove `{}`", name_of(split ? kBackwardSlot : rival));
  }
}

}  // namespace pipewright::schedule
