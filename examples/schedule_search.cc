#include "examples/schedule_search.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "examples/usage_error.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/text/read.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/graph/peaks.h"
#include "pipewright/schedule/search/front.h"
#include "pipewright/schedule/search/search.h"

namespace pipewright::examples {
namespace {

namespace search = schedule::search;

// About a second on one core; all other ranks wait for it.
constexpr int64_t kEvaluations = 30'000'000;

search::SearchRequest request_of(const Options& options, int stages_per_rank, Backwards backwards,
                                 const schedule::Costs& costs, std::optional<double> activations) {
  return {.placement = search::named_placement(stages_per_rank == 1 ? "loop" : "v", options.pp,
                                               options.pp * stages_per_rank),
          .num_microbatches = options.microbatches,
          .costs = costs,
          .memory = {.activations = activations},
          .splits_backward = backwards == Backwards::kSplit,
          .evaluations = kEvaluations};
}

schedule::CompileResult compiled(schedule::CompileRequest request) {
  schedule::CompileResult result = schedule::compile(std::move(request));
  if (!result.ok()) throw std::logic_error(result.diagnostics.kept().front().message);
  return result;
}

FoundSchedule predicted(const schedule::CompileResult& result, std::string found_by,
                        const schedule::Costs& costs, std::optional<double> activations) {
  const schedule::SimulateResult simulated = schedule::simulate(result, {.costs = costs});
  if (!simulated.ok()) throw std::logic_error(simulated.diagnostics.kept().front().message);
  const schedule::Report& report = simulated.simulation->report;
  const double unit = ir::seconds_per(costs.unit).value_or(1);
  return {.program = result.program(),
          .found_by = std::move(found_by),
          .activations = activations,
          .seconds = unit * report.makespan,
          .bubble = report.bubble_rate,
          .costs = costs};
}

}  // namespace

std::vector<int> stages_to_search(const Options& options) {
  if (options.stages_per_rank > 0) return {options.stages_per_rank};
  return {1, 2};
}

FoundSchedule find_schedule(const Options& options, int stages_per_rank, Backwards backwards,
                            const schedule::Costs& costs, std::optional<double> activations) {
  const search::SearchRequest request =
      request_of(options, stages_per_rank, backwards, costs, activations);
  const schedule::Problem problem = search::problem_of(request);
  if (const auto shortage = search::shortage_of(problem)) {
    std::ostringstream text;
    text << "--search-memory: expected at least "
         << static_cast<double>(shortage->least) /
                static_cast<double>(problem.activation_of(shortage->rank))
         << " activations, which one microbatch needs alone, got " << *activations;
    throw UsageError(text.str());
  }
  search::SearchResult found = search::search_schedule(request);
  return predicted(compiled({.source = ir::AnySchedule(std::move(found.order))}), found.found_by,
                   costs, activations);
}

std::optional<FoundSchedule> usual_schedule(const Options& options, int stages_per_rank,
                                            const schedule::Costs& costs,
                                            std::optional<double> activations) {
  if (stages_per_rank != 1) return std::nullopt;
  const schedule::CompileResult result = compiled(
      {.source = "1F1B", .shape = {.ranks = options.pp, .microbatches = options.microbatches}});
  for (const ir::Row& row : result.program().rows) {
    if (activations && schedule::peak_activations(row, /*has_backward=*/true).amount > *activations)
      return std::nullopt;
  }
  return predicted(result, "1F1B", costs, activations);
}

ir::Program program_to_measure(const Options& options, int stages_per_rank) {
  return find_schedule(options, stages_per_rank, Backwards::kSplit, {}, options.search_limit())
      .program;
}

std::string text_of(const std::vector<FoundSchedule>& tried) {
  const FoundSchedule& found = tried.front();
  std::ostringstream text;
  text.precision(3);
  text << "found:    " << found.found_by << ", ";
  if (found.activations)
    text << "at most " << *found.activations << " activations per rank";
  else
    text << "no memory limit";
  text << "; predicted " << 1e3 * found.seconds << " ms per step, bubble " << 100 * found.bubble
       << "%\ntried:    ";
  for (const FoundSchedule& one : tried) {
    text << (&one == &found ? "" : "; ") << one.found_by << " with "
         << one.program.placement.num_stages() << " stages, " << 1e3 * one.measured_seconds
         << " ms";
  }
  return text.str();
}

std::string to_text(const FoundSchedule& found) {
  std::ostringstream text;
  text.precision(17);
  text << found.found_by << '\n'
       << found.activations.value_or(0) << ' ' << found.seconds << ' ' << found.bubble << ' '
       << found.measured_seconds << '\n';
  ir::find_format("plan")->print(found.program, text);
  return text.str();
}

FoundSchedule from_text(const std::string& text) {
  std::istringstream lines(text);
  FoundSchedule found;
  double activations = 0;
  std::getline(lines, found.found_by);
  lines >> activations >> found.seconds >> found.bubble >> found.measured_seconds >> std::ws;
  if (activations > 0) found.activations = activations;
  const ir::Source plan{"schedule found by rank 0",
                        std::string{std::istreambuf_iterator<char>(lines), {}}};
  found.program = compiled({.source = &plan}).program();
  return found;
}

}  // namespace pipewright::examples
