#include "examples/measured_costs.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "examples/batch.h"
#include "pipewright/checkpoint/durable_file.h"
#include "pipewright/schedule/graph/peaks.h"
#include "pipewright/schedule/problem/costs_json.h"
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

}  // namespace

MeasuredCosts measure_costs(const Options& options, const ir::Program& program, LocalModel& model,
                            const executor::ExecutorOptions& run, const Text& text,
                            const comms::Mesh& mesh, comms::World& world) {
  executor::Executor executor(program, model.stages, world, run);
  executor.record();
  const TensorMeter meter;
  ir::Timeline fastest;
  double least = std::numeric_limits<double>::infinity();
  for (int step = 0; step < kWarmUp + kMeasuredSteps; ++step) {
    const std::vector<int64_t> starts = text.batch(options.model.seed, step, options.batch);
    meter.restart();
    executor.step(batch_of(text, starts, mesh, run.device));
    for (const at::Tensor& parameter : model.parameters) parameter.mutable_grad() = at::Tensor();
    ir::Timeline timeline = executor.recording();
    if (executor.rank() != 0 || step < kWarmUp) continue;
    const double seconds = ir::span_of(program.rows, timeline).duration();
    if (seconds >= least) continue;
    least = seconds;
    fastest = std::move(timeline);
  }
  MeasuredCosts measured;
  if (executor.rank() == 0) {
    measured.costs =
        schedule::recorded_costs(program, ir::recording_of_seconds(std::move(fastest)));
    measured.seconds = least;
  }
  // All of the peak is taken for activations, also gradients and what is sent.
  const ir::Row& row = program.rows[static_cast<size_t>(executor.rank())];
  const double alive = schedule::peak_activations(row, /*has_backward=*/true).amount /
                       static_cast<double>(model.stages.size());
  measured.activation_bytes = static_cast<double>(meter.peak()) / alive;
  return measured;
}

void write_costs(const std::string& path, const schedule::Costs& costs) {
  std::ostringstream text;
  schedule::print_costs(costs, text);
  checkpoint::write_durably(path, text.str());
}

}  // namespace pipewright::examples
