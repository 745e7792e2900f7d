#include "pipewright/ir/text/shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "pipewright/ir/text/action_text.h"

namespace pipewright::ir {
namespace {

constexpr int kNowhere = -1;

std::string quoted_action(const Action& action) { return backticked(to_string(action)); }

// Where a stage was first seen, for find_shape's notes.
struct FirstUse {
  int rank = kNowhere;
  int step = 0;
  int last_reported_rank = kNowhere;
};

void report_two_ranks(const Action& action, int stage, FirstUse& first, const Rows& rows, int rank,
                      int step, const CellIndex& cells, Diagnostics* diagnostics) {
  if (first.last_reported_rank == rank) return;  // once a rank is enough
  first.last_reported_rank = rank;
  Diagnostic& error =
      diagnostics->error(Rule::kStageOnTwoRanks,
                         fmt::format("{} is on rank {}, but stage {} is on rank {}",
                                     quoted_action(action), rank, stage, first.rank),
                         cells.place(rank, step));
  const Action& before = rows[static_cast<size_t>(first.rank)][static_cast<size_t>(first.step)];
  error.notes.push_back(
      {fmt::format("{} on rank {} uses stage {} first", quoted_action(before), first.rank, stage),
       cells.place(first.rank, first.step)});
}

// Stages without a rank, a diagnostic for each gap.
bool report_missing_stages(const std::vector<FirstUse>& stages, Diagnostics* diagnostics) {
  bool complete = true;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    if (stages[stage].rank != kNowhere) continue;
    size_t end = stage;
    while (stages[end].rank == kNowhere) ++end;  // the last stage is in use
    const std::string which = end == stage + 1
                                  ? fmt::format("stage {} has", stage)
                                  : fmt::format("stages {} to {} have", stage, end - 1);
    diagnostics
        ->error(Rule::kStageMissing,
                fmt::format("{} no action on any rank, but stage {} has", which, end))
        .help = "stages count from 0 without a gap";
    complete = false;
    stage = end;
  }
  return complete;
}

bool has_action(const Row& row) {
  return std::ranges::any_of(row, [](const Action& action) { return !action.is_idle(); });
}

bool report_empty_ranks(const Rows& rows, const CellIndex& cells, Diagnostics* diagnostics) {
  bool complete = true;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    if (has_action(rows[rank])) continue;
    diagnostics
        ->error(Rule::kRankWithoutActions, fmt::format("rank {} has no actions", rank),
                cells.row_place(static_cast<int>(rank)))
        .help = "remove the row, or give the rank a stage";
    complete = false;
  }
  return complete;
}

}  // namespace

std::optional<FoundShape> find_shape(const Rows& rows, const CellIndex& cells,
                                     Diagnostics* diagnostics) {
  if (rows.empty()) {
    diagnostics->error(Rule::kEmptyFile, "there are no rows");
    return std::nullopt;
  }
  bool good = report_empty_ranks(rows, cells, diagnostics);
  std::vector<FirstUse> stages;
  int num_microbatches = 0;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    const Row& row = rows[rank];
    for (size_t step = 0; step < row.size(); ++step) {
      for (const ActionPart part : row[step].parts()) {
        num_microbatches = std::max(num_microbatches, part.microbatch() + 1);
        const auto stage = static_cast<size_t>(part.stage());
        if (stage >= stages.size()) stages.resize(stage + 1);
        FirstUse& first = stages[stage];
        if (first.rank == kNowhere) {
          first.rank = static_cast<int>(rank);
          first.step = static_cast<int>(step);
        } else if (first.rank != static_cast<int>(rank)) {
          report_two_ranks(row[step], part.stage(), first, rows, static_cast<int>(rank),
                           static_cast<int>(step), cells, diagnostics);
          good = false;
        }
      }
    }
  }
  good = report_missing_stages(stages, diagnostics) && good;
  if (!good) return std::nullopt;
  std::vector<int> rank_of_stage;
  rank_of_stage.reserve(stages.size());
  for (const FirstUse& first : stages) rank_of_stage.push_back(first.rank);
  return FoundShape{Placement::custom(static_cast<int>(rows.size()), std::move(rank_of_stage)),
                    num_microbatches};
}

bool check_declared_shape(const Schedule& schedule, Level level, const CellIndex& cells,
                          const Place& header, Diagnostics* diagnostics) {
  const Placement& placement = schedule.placement;
  const size_t before = diagnostics->total();
  if (schedule.rows.size() != static_cast<size_t>(placement.num_ranks())) {
    diagnostics->error(Rule::kRowCount,
                       fmt::format("rows: found {}, want {}, one a rank", schedule.rows.size(),
                                   placement.num_ranks()),
                       header);
  }
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    const Row& row = schedule.rows[rank];
    for (size_t step = 0; step < row.size(); ++step) {
      const Action& action = row[step];
      const auto place = [&] {
        return cells.place(static_cast<int>(rank), static_cast<int>(step));
      };
      if (level == Level::kComputeOnly && !action.is_idle() && !is_compute(action.kind())) {
        diagnostics
            ->error(Rule::kLevel,
                    fmt::format("{} is not a compute action, but the level is compute_only",
                                quoted_action(action)),
                    place())
            .help = "say compute_comms where the schedule is lowered";
      }
      for (const ActionPart part : action.parts()) {
        if (part.stage() >= placement.num_stages()) {
          diagnostics->error(
              Rule::kStageOutOfRange,
              fmt::format("{} is of stage {}, but there are {} stages", quoted_action(action),
                          part.stage(), placement.num_stages()),
              place());
        } else if (placement.rank_of(part.stage()) != static_cast<int>(rank)) {
          diagnostics->error(
              Rule::kWrongRank,
              fmt::format("{} is on rank {}, but the placement has stage {} on rank {}",
                          quoted_action(action), rank, part.stage(),
                          placement.rank_of(part.stage())),
              place());
        }
        if (part.microbatch() >= schedule.num_microbatches) {
          diagnostics->error(
              Rule::kMicrobatchOutOfRange,
              fmt::format("{} is of microbatch {}, but there are {} microbatches",
                          quoted_action(action), part.microbatch(), schedule.num_microbatches),
              place());
        }
      }
    }
  }
  if (level == Level::kComputeComms) check_no_idle(schedule.rows, cells, diagnostics);
  return diagnostics->total() == before;
}

bool check_expected_shape(const Schedule& schedule, const ExpectedShape& expected,
                          Diagnostics* diagnostics) {
  bool good = true;
  const auto check = [&](std::string_view what, std::optional<int> want, int found) {
    if (!want || *want == found) return;
    diagnostics->error(Rule::kShapeDiffers,
                       fmt::format("{}: found {}, want {}", what, found, *want));
    good = false;
  };
  check("ranks", expected.ranks, schedule.placement.num_ranks());
  check("stages", expected.stages, schedule.placement.num_stages());
  check("microbatches", expected.microbatches, schedule.num_microbatches);
  return good;
}

bool check_no_idle(const Rows& rows, const CellIndex& cells, Diagnostics* diagnostics) {
  const size_t before = diagnostics->total();
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    for (size_t step = 0; step < rows[rank].size(); ++step) {
      if (!rows[rank][step].is_idle()) continue;
      diagnostics
          ->error(Rule::kIdleInProgram,
                  fmt::format("cell {} of rank {} is empty in a lowered program", step, rank),
                  cells.place(static_cast<int>(rank), static_cast<int>(step)))
          .help = "remove the cell; only a compute order has idle slots";
    }
  }
  return diagnostics->total() == before;
}

}  // namespace pipewright::ir
