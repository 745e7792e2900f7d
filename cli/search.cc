#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/files.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/cli/json.h"
#include "pipewright/cli/search_request.h"
#include "pipewright/cli/views.h"
#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/read.h"
#include "pipewright/schedule/problem/costs_json.h"
#include "pipewright/schedule/problem/layers.h"
#include "pipewright/schedule/search/cuts.h"

namespace pipewright::cli {
namespace {

namespace search = schedule::search;

// A signal handler can only reach globals.
std::atomic<bool> g_interrupted = false;
std::atomic<int64_t> g_interrupted_ms = 0;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free,
              "set from a signal handler");

// `timeout -s INT` signals its child and then the child's process group: two signals, one wish.
constexpr int64_t kSameInterruptMs = 200;

int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);  // may be called from a signal handler
  return now.tv_sec * int64_t{1000} + now.tv_nsec / 1'000'000;
}

// The first interrupt asks the search to stop, a later one ends the program.
extern "C" void interrupt(int signal) {
  const int64_t now = now_ms();
  if (!g_interrupted.exchange(true)) {
    g_interrupted_ms = now;
  } else if (now - g_interrupted_ms >= kSameInterruptMs) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
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
void show_progress(const search::SearchProgress& progress, int num_microbatches, Console& console) {
  const std::string part =
      progress.num_microbatches == num_microbatches
          ? ""
          : fmt::format("first for {}: ",
                        ir::counted(progress.num_microbatches, "microbatch", "microbatches"));
  console.err << fmt::format("\r{}cost {}  bound {}  gap {:.3f}%  evaluations {:.3g}\x1b[K", part,
                             number_text(progress.cost), number_text(progress.bound),
                             progress.bound > 0 ? 100 * (progress.cost / progress.bound - 1) : 0,
                             static_cast<double>(progress.evaluations))
              << std::flush;
}

// "2e+09", "8, 4, 4"
std::string numbers_text(const schedule::PerRank& numbers) {
  std::string text;
  for (const double number : numbers.values())
    text.append(text.empty() ? "" : ", ").append(number_text(number));
  return text;
}

std::string memory_text(const schedule::MemoryBudget& memory) {
  if (memory.bytes) return numbers_text(*memory.bytes) + " bytes per rank";
  if (!memory.activations) return "no memory limit";
  return (memory.activations->is_list() ? numbers_text(*memory.activations) + " activations"
                                        : activations_text(memory.activations->at(0))) +
         " per rank";
}

Json memory_json(const schedule::MemoryBudget& memory) {
  const std::optional<schedule::PerRank> limit = memory.limit();
  if (!limit) return nullptr;
  return limit->is_list() ? Json(limit->values()) : Json(limit->at(0));
}

// Peaks per rank in the unit of the limit: bytes, of activations only, or activations of one
// microbatch on all stages of the rank.
std::vector<double> memory_per_rank(const search::SearchRequest& request,
                                    const search::SearchResult& result) {
  const schedule::Problem& problem = result.problem;
  std::vector<double> peaks;
  for (int rank = 0; rank < problem.num_ranks(); ++rank) {
    const auto peak = static_cast<double>(result.peak_memory[static_cast<size_t>(rank)]);
    peaks.push_back(request.memory.bytes ? peak * problem.memory_unit
                                         : peak / static_cast<double>(problem.activation_of(rank)));
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

Json robustness_json(const search::Robustness& robust) {
  return {{"mean", robust.mean},
          {"percentile_95", robust.percentile_95},
          {"slow_rank", robust.slow_rank},
          {"slow_links", robust.slow_links}};
}

// The result of one search. `placement` is its name on the command line.
void print_result(const std::string& placement, const search::SearchRequest& request,
                  const search::SearchResult& result, std::ostream& out) {
  const std::string unit = unit_text(request.costs.unit);
  out << fmt::format("{}: {}, {}\n", placement, shape_text(result.order),
                     memory_text(request.memory));
  out << fmt::format("cost           {}{}, {}\n", number_text(result.cost), unit, gap_text(result));
  out << fmt::format("bound          {}{}: {}\n",
                     number_text(result.problem.time(result.bound.value)), unit,
                     bound_text(result.bound));
  out << fmt::format("makespan       {}{}\n", number_text(result.makespan), unit);
  out << fmt::format("bubble rate    {:.4f}\n", result.bubble_rate);
  const std::vector<double> peaks = memory_per_rank(request, result);
  const auto [least, most] = std::ranges::minmax(peaks);
  const std::string last =
      request.memory.bytes ? number_text(most) + " bytes of activations" : activations_text(most);
  out << fmt::format("peak memory    {} per rank\n",
                     least == most ? last : fmt::format("{} to {}", number_text(least), last));
  if (!result.order.cut.empty())
    out << fmt::format("cut            {}\n", cut_text(result.order.cut));
  if (request.may_recompute)
    out << fmt::format("recompute      {}\n", stages_text(result.order.recompute, result.order));
  if (request.may_offload)
    out << fmt::format("offload        {}\n", stages_text(result.order.offload, result.order));
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

// Adds the result of one search to a JSON object.
void add_result(const std::string& placement, const search::SearchRequest& request,
                const search::SearchResult& result, Json* json) {
  const auto time = [&](schedule::Ticks ticks) { return result.problem.time(ticks); };
  json->update(
      {{"cost", result.cost},
       {"makespan", result.makespan},
       {"bubble_rate", result.bubble_rate},
       {"bound", bound_json(result.bound, time)},
       {"gap", result.gap()},
       {"evaluations", result.evaluations},
       {"placement", placement},
       {"stages", result.order.placement.num_stages()},
       {"replicas", result.order.placement.num_replicas()},
       {"recompute", result.order.recompute},
       {"offload", result.order.offload},
       {"cut", result.order.cut.empty() ? Json(nullptr) : Json(result.order.cut)},
       {"memory_per_rank", memory_per_rank(request, result)},
       {"memory_unit", request.memory.bytes ? "bytes" : "activations"},
       {"found_by", result.found_by},
       {"robustness", result.robustness ? robustness_json(*result.robustness) : Json(nullptr)},
       {"interrupted", result.is_cancelled}});
}

// Ends the command because no cut fits the memory.
[[noreturn]] void require_fit(const search::SearchRequest& request) {
  const schedule::Cut even =
      schedule::even_cut(schedule::num_layers(request.costs), request.placement.num_stages());
  const auto shortage = search::shortage_of(search::problem_of(search::with_cut(request, even)));
  throw UsageError(
      fmt::format("--layers: found no cut that fits {}: of the even one {}, rank {} does not fit",
                  memory_text(request.memory), cut_text(even), shortage ? shortage->rank : 0));
}

// One line per search, and a bar for its idle time: the picture of the front.
void print_front(const std::vector<search::FrontPoint>& points, std::ostream& out) {
  out << fmt::format("  {:>12}  {:<9}  {:>6}  {:>10}  {:>10}  {:>6}  {:>6}\n", "memory",
                     "placement", "stages", "cost", "bound", "gap", "bubble");
  for (const search::FrontPoint& point : points) {
    const search::SearchResult& result = point.result;
    const std::optional<schedule::PerRank> memory = point.memory.limit();
    const auto bar = static_cast<size_t>(50 * result.bubble_rate + 0.5);
    out << fmt::format("{} {:>12}  {:<9}  {:>6}  {:>10}  {:>10}  {:>6}  {:>6}{}{}\n",
                       point.is_best ? "*" : " ", memory ? numbers_text(*memory) : "unlimited",
                       point.option.name, point.option.placement.num_stages(),
                       number_text(result.cost), number_text(result.cost / (1 + result.gap())),
                       fmt::format("{:.2f}%", 100 * result.gap()), percent_text(result.bubble_rate),
                       bar > 0 ? "  " : "", std::string(bar, '#'));
  }
  out << "* nothing else found needs no more memory and costs less\n";
}

// The format of the compute order that is found: that of the path's extension, or .plan.
const ir::Format& order_format(const std::string& path) {
  const View* view = view_of_extension(path);
  if (view == nullptr) return *ir::find_format("plan");
  if (view->needs_times)
    throw UsageError(
        fmt::format("--output: expected a .plan, .csv or .json file, got {}; `pipewright print` "
                    "draws what is found",
                    ir::backticked(path)));
  return *ir::find_format(view->name);
}

// What the search for one size of microbatches has found.
struct Outcome {
  std::string placement;          // its name on the command line
  search::SearchRequest request;  // for that placement and memory
  search::SearchResult result;
  std::vector<search::FrontPoint> points;  // with --placement free
};

// nullopt if no cut was found that fits the memory.
std::optional<Outcome> outcome_of(const AskedSearch& asked, const search::SearchRequest& request) {
  if (asked.placement == "free") {
    const auto options = search::placement_options(asked.ranks, asked.stages);
    std::vector<search::FrontPoint> points =
        asked.cuts_layers ? search::search_cut_front(request, options)
                          : search::search_front(request, asked.stages, options);
    const auto cheapest = std::ranges::min_element(
        points, {}, [](const search::FrontPoint& point) { return point.result.cost; });
    if (cheapest == points.end() && asked.cuts_layers) return std::nullopt;
    if (cheapest == points.end())
      throw UsageError(
          fmt::format("--placement free: expected stages that can be cut into 1, 2 or 4 per rank, "
                      "got {} on {} ranks",
                      asked.stages, asked.ranks));
    return Outcome{cheapest->option.name, request_of(asked, request, *cheapest), cheapest->result,
                   std::move(points)};
  }
  if (asked.cuts_layers) {
    auto found = search::search_cuts(request);
    if (!found) return std::nullopt;
    return Outcome{asked.placement, request, std::move(found->result), {}};
  }
  search::SearchResult result = search::search_schedule(request);
  result.order.cut = asked.cut;
  return Outcome{asked.placement, request, std::move(result), {}};
}

// The sizes that were searched: for each its cost, if a cut fits the memory.
struct SizeCost {
  int size, microbatches;
  std::optional<double> cost;
};

void print_sizes(const std::vector<SizeCost>& sizes, const Outcome& best, std::ostream& out) {
  const std::string unit = unit_text(best.request.costs.unit);
  for (const SizeCost& one : sizes) {
    out << fmt::format("{} microbatches of {:<4}  {}\n",
                       one.size == best.request.costs.microbatch_size ? "*" : " ", one.size,
                       one.cost ? number_text(*one.cost) + unit : "no cut found that fits");
  }
}

void print_result_json(const AskedSearch& asked, const Outcome& best,
                       const std::vector<SizeCost>& sizes, std::ostream& out) {
  Json json = {{"version", 1}};
  add_result(best.placement, best.request, best.result, &json);
  for (const SizeCost& one : sizes)
    json["microbatch_sizes"].push_back({{"size", one.size},
                                        {"microbatches", one.microbatches},
                                        {"cost", one.cost ? Json(*one.cost) : Json(nullptr)}});
  for (const search::FrontPoint& point : best.points) {
    Json& one = json["front"].emplace_back();
    add_result(point.option.name, request_of(asked, best.request, point), point.result, &one);
    one["memory"] = memory_json(point.memory);  // in the unit of `memory_unit`
    one["is_best"] = point.is_best;
  }
  print_json(json, out);
}

}  // namespace

int run_search(const Invocation& invocation, Console& console) {
  const std::string path = invocation.text("--output").value_or("");
  const ir::Format& format = order_format(path);
  const bool to_stdout = !path.empty() && writes_to_stdout(path);
  if (to_stdout && invocation.has("--json"))
    throw UsageError(fmt::format("--json cannot be used with --output {}: both write to stdout",
                                 ir::printable(path)));
  AskedSearch asked = read_search(invocation, console);
  if (!path.empty()) require_writable(path);
  const bool has_sizes = invocation.has("--microbatch-sizes");
  if (has_sizes && to_stdout)
    throw UsageError(
        "--microbatch-sizes: expected a file for --output, beside which costs are "
        "written, got -");
  if (has_sizes && !path.empty()) require_writable(path + ".costs.json");
  const bool shows_progress = ::isatty(STDERR_FILENO) != 0 && !invocation.has("--json");
  StopOnInterrupt stop;

  std::optional<Outcome> best;
  std::vector<SizeCost> sizes;
  const auto try_size = [&](search::SearchRequest& one) {
    if (best && g_interrupted) return;
    one.cancel = &g_interrupted;
    if (shows_progress)
      one.on_progress = [&](const search::SearchProgress& progress) {
        show_progress(progress, one.num_microbatches, console);
      };
    std::optional<Outcome> outcome;
    try {
      outcome = outcome_of(asked, one);
    } catch (const search::NothingFits&) {
      throw UsageError(fmt::format(
          "--offload: {} that fits {}",
          g_interrupted ? "interrupted before it found a schedule" : "found no schedule",
          memory_text(one.memory)));
    }
    sizes.push_back({one.costs.microbatch_size, one.num_microbatches,
                     outcome ? std::optional(outcome->result.cost) : std::nullopt});
    if (outcome && (!best || outcome->result.cost < best->result.cost)) best = std::move(outcome);
  };
  try_size(asked.request);
  for (search::SearchRequest& one : asked.other_sizes) try_size(one);
  if (!best) require_fit(asked.request);
  if (!has_sizes) sizes.clear();
  if (shows_progress) console.err << "\r\x1b[K" << std::flush;
  if (g_interrupted) console.err << "interrupted: this is the best schedule so far\n";
  std::ostream& out = to_stdout ? console.err : console.out;
  if (invocation.has("--json")) {
    print_result_json(asked, *best, sizes, out);
  } else {
    if (!sizes.empty()) {
      print_sizes(sizes, *best, out);
      out << '\n';
    }
    if (!best->points.empty()) {
      print_front(best->points, out);
      out << '\n';
    }
    print_result(best->placement, best->request, best->result, out);
  }
  // Last, so that an error of writing, such as a full disk, does not cost the result.
  if (path.empty()) return kExitOk;
  write_output(path, console, [&](std::ostream& file) {
    format.print(ir::AnySchedule(best->result.order), file);
  });
  if (has_sizes) {
    write_output(path + ".costs.json", console,
                 [&](std::ostream& file) { schedule::print_costs(best->request.costs, file); });
  }
  return kExitOk;
}

}  // namespace pipewright::cli
