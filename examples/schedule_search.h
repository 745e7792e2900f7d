#ifndef PIPEWRIGHT_EXAMPLES_SCHEDULE_SEARCH_H_
#define PIPEWRIGHT_EXAMPLES_SCHEDULE_SEARCH_H_

#include <optional>
#include <string>
#include <vector>

#include "examples/options.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/problem/costs.h"

// The schedules of `--schedule search`: one to measure costs with, and those to try.

namespace pipewright::examples {

// A schedule that was tried.
struct FoundSchedule {
  ir::Program program;
  std::string found_by;               // a schedule of the catalogue, or "search"
  std::optional<double> activations;  // the memory limit of each rank; nullopt: none
  double seconds = 0;                 // predicted, per step
  double bubble = 0;                  // predicted, as a rate
  double measured_seconds = 0;        // of the fastest step when it was tried
  schedule::Costs costs = {};         // that it was searched for; on rank 0
};

enum class Backwards { kSplit, kWhole };

// The numbers of stages per rank to search with: that of --stages-per-rank, or 1 and 2.
std::vector<int> stages_to_search(const Options& options);

// The best schedule that a short search finds for measured costs, whose unit must be one of time,
// with at most `activations` on each rank: 1 is what a microbatch leaves on all stages of a rank.
// Several stages per rank are in a V. The catalogue's schedules are part of the search: 1F1B for
// one stage per rank and whole backwards. Throws UsageError if no schedule needs so little memory.
// Returns the same for equal arguments.
FoundSchedule find_schedule(const Options& options, int stages_per_rank, Backwards backwards,
                            const schedule::Costs& costs, std::optional<double> activations);

// 1F1B as it is, for stages_per_rank = 1: what training would take without a search. Nullopt for
// other stages, or if it needs more than `activations`.
std::optional<FoundSchedule> usual_schedule(const Options& options, int stages_per_rank,
                                            const schedule::Costs& costs,
                                            std::optional<double> activations);

// The schedule to measure with: found for stages, F, I and W of equal cost, in the same placement
// and the memory of --search-memory.
ir::Program program_to_measure(const Options& options, int stages_per_rank);

// "found: ..., predicted ..." of the first, which was the fastest, and "tried: ..." of all, for
// people.
std::string text_of(const std::vector<FoundSchedule>& tried);

// For other ranks: what rank 0 has found, and back.
std::string to_text(const FoundSchedule& found);
FoundSchedule from_text(const std::string& text);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_SCHEDULE_SEARCH_H_
