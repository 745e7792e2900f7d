#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <ostream>
#include <string>
#include <vector>

#include "pipewright/cli/command_table.h"
#include "pipewright/cli/files.h"
#include "pipewright/cli/invocation.h"
#include "pipewright/cli/search_report.h"
#include "pipewright/cli/search_request.h"
#include "pipewright/cli/simulation.h"
#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/read.h"

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

// The format of the compute order that is found: that of the path's extension, or .plan.
const ir::FormatInfo& order_format(const std::string& path) {
  const std::string extension = format_of_extension(path);
  if (is_picture(extension))
    throw UsageError(
        fmt::format("--output: expected a .plan, .csv or .json file, got {}; "
                    "`pipewright print` draws what is found",
                    ir::backticked(path)));
  const auto found = std::ranges::find(ir::formats(), extension, &ir::FormatInfo::name);
  return found == ir::formats().end() ? ir::info(ir::Format::kPlan) : *found;
}

// The limit in the unit of `memory_unit`; null without one.
std::string memory_json(const schedule::MemoryBudget& memory) {
  return memory.is_set() ? fmt::format("{}", *memory.limit()) : "null";
}

void print_json(const AskedSearch& asked, const std::vector<search::FrontPoint>& points,
                const search::SearchRequest& best, const search::SearchResult& result,
                std::ostream& out) {
  std::string front;
  for (const search::FrontPoint& point : points)
    front += fmt::format(
        "{}\n    {{\n{},\n      \"memory\": {},\n      \"is_best\": {}\n    }}",
        front.empty() ? "" : ",",
        result_json(point.option.name, request_of(asked, point), point.result, "      "),
        memory_json(point.memory), point.is_best);
  out << fmt::format("{{\n  \"version\": 1,\n{}{}\n}}\n",
                     result_json(asked.placement, best, result, "  "),
                     points.empty() ? "" : fmt::format(",\n  \"front\": [{}\n  ]", front));
}

}  // namespace

int run_search(const Invocation& invocation, Console& console) {
  const std::string path = invocation.text("--output").value_or("");
  const ir::FormatInfo& format = order_format(path);
  const bool to_stdout = !path.empty() && writes_to_stdout(path);
  if (to_stdout && invocation.has("--json"))
    throw UsageError(fmt::format("--json cannot be used with --output {}: both write to stdout",
                                 ir::printable(path)));
  AskedSearch asked = read_search(invocation, console);
  if (!path.empty()) require_writable(path);
  search::SearchRequest& request = asked.request;
  const bool shows_progress = ::isatty(STDERR_FILENO) != 0 && !invocation.has("--json");
  if (shows_progress)
    request.on_progress = [&](const search::SearchProgress& progress) {
      show_progress(progress, request.num_microbatches, console);
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
  std::ostream& out = to_stdout ? console.err : console.out;
  if (invocation.has("--json")) {
    print_json(asked, points, best, result, out);
  } else {
    if (!points.empty()) {
      print_front(points, out);
      out << '\n';
    }
    print_result(asked.placement, best, result, out);
  }
  // Last, so that an error of writing, such as a full disk, does not cost the result.
  if (!path.empty()) {
    write_output(path, console,
                 [&](std::ostream& file) { format.print(ir::AnySchedule(result.order), file); });
  }
  return kExitOk;
}

}  // namespace pipewright::cli
