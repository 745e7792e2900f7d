#include "pipewright/schedule/verify/work_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "pipewright/ir/check.h"
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
        ->error(ir::Rule::kMissingWork,
                fmt::format("{} of {} forwards are missing: {} stages with {} microbatches each",
                            num_cells - num_forwards, num_cells, schedule.placement.num_stages(),
                            schedule.num_microbatches))
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
        const bool is_new = steps[slot] == kAbsent;
        if (is_new) steps[slot] = static_cast<uint32_t>(step);
        // B and I both compute the input gradient.
        const size_t rival = slot == kBackwardSlot ? kInputSlot : kBackwardSlot;
        const bool has_rival =
            (slot == kBackwardSlot || slot == kInputSlot) && steps[rival] != kAbsent;
        if (is_new && !has_rival) continue;
        const size_t known = steps[is_new ? rival : slot];
        const ActionPart first(kSlots[is_new ? rival : slot], part.stage(), part.microbatch());
        ir::Diagnostic& error = diagnostics->error(
            is_new ? ir::Rule::kBackwardTwice : ir::Rule::kDuplicateAction,
            is_new
                ? fmt::format(
                      "`{}` and `{}` both compute the input gradient of stage {} for microbatch {}",
                      ir::to_string(first), ir::to_string(part), part.stage(), part.microbatch())
                : fmt::format("`{}` appears twice on rank {}", ir::to_string(part), rank),
            ir::place_at(rank, step));
        error.notes.push_back(
            {fmt::format("`{}` is here first", ir::to_string(first)), ir::place_at(rank, known)});
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
      if (!whole && steps[kInputSlot] == kAbsent) {
        no_backward.push_back(microbatch);
      } else if (!whole && steps[kWeightSlot] == kAbsent) {
        no_weight.push_back(microbatch);
      } else if (whole && steps[kWeightSlot] != kAbsent) {
        ir::Diagnostic& error = diagnostics->error(
            ir::Rule::kBackwardTwice,
            fmt::format("`{}W{}` and `{}B{}` both compute the gradients of the weights", stage,
                        microbatch, stage, microbatch),
            ir::place_at(static_cast<size_t>(rank), steps[kWeightSlot]));
        error.notes.push_back({fmt::format("`{}B{}` is here", stage, microbatch),
                               ir::place_at(static_cast<size_t>(rank), steps[kBackwardSlot])});
      }
    }
    const auto report = [&](const std::vector<int>& microbatches, std::string_view what) {
      if (microbatches.empty()) return;
      ir::Place place;
      place.rank = rank;
      diagnostics->error(
          ir::Rule::kMissingWork,
          fmt::format("stage {} on rank {} has no {} of microbatch{} {}", stage, rank, what,
                      microbatches.size() == 1 ? "" : "es", ranges(microbatches)),
          place);
    };
    report(no_forward, "F");
    report(no_backward, "B or I");
    report(no_weight, "W");
  }
}

}  // namespace pipewright::schedule
