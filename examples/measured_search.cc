#include "examples/measured_search.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "examples/batch.h"
#include "examples/memory.h"
#include "pipewright/checkpoint/agree.h"
#include "pipewright/comms/store_exchange.h"
#include "pipewright/schedule/peak.h"
#include "pipewright/schedule/simulate/recorded_costs.h"

namespace pipewright::examples {
namespace {

// The first steps connect ranks and allocate memory.
constexpr int kWarmUp = 2;

// The most bytes of tensors that this thread, a rank, has allocated and not freed since restart().
class TensorMeter {
 public:
  void restart() const { count_->now = count_->peak = 0; }
  int64_t peak() const { return count_->peak; }

 private:
  struct Count final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
      now += bytes;
      peak = std::max(peak, now);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t now = 0, peak = 0;
  };
  const std::shared_ptr<Count> count_ = std::make_shared<Count>();
  const c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, count_};
};

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

double makespan(const ir::Timeline& timeline) {
  double end = 0;
  for (size_t cell = 0; cell < timeline.size(); ++cell) end = std::max(end, timeline[cell].end);
  return end;
}

struct Measured {
  ir::Timeline fastest;  // on rank 0 of each pipeline
  double bytes = 0;      // of tensors, per microbatch that is alive on this rank
};

Measured measure(const Options& options, const ir::Program& program, LocalModel& model,
                 const executor::ExecutorOptions& run, const Text& text, comms::Mesh& mesh,
                 comms::World& world) {
  executor::Executor executor(program, model.stages, world, run);
  executor.record();
  const TensorMeter meter;
  Measured measured;
  for (int step = 0; step < kWarmUp + kMeasuredSteps; ++step) {
    const std::vector<int64_t> starts = text.batch(options.model.seed, step, options.batch);
    meter.restart();
    executor.step(batch_of(text, starts, mesh, run.device));
    for (const at::Tensor& parameter : model.parameters) parameter.mutable_grad() = at::Tensor();
    ir::Timeline timeline = executor.recording();
    if (step == kWarmUp || (step > kWarmUp && makespan(timeline) < makespan(measured.fastest)))
      measured.fastest = std::move(timeline);
  }
  // All of the peak is taken for activations, also gradients and what is sent.
  const ir::Row& row = program.rows[static_cast<size_t>(executor.rank())];
  const double alive = schedule::peak_activations(row, /*has_backward=*/true).amount /
                       static_cast<double>(model.stages.size());
  measured.bytes = static_cast<double>(meter.peak()) / alive;
  return measured;
}

// How many activations fit into the memory that is left on the rank that has the least of it;
// nullopt if all microbatches do. `ranks` have "host available-bytes bytes-per-activation".
std::optional<double> activations_that_fit(const std::vector<std::string>& ranks,
                                           int microbatches) {
  std::map<std::string, int> ranks_of_host;
  std::vector<std::pair<std::string, double>> of_rank;
  for (const std::string& rank : ranks) {
    std::istringstream words(rank);
    std::string host;
    double available = 0, bytes = 1;
    words >> host >> available >> bytes;
    ++ranks_of_host[host];
    of_rank.emplace_back(host, available / bytes);
  }
  double least = microbatches;
  for (const auto& [host, fit] : of_rank) least = std::min(least, fit / ranks_of_host[host]);
  if (least >= microbatches) return std::nullopt;
  return std::max(1.0, std::floor(least));
}

}  // namespace

FoundSchedule measure_and_search(const Options& options, const ir::Program& program,
                                 LocalModel& model, const executor::ExecutorOptions& run,
                                 const Text& text, comms::Mesh& mesh, comms::World& world) {
  Measured measured = measure(options, program, model, run, text, mesh, world);
  comms::StoreExchange exchange(world, "search");
  std::ostringstream memory;
  memory << host_name() << ' ' << host_memory().available << ' ' << measured.bytes;
  const std::vector<std::string> memories = exchange(memory.str());
  const auto found = checkpoint::agree(std::ref(exchange), [&]() -> std::string {
    if (world.rank() != 0) return "";
    const schedule::Costs costs =
        schedule::recorded_costs(program, ir::recording_of_seconds(std::move(measured.fastest)));
    const std::optional<double> limit = options.search_limit();
    return to_text(find_schedule(
        options, costs, limit ? limit : activations_that_fit(memories, options.microbatches)));
  });
  return from_text(found[0]);
}

}  // namespace pipewright::examples
