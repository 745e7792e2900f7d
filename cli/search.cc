#include "pipewright/schedule/search/search.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <csignal>
#include <ostream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/commands.h"
#include "pipewright/cli/files.h"
#include "pipewright/cli/simulation.h"
#include "pipewright/cli/usage_error.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/read.h"
#include "pipewright/schedule/search/front.h"
#include "pipewright/schedule/search/words.h"

namespace pipewright::cli {
namespace {

namespace search = schedule::search;

// Words to numbers of evaluations. One takes about 30 ns.
struct Budget {
  std::string_view name;
  int64_t evaluations;
};
constexpr Budget kBudgets[] = {
    {"small", 10'000'000}, {"medium", search::kDefaultEvaluations}, {"large", 2'000'000'000}};
constexpr int64_t kMostActions = 50'000'000;

// ---- options

// A number above 0.
double positive_number(const std::string& option, std::string_view text) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || !(value > 0) || value > 1e18)
    throw UsageError(fmt::format("{}: expected a number above 0, up to 1e+18, got {}", option,
                                 ir::backticked(text)));
  return value;
}

int64_t budget_of(const Invocation& invocation) {
  const std::string text = invocation.text("--budget").value_or("medium");
  for (const Budget& budget : kBudgets) {
    if (text == budget.name) return budget.evaluations;
  }
  int64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop != text.data() + text.size() || number < 1)
    throw UsageError(
        fmt::format("--budget: expected small, medium, large or a whole number from 1, got {}",
                    ir::backticked(text)));
  return number;
}

int required_number(const Invocation& invocation, const std::string& option) {
  const auto number = invocation.number(option);
  if (!number) throw UsageError(fmt::format("search requires {}", option));
  return *number;
}

// What is asked for, with the costs that fit it.
struct Asked {
  std::string placement;  // "loop", "v", "wave" or "free"
  int ranks = 0, stages = 0;
  search::SearchRequest request;
};

ir::Placement placement_of(const Asked& asked) {
  const auto refuse = [&](const std::string& expected) {
    throw UsageError(fmt::format("--placement {}: expected {}, got {} stages on {} ranks",
                                 asked.placement, expected, asked.stages, asked.ranks));
  };
  const int ranks = asked.ranks, stages = asked.stages;
  if (stages > search::kMaxSearchStages)
    refuse(fmt::format("at most {} stages", search::kMaxSearchStages));
  if (asked.placement == "v" && (stages % ranks != 0 || stages < 2 * ranks))
    refuse("a multiple of the ranks, at least 2 stages per rank");
  if (asked.placement == "wave" && (stages % (2 * ranks) != 0 || stages < 4 * ranks))
    refuse("an even number of stages per rank, at least 4");
  if (stages < ranks) refuse("at least one stage per rank");
  return asked.placement == "loop" ? ir::Placement::loop(ranks, stages)
                                   : ir::Placement::v(ranks, stages);
}

search::MemoryBudget memory_of(const Invocation& invocation, const schedule::Costs& costs) {
  const auto activations = invocation.text("--memory"), bytes = invocation.text("--memory-bytes");
  if (activations && bytes) throw UsageError("--memory cannot be used with --memory-bytes");
  if (activations) return {.activations = positive_number("--memory", *activations)};
  if (!bytes) return {};
  if (costs.activation_bytes.is_zero())
    throw UsageError("--memory-bytes requires --costs FILE with activation_bytes");
  return {.bytes = positive_number("--memory-bytes", *bytes)};
}

// The costs after the what-if options. They must fit a schedule with this placement; otherwise
// prints the errors and throws Failed.
schedule::Costs costs_for(const AskedCosts& asked, const ir::Placement& placement,
                          int num_microbatches, Console& console) {
  ir::Diagnostics diagnostics;
  const auto costs =
      schedule::changed_costs(asked.request, placement, num_microbatches, &diagnostics);
  if (!costs) {
    print_diagnostics(diagnostics, asked.file ? &*asked.file : nullptr,
                      asked.file ? ir::printable(asked.file->name) : "the costs", console);
    throw Failed{kExitTrouble};
  }
  return *costs;
}

Asked read_request(const Invocation& invocation, Console& console) {
  Asked asked;
  asked.placement = invocation.text("--placement").value_or("loop");
  asked.ranks = required_number(invocation, "--ranks");
  search::SearchRequest& request = asked.request;
  request.num_microbatches = required_number(invocation, "--microbatches");
  const bool is_free = asked.placement == "free";
  const int per_rank = asked.placement == "v" ? 2 : asked.placement == "wave" ? 4 : 1;
  const int64_t stages = invocation.number("--stages")
                             .value_or(std::min<int64_t>(int64_t{per_rank} * asked.ranks, 1 << 30));
  asked.stages = static_cast<int>(stages);
  const int64_t actions = 3 * stages * request.num_microbatches;
  if (stages <= search::kMaxSearchStages && actions > kMostActions)
    throw UsageError(
        fmt::format("expected at most {} actions, got {}: 3 for each of {} stages and "
                    "{} microbatches",
                    kMostActions, actions, stages, request.num_microbatches));
  // With free, costs are checked against the stages that they are given for, wherever those are.
  request.placement = is_free && stages <= search::kMaxSearchStages
                          ? ir::Placement::loop(asked.ranks, asked.stages)
                          : placement_of(asked);
  request.evaluations = budget_of(invocation);
  request.threads =
      invocation.number("--threads")
          .value_or(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  request.seed = static_cast<uint64_t>(invocation.number("--seed").value_or(1));
  request.splits_backward = !invocation.has("--merge-backward");
  if (const auto sigma = invocation.text("--robust")) {
    request.noise = positive_number("--robust", *sigma);
    if (request.noise > 2) throw UsageError("--robust: expected a number up to 2");
  }
  request.costs = costs_for(read_costs(invocation, console), request.placement,
                            request.num_microbatches, console);
  request.memory = memory_of(invocation, request.costs);
  return asked;
}

std::string memory_text(const search::SearchRequest& request) {
  if (request.memory.bytes)
    return fmt::format("{} bytes per rank", number_text(*request.memory.bytes));
  if (request.memory.activations)
    return fmt::format("{} activations per rank", number_text(*request.memory.activations));
  return "no memory limit";
}

// The memory of one microbatch on all stages of a rank, in the problem's units: what --memory
// counts.
double activations_unit(const search::Problem& problem, int rank) {
  search::Memory sum = 0;
  for (const int stage : problem.placement.stages_of(rank)) sum += problem.work(stage).activation;
  return static_cast<double>(sum);
}

// Ends the command if a rank has too little memory for any schedule.
void require_memory(const search::SearchRequest& request) {
  const search::Problem problem = search::problem_of(request);
  const auto shortage = search::shortage_of(problem);
  if (!shortage) return;
  if (request.memory.activations)
    throw UsageError(
        fmt::format("--memory: no schedule fits rank {}: expected at least {} activations, got {}",
                    shortage->rank,
                    number_text(static_cast<double>(shortage->least) /
                                activations_unit(problem, shortage->rank)),
                    number_text(*request.memory.activations)));
  const double missing =
      static_cast<double>(shortage->least - shortage->limit) * problem.memory_unit;
  throw UsageError(fmt::format(
      "--memory-bytes: no schedule fits rank {}: expected at least {:.0f} bytes, got {:.0f}",
      shortage->rank, std::ceil(*request.memory.bytes + missing), *request.memory.bytes));
}

// ---- output

// Peaks per rank in the unit of the limit: bytes, or activations of one microbatch on all stages of
// the rank.
std::vector<double> memory_per_rank(const search::SearchRequest& request,
                                    const search::SearchResult& result) {
  const search::Problem problem = search::problem_of(request);
  std::vector<double> peaks;
  for (int rank = 0; rank < problem.num_ranks(); ++rank) {
    const auto peak = static_cast<double>(result.peak_memory[static_cast<size_t>(rank)]);
    peaks.push_back(request.memory.bytes ? peak * problem.memory_unit
                                         : peak / activations_unit(problem, rank));
  }
  return peaks;
}

std::string bound_text(const schedule::Bound& bound) {
  std::string name(bound.name);
  std::ranges::replace(name, '_', ' ');
  std::string text = bound.rank < 0 ? name : fmt::format("{}, rank {}", name, bound.rank);
  if (bound.other >= 0) text += fmt::format(" around rank {}", bound.other);
  return text;
}

std::string gap_text(const search::SearchResult& result) {
  return result.cost_in_ticks == result.bound.value
             ? "optimal"
             : fmt::format("at most {:.2f}% above the optimum", 100 * result.gap());
}

void print_text(const Asked& asked, const search::SearchRequest& request,
                const search::SearchResult& result, std::ostream& out) {
  const search::Problem problem = search::problem_of(request);
  const std::string unit = request.costs.unit.empty() ? "" : " " + request.costs.unit;
  out << fmt::format("{}: {}, {}\n", asked.placement, shape_text(result.order),
                     memory_text(request));
  out << fmt::format("cost           {}{}, {}\n", number_text(result.cost), unit, gap_text(result));
  out << fmt::format("bound          {}{}: {}\n", number_text(problem.time(result.bound.value)),
                     unit, bound_text(result.bound));
  out << fmt::format("makespan       {}{}\n", number_text(result.makespan), unit);
  out << fmt::format("bubble rate    {:.4f}\n", result.bubble_rate);
  const std::vector<double> peaks = memory_per_rank(request, result);
  const auto [least, most] = std::ranges::minmax(peaks);
  out << fmt::format("peak memory    {} {}\n",
                     least == most ? number_text(most)
                                   : fmt::format("{} to {}", number_text(least), number_text(most)),
                     request.memory.bytes ? "bytes per rank" : "activations per rank");
  out << fmt::format("found by       {}, {} evaluations\n", result.found_by, result.evaluations);
  if (result.robustness) {
    const search::Robustness& robust = *result.robustness;
    out << fmt::format(
        "robustness     noise of {}: makespan +{} on average, 95% below +{}; a rank 5% slower "
        "+{}, transfers twice as slow +{}\n",
        number_text(request.noise), percent_text(robust.mean), percent_text(robust.percentile_95),
        percent_text(robust.slow_rank), percent_text(robust.slow_links));
  }
}

std::string bound_json(const search::Problem& problem, const schedule::Bound& bound) {
  std::string terms;
  for (const schedule::BoundTerm& term : bound.terms)
    terms +=
        fmt::format("{}\"{}\": {}", terms.empty() ? "" : ", ", term.name, problem.time(term.value));
  return fmt::format(
      "{{\"value\": {}, \"name\": \"{}\", \"rank\": {}, \"other\": {}, \"terms\": {{{}}}}}",
      problem.time(bound.value), bound.name, bound.rank < 0 ? "null" : std::to_string(bound.rank),
      bound.other < 0 ? "null" : std::to_string(bound.other), terms);
}

std::string robustness_json(const search::SearchResult& result) {
  if (!result.robustness) return "null";
  const search::Robustness& robust = *result.robustness;
  return fmt::format(
      "{{\"mean\": {}, \"percentile_95\": {}, \"slow_rank\": {}, \"slow_links\": {}}}", robust.mean,
      robust.percentile_95, robust.slow_rank, robust.slow_links);
}

// The members of the JSON object, each line indented by `indent`.
std::string result_json(const std::string& placement, const search::SearchRequest& request,
                        const search::SearchResult& result, std::string_view indent) {
  const search::Problem problem = search::problem_of(request);
  const std::string members[] = {
      fmt::format("\"cost\": {}", result.cost),
      fmt::format("\"makespan\": {}", result.makespan),
      fmt::format("\"bubble_rate\": {}", result.bubble_rate),
      fmt::format("\"bound\": {}", bound_json(problem, result.bound)),
      fmt::format("\"gap\": {}", result.gap()),
      fmt::format("\"evaluations\": {}", result.evaluations),
      fmt::format("\"placement\": \"{}\"", placement),
      fmt::format("\"stages\": {}", result.order.placement.num_stages()),
      fmt::format("\"memory_per_rank\": [{}]", fmt::join(memory_per_rank(request, result), ", ")),
      fmt::format("\"memory_unit\": \"{}\"", request.memory.bytes ? "bytes" : "activations"),
      fmt::format("\"found_by\": \"{}\"", result.found_by),
      fmt::format("\"robustness\": {}", robustness_json(result)),
      fmt::format("\"interrupted\": {}", result.is_cancelled),
  };
  return fmt::format("{}{}", indent, fmt::join(members, fmt::format(",\n{}", indent)));
}

// ---- several placements

search::SearchRequest request_of(const Asked& asked, const search::FrontPoint& point) {
  search::SearchRequest request = asked.request;
  request.placement = point.option.placement;
  request.costs = search::cut_stages(asked.request.costs, asked.stages, point.option.parts);
  request.memory = point.memory;
  return request;
}

// One line per search, and a bar for its idle time: the picture of the front.
void print_front(const std::vector<search::FrontPoint>& points, std::ostream& out) {
  out << fmt::format("  {:>12}  {:<9}  {:>6}  {:>10}  {:>10}  {:>6}  {:>6}\n", "memory",
                     "placement", "stages", "cost", "bound", "gap", "bubble");
  for (const search::FrontPoint& point : points) {
    const search::SearchResult& result = point.result;
    const double memory =
        point.memory.bytes ? *point.memory.bytes : point.memory.activations.value_or(0);
    const auto bar = static_cast<size_t>(50 * result.bubble_rate + 0.5);
    out << fmt::format("{} {:>12}  {:<9}  {:>6}  {:>10}  {:>10}  {:>6}  {:>6}{}{}\n",
                       point.is_best ? "*" : " ", memory > 0 ? number_text(memory) : "unlimited",
                       point.option.name, point.option.placement.num_stages(),
                       number_text(result.cost), number_text(result.cost / (1 + result.gap())),
                       fmt::format("{:.2f}%", 100 * result.gap()), percent_text(result.bubble_rate),
                       bar > 0 ? "  " : "", std::string(bar, '#'));
  }
  out << "* nothing else found needs no more memory and costs less\n";
}

// ---- Ctrl-C and progress

// A signal handler can only reach a global.
std::atomic<bool> g_interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free, "set from a signal handler");

extern "C" void interrupt(int signal) {
  g_interrupted = true;
  std::signal(signal, SIG_DFL);  // a second Ctrl-C ends the program
}

// Turns Ctrl-C into a request to stop, while it lives.
class StopOnInterrupt {
 public:
  StopOnInterrupt() {
    g_interrupted = false;
    previous_ = std::signal(SIGINT, interrupt);
  }
  ~StopOnInterrupt() { std::signal(SIGINT, previous_); }
  StopOnInterrupt(const StopOnInterrupt&) = delete;
  StopOnInterrupt& operator=(const StopOnInterrupt&) = delete;

 private:
  void (*previous_)(int);
};

// A line on the terminal that is overwritten.
void show_progress(const search::SearchProgress& progress, Console& console) {
  console.err << fmt::format("\rcost {}  bound {}  gap {:.3f}%  evaluations {:.3g}\x1b[K",
                             number_text(progress.cost), number_text(progress.bound),
                             progress.bound > 0 ? 100 * (progress.cost / progress.bound - 1) : 0,
                             static_cast<double>(progress.evaluations))
              << std::flush;
}

// Writes the compute order in the format of the path's extension, or as a .plan.
void write_order(const std::string& path, const ir::ComputeOrder& order, Console& console) {
  const ir::FormatInfo* format = &ir::info(ir::Format::kPlan);
  for (const ir::FormatInfo& one : ir::formats()) {
    if (path.ends_with(one.extension)) format = &one;
  }
  write_output(path, console,
               [&](std::ostream& out) { format->print(ir::AnySchedule(order), out); });
}

}  // namespace

std::vector<OptionSpec> search_options() {
  return std::vector<OptionSpec>{
      {"--ranks", "", {ValueKind::kNumber, "P", {}}, "number of ranks; required"},
      {"--microbatches", "", {ValueKind::kNumber, "M", {}}, "number of microbatches; required"},
      {"--placement",
       "",
       {ValueKind::kChoice, "PLACEMENT", {"loop", "v", "wave", "free"}},
       "how stages are placed on ranks; wave goes back and forth twice or more, free tries them "
       "all "
       "with several amounts of memory; default: loop"},
      {"--stages",
       "",
       {ValueKind::kNumber, "S", {}},
       "number of stages; default: P for loop and free, 2P for v, 4P for wave"},
      {"--memory",
       "",
       {ValueKind::kText, "K", {}},
       "activations per rank: 1 is one microbatch on all stages of a rank; I frees half of it and "
       "W "
       "the rest, unless --costs has sizes; default: no limit"},
      {"--memory-bytes",
       "",
       {ValueKind::kText, "BYTES", {}},
       "memory per rank for activations, parameters, gradients and receive buffers, with the sizes "
       "of --costs"},
      {"--budget",
       "",
       {ValueKind::kText, "N", {}},
       "actions to evaluate: small (1e7), medium (2e8, the default), large (2e9) or a number; "
       "1e8 take some 3 seconds"},
      {"--robust",
       "",
       {ValueKind::kText, "SIGMA", {}},
       "of the good schedules, take the one with the least mean makespan under log-normal noise of "
       "standard deviation SIGMA"},
      {"--merge-backward", "", {}, "use whole backwards (B) only"},
      {"--threads",
       "",
       {ValueKind::kNumber, "N", {}},
       "threads to use, which does not change the result; default: one per core"},
      {"--seed", "", {ValueKind::kNumber, "N", {}}, "seed of the search; default: 1"},
      {"--output",
       "-o",
       {ValueKind::kFile, "FILE", {}},
       "write the schedule to FILE, as .plan, .csv or .json"},
      {"--json", "", {}, "print the result as JSON"},
  };
}

int run_search(const Invocation& invocation, Console& console) {
  Asked asked = read_request(invocation, console);
  search::SearchRequest& request = asked.request;
  require_memory(request);
  const bool shows_progress = ::isatty(STDERR_FILENO) != 0 && !invocation.has("--json");
  if (shows_progress)
    request.on_progress = [&](const search::SearchProgress& progress) {
      show_progress(progress, console);
    };
  StopOnInterrupt stop;
  request.cancel = &g_interrupted;

  std::vector<search::FrontPoint> points;
  search::SearchResult result;
  search::SearchRequest best = request;
  if (asked.placement == "free") {
    points = search::search_front(request, asked.stages,
                                  search::placement_options(asked.ranks, asked.stages));
    const auto cheapest = std::ranges::min_element(
        points, {}, [](const search::FrontPoint& point) { return point.result.cost; });
    if (cheapest == points.end())
      throw UsageError(
          fmt::format("--placement free: expected stages that can be cut into 1, 2 or 4 per rank, "
                      "got {} on {} ranks",
                      asked.stages, asked.ranks));
    best = request_of(asked, *cheapest);
    asked.placement = cheapest->option.name;
    result = cheapest->result;
  } else {
    result = search::search_schedule(request);
  }
  if (shows_progress) console.err << "\r\x1b[K" << std::flush;
  if (g_interrupted) console.err << "interrupted: this is the best schedule so far\n";
  const std::string path = invocation.text("--output").value_or("");
  if (!path.empty()) write_order(path, result.order, console);
  std::ostream& out = path == "-" ? console.err : console.out;

  if (invocation.has("--json")) {
    std::string front;
    for (const search::FrontPoint& point : points)
      front += fmt::format(
          "{}\n    {{\n{},\n      \"is_best\": {}\n    }}", front.empty() ? "" : ",",
          result_json(point.option.name, request_of(asked, point), point.result, "      "),
          point.is_best);
    out << fmt::format("{{\n  \"version\": 1,\n{}{}\n}}\n",
                       result_json(asked.placement, best, result, "  "),
                       points.empty() ? "" : fmt::format(",\n  \"front\": [{}\n  ]", front));
    return kExitOk;
  }
  if (!points.empty()) {
    print_front(points, out);
    out << '\n';
  }
  print_text(asked, best, result, out);
  return kExitOk;
}

}  // namespace pipewright::cli
