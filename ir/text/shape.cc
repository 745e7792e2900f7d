#include "pipewright/ir/text/shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <string>
#include <string_view>
#include <utility>

#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/action_text.h"
#include "pipewright/ir/text/scan_action.h"

namespace pipewright::ir {
namespace {

struct Cell {
  size_t begin;
  size_t end;
};

// The text between two commas, without the blanks around it.
Cell find_csv_cell(std::string_view text, size_t at, int step) {
  for (; step > 0 && at < text.size() && text[at] != '\n'; ++at) {
    if (text[at] == ',') --step;
  }
  Cell cell{at, at};
  while (cell.end < text.size() && text[cell.end] != ',' && text[cell.end] != '\n') ++cell.end;
  while (cell.begin < cell.end && is_blank(text[cell.begin])) ++cell.begin;
  while (cell.end > cell.begin && is_blank(text[cell.end - 1])) --cell.end;
  return cell;
}

// A word between two runs of blanks.
Cell find_plan_cell(std::string_view text, size_t at, int step) {
  Cell cell{at, at};
  for (; step >= 0; --step) {
    cell.begin = cell.end;
    while (cell.begin < text.size() && is_blank(text[cell.begin])) ++cell.begin;
    cell.end = cell.begin;
    while (cell.end < text.size() && !is_blank(text[cell.end]) && text[cell.end] != '\n')
      ++cell.end;
  }
  return cell;
}

// A string or literal of the array that contains `at`.
Cell find_json_cell(std::string_view text, size_t at, int step) {
  Cell cell{at, at};
  for (; step >= 0; --step) {
    cell.begin = cell.end;
    while (cell.begin < text.size() && text[cell.begin] != '"' &&
           (text[cell.begin] < 'a' || text[cell.begin] > 'z')) {
      ++cell.begin;
    }
    cell.end = cell.begin;
    if (cell.end == text.size()) break;
    const bool is_string = text[cell.end++] == '"';
    while (cell.end < text.size()) {
      const char letter = text[cell.end];
      if (is_string ? letter == '"' : letter < 'a' || letter > 'z') break;
      cell.end += letter == '\\' ? 2 : 1;
    }
    if (is_string) ++cell.end;
  }
  return cell;
}

Cell find_cell(CellStyle style, std::string_view text, size_t at, int step) {
  switch (style) {
    case CellStyle::kCommas:
      return find_csv_cell(text, at, step);
    case CellStyle::kBlanks:
      return find_plan_cell(text, at, step);
    case CellStyle::kStrings:
      return find_json_cell(text, at, step);
  }
  return {at, at};
}

}  // namespace

Place CellIndex::place(int rank, int step) const {
  Place place;
  if (source_ != nullptr && static_cast<size_t>(rank) < rows_.size()) {
    if (!last_ || last_->rank != rank || last_->step > step) {
      const RowStart& row = rows_[static_cast<size_t>(rank)];
      last_.emplace(Last{rank, 0, row.cells, PlaceCursor(*source_)});
      last_->cursor.start_line(row.line, row.offset);
    }
    const Cell cell = find_cell(style_, source_->text, last_->begin, step - last_->step);
    last_->step = step;
    last_->begin = cell.begin;
    place = last_->cursor.at(cell.begin, cell.end - cell.begin);
  }
  place.rank = rank;
  place.step = step;
  return place;
}

Place CellIndex::row_place(int rank) const {
  Place place;
  if (source_ != nullptr && static_cast<size_t>(rank) < rows_.size()) {
    const RowStart& row = rows_[static_cast<size_t>(rank)];
    PlaceCursor cursor(*source_);
    cursor.start_line(row.line, row.offset);
    place = cursor.at(row.offset, 0);
  }
  place.rank = rank;
  return place;
}

namespace {

constexpr int kNoRank = -1;

std::string quoted_action(const Action& action) { return backticked(to_string(action)); }

// "stage 3", or "stage 3 of replica 1" if there are two.
std::string name_of_instance(int instance, int num_stages, bool has_replicas) {
  std::string name = fmt::format("stage {}", instance % num_stages);
  if (has_replicas) name += fmt::format(" of replica {}", instance / num_stages);
  return name;
}

// The first use of an instance of a stage, for the notes of find_shape.
struct FirstUse {
  int rank = kNoRank;
  int step = 0;
  int last_reported_rank = kNoRank;
};

void report_two_ranks(const Action& action, const std::string& stage, FirstUse& first,
                      const Rows& rows, int rank, int step, Diagnostics* diagnostics) {
  if (first.last_reported_rank == rank) return;  // one error per stage and rank
  first.last_reported_rank = rank;
  Diagnostic& error =
      diagnostics->error(Rule::kStageOnTwoRanks,
                         fmt::format("{} is on rank {}, but {} is on rank {}",
                                     quoted_action(action), rank, stage, first.rank),
                         place_at(static_cast<size_t>(rank), static_cast<size_t>(step)));
  error.help = fmt::format("move it to rank {}", first.rank);
  const Action& before = rows[static_cast<size_t>(first.rank)][static_cast<size_t>(first.step)];
  error.notes.push_back(
      {fmt::format("{} is first used by {} on rank {}", stage, quoted_action(before), first.rank),
       place_at(static_cast<size_t>(first.rank), static_cast<size_t>(first.step))});
}

// Reports stages without a rank, one diagnostic per gap. Returns whether there are none.
bool report_missing_stages(const std::vector<FirstUse>& stages, Diagnostics* diagnostics) {
  bool complete = true;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    if (stages[stage].rank != kNoRank) continue;
    size_t end = stage;
    while (stages[end].rank == kNoRank) ++end;  // ends: the last stage is in use
    const std::string which = end == stage + 1
                                  ? fmt::format("stage {} has", stage)
                                  : fmt::format("stages {} to {} have", stage, end - 1);
    diagnostics
        ->error(Rule::kStageMissing,
                fmt::format("{} no action on any rank, but stage {} does", which, end))
        .help = "number the stages from 0 without gaps";
    complete = false;
    stage = end;
  }
  return complete;
}

// The highest stage and microbatch that any action names.
struct Highest {
  int stage = 0;
  int microbatch = 0;
};

Highest highest_in(const Rows& rows) {
  Highest highest;
  for (const Row& row : rows) {
    for (const Action& action : row) {
      for (const ActionPart part : action.parts()) {
        highest.stage = std::max(highest.stage, part.stage());
        highest.microbatch = std::max(highest.microbatch, part.microbatch());
      }
    }
  }
  return highest;
}

std::string wrong_rank_help(const Action& action, ActionPart part, int rank) {
  if (!action.is_compound()) return fmt::format("move it to rank {}", rank);
  const auto parts = action.parts();
  return fmt::format("write `{}` here, and `{}` on rank {}",
                     to_string(parts[parts[0] == part ? 1 : 0]), to_string(part), rank);
}

// Whether `rank` holds the instance of the stage that an action is for: the one of its microbatch,
// or any if it has none.
bool is_on(ActionPart part, size_t rank, const Placement& placement) {
  const int own = static_cast<int>(rank);
  const int instance = info(part.kind()).has_microbatch
                           ? placement.instances().of(part.stage(), part.microbatch())
                           : placement.instance_on(own, part.stage());
  return placement.rank_of_instance(instance) == own;
}

void report_wrong_rank(const Action& action, ActionPart part, size_t rank,
                       const Placement& placement, const Place& place, Diagnostics* diagnostics) {
  const int instance = placement.instances().of(part.stage(), part.microbatch());
  const int expected = placement.rank_of_instance(instance);
  std::string puts = fmt::format(
      "{} on rank {}",
      name_of_instance(instance, placement.num_stages(), placement.num_replicas() > 1), expected);
  if (placement.num_replicas() > 1 && !info(part.kind()).has_microbatch)
    puts = fmt::format("stage {} on ranks {} and {}", part.stage(), expected,
                       placement.rank_of_instance(instance + placement.num_stages()));
  diagnostics
      ->error(Rule::kWrongRank,
              fmt::format("{} is on rank {}, but the placement puts {}", quoted_action(action),
                          rank, puts),
              place)
      .help = wrong_rank_help(action, part, expected);
}

// The first microbatch of replica 1, if there are two: each runs one half. At least 1.
int second_from(int num_microbatches, int slices) {
  return std::max(1, num_microbatches / slices / 2 * slices);
}

bool check_halves(int num_microbatches, int slices, const Place& place, Diagnostics* diagnostics) {
  if (num_microbatches / slices % 2 == 0) return true;
  diagnostics
      ->error(Rule::kPlacement,
              fmt::format("2 replicas: expected an even number of microbatches, got {}",
                          num_microbatches / slices),
              place)
      .help = "each replica runs one half of them";
  return false;
}

bool report_missing_instances(const std::vector<FirstUse>& instances,
                              const InstanceNumbers& numbers, Diagnostics* diagnostics) {
  bool complete = true;
  for (size_t one = 0; one < instances.size(); ++one) {
    if (instances[one].rank != kNoRank) continue;
    diagnostics
        ->error(Rule::kStageMissing,
                fmt::format("{} has no action on any rank",
                            name_of_instance(static_cast<int>(one), numbers.num_stages, true)))
        .help = fmt::format("replica 1 runs the microbatches from {} on", numbers.second_from);
    complete = false;
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
        .help = "remove the row, or place a stage on the rank";
    complete = false;
  }
  return complete;
}

}  // namespace

std::optional<FoundShape> find_shape(const Rows& rows, int slices, int replicas,
                                     const CellIndex& cells, Diagnostics* diagnostics) {
  if (rows.empty()) {
    diagnostics->error(Rule::kEmptyFile, "the file has no rows");
    return std::nullopt;
  }
  bool good = report_empty_ranks(rows, cells, diagnostics);
  const bool has_replicas = replicas > 1;
  InstanceNumbers numbers;  // with one replica, the stages
  std::vector<FirstUse> instances;
  if (has_replicas) {
    const Highest highest = highest_in(rows);
    if (!check_halves(highest.microbatch + 1, slices, {}, diagnostics)) return std::nullopt;
    numbers = {highest.stage + 1, second_from(highest.microbatch + 1, slices)};
    instances.resize(2 * (static_cast<size_t>(highest.stage) + 1));
  }
  int num_microbatches = 0;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    const Row& row = rows[rank];
    for (size_t step = 0; step < row.size(); ++step) {
      for (const ActionPart part : row[step].parts()) {
        num_microbatches = std::max(num_microbatches, part.microbatch() + 1);
        if (has_replicas && !info(part.kind()).has_microbatch) continue;  // of either replica
        const auto instance = static_cast<size_t>(numbers.of(part.stage(), part.microbatch()));
        if (instance >= instances.size()) instances.resize(instance + 1);
        FirstUse& first = instances[instance];
        if (first.rank == kNoRank) {
          first.rank = static_cast<int>(rank);
          first.step = static_cast<int>(step);
        } else if (first.rank != static_cast<int>(rank)) {
          const int num_stages = has_replicas ? numbers.num_stages : INT_MAX;
          report_two_ranks(
              row[step], name_of_instance(static_cast<int>(instance), num_stages, has_replicas),
              first, rows, static_cast<int>(rank), static_cast<int>(step), diagnostics);
          good = false;
        }
      }
    }
  }
  diagnostics->find_places([&](int rank, int step) { return cells.place(rank, step); });
  good = (has_replicas ? report_missing_instances(instances, numbers, diagnostics)
                       : report_missing_stages(instances, diagnostics)) &&
         good;
  if (num_microbatches % slices != 0) {
    diagnostics->error(Rule::kShapeDiffers,
                       fmt::format("expected microbatches of {} slices each, got {} slices", slices,
                                   num_microbatches));
    good = false;
  }
  if (!good) return std::nullopt;
  const auto map_of = [&](size_t begin, size_t end) {
    std::vector<int> ranks;
    for (size_t one = begin; one < end; ++one) ranks.push_back(instances[one].rank);
    return Placement::custom(static_cast<int>(rows.size()), std::move(ranks));
  };
  if (!has_replicas) return FoundShape{map_of(0, instances.size()), num_microbatches};
  const size_t half = instances.size() / 2;
  const std::optional<Placement> both = join_replicas(map_of(0, half), map_of(half, 2 * half),
                                                      num_microbatches, slices, {}, diagnostics);
  if (!both) return std::nullopt;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    for (size_t step = 0; step < rows[rank].size(); ++step) {
      for (const ActionPart part : rows[rank][step].parts()) {
        if (is_on(part, rank, *both)) continue;
        report_wrong_rank(rows[rank][step], part, rank, *both,
                          cells.place(static_cast<int>(rank), static_cast<int>(step)), diagnostics);
        good = false;
      }
    }
  }
  return good ? std::optional(FoundShape{*both, num_microbatches}) : std::nullopt;
}

std::optional<Placement> join_replicas(const Placement& first, const Placement& second,
                                       int num_microbatches, int slices, const Place& place,
                                       Diagnostics* diagnostics) {
  if (!check_halves(num_microbatches, slices, place, diagnostics)) return std::nullopt;
  for (int stage = 0; stage < first.num_stages(); ++stage) {
    if (first.rank_of(stage) != second.rank_of(stage)) continue;
    diagnostics
        ->error(Rule::kPlacement,
                fmt::format("both replicas of stage {} are on rank {}: expected different ranks",
                            stage, first.rank_of(stage)),
                place)
        .help = "place the two replicas of a stage on different ranks";
    return std::nullopt;
  }
  return Placement::replicas(first, second, second_from(num_microbatches, slices));
}

bool check_declared_shape(const Schedule& schedule, Level level, const CellIndex& cells,
                          const Place& header, Diagnostics* diagnostics) {
  const Placement& placement = schedule.placement;
  const size_t before = diagnostics->total();
  if (schedule.rows.size() != static_cast<size_t>(placement.num_ranks())) {
    diagnostics
        ->error(Rule::kRowCount,
                fmt::format("expected {} (one per rank), got {}",
                            counted(placement.num_ranks(), "row", "rows"), schedule.rows.size()),
                header)
        .help = fmt::format("set `ranks: {}`, or list the row of each rank", schedule.rows.size());
  }
  std::optional<Highest> found;
  const auto highest = [&] { return *(found ? found : found = highest_in(schedule.rows)); };
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
            .help = "a lowered schedule has level compute_comms";
      }
      for (const ActionPart part : action.parts()) {
        if (part.stage() >= placement.num_stages()) {
          diagnostics
              ->error(Rule::kStageOutOfRange,
                      fmt::format("stage out of range in {}: expected 0 to {}, got {}",
                                  quoted_action(action), placement.num_stages() - 1, part.stage()),
                      place())
              .help = fmt::format("set `stages: {}`, or correct the action", highest().stage + 1);
        } else if (!is_on(part, rank, placement)) {
          report_wrong_rank(action, part, rank, placement, place(), diagnostics);
        }
        if (part.microbatch() >= schedule.num_microbatches) {
          diagnostics
              ->error(Rule::kMicrobatchOutOfRange,
                      fmt::format("microbatch out of range in {}: expected 0 to {}, got {}",
                                  quoted_action(action), schedule.num_microbatches - 1,
                                  part.microbatch()),
                      place())
              .help = fmt::format("set `microbatches: {}`, or correct the action",
                                  highest().microbatch / schedule.slices + 1);
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
  const auto check = [&](std::string_view what, std::optional<int> expected_number, int number) {
    if (!expected_number || *expected_number == number) return;
    diagnostics->error(Rule::kShapeDiffers,
                       fmt::format("expected {} {}, got {}", *expected_number, what, number));
    good = false;
  };
  check("ranks", expected.ranks, schedule.placement.num_ranks());
  check("stages", expected.stages, schedule.placement.num_stages());
  check("microbatches", expected.microbatches, schedule.num_microbatches / schedule.slices);
  check("slices", expected.slices, schedule.slices);
  check("replicas", expected.replicas, schedule.placement.num_replicas());
  return good;
}

bool check_no_idle(const Rows& rows, const CellIndex& cells, Diagnostics* diagnostics) {
  const size_t before = diagnostics->total();
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    for (size_t step = 0; step < rows[rank].size(); ++step) {
      if (!rows[rank][step].is_idle()) continue;
      diagnostics
          ->error(Rule::kIdleInProgram,
                  fmt::format("empty cell at step {} of rank {} in a lowered program", step, rank),
                  cells.place(static_cast<int>(rank), static_cast<int>(step)))
          .help = "remove the cell; only a compute order has idle slots";
    }
  }
  return diagnostics->total() == before;
}

}  // namespace pipewright::ir
