#ifndef PIPEWRIGHT_TESTS_DEVICE_TWO_STAGES_H_
#define PIPEWRIGHT_TESTS_DEVICE_TWO_STAGES_H_

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/schedules/registry.h"
#include "tests/executor/models.h"

namespace pipewright::testdevice {

// One rank of the smallest pipeline: 1F1B on two ranks, y = x w0 w1 with one weight per rank, and
// the sum of y as the loss.
struct TwoStages {
  static constexpr int kMicrobatches = 4;

  // On options.device. `options` needs no loss.
  TwoStages(int rank, comms::World& world, double value, executor::ExecutorOptions options)
      : weight(at::full({1}, value, options.device).set_requires_grad(true)) {
    std::map<int, executor::LocalStage> stages;
    stages[rank].stage =
        std::make_shared<executor::ModuleStage>([weight = weight](const executor::Tensors& in) {
          return executor::Tensors{in[0] * weight};
        });
    options.loss = [](const executor::Tensors& out) { return out[0].sum(); };
    executor.emplace(
        executor::make_program(*schedules::find_schedule("1F1B"), {2, 2, kMicrobatches}),
        std::move(stages), world, std::move(options));
  }

  at::Tensor weight;
  std::optional<executor::Executor> executor;
};

}  // namespace pipewright::testdevice

#endif  // PIPEWRIGHT_TESTS_DEVICE_TWO_STAGES_H_
