#ifndef PIPEWRIGHT_PYTHON_TORCH_EXECUTOR_H_
#define PIPEWRIGHT_PYTHON_TORCH_EXECUTOR_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/executor/executor.h"
#include "pipewright/python/torch/data_parallel.h"
#include "pipewright/python/torch/objects.h"
#include "pipewright/python/torch/world.h"

namespace pipewright::python {

// One rank of a pipeline, whose stages and loss are Python functions. Every method is called with
// the GIL, and releases it while it waits and in backwards. What a step raises is a StepError,
// HangError or BatchError of pipewright_torch, whose __cause__ on the rank where it happened is
// Python's own exception. KeyboardInterrupt and other exceptions that end a program are raised
// as they are.
class Executor {
 public:
  struct Stage {
    int index = 0;
    pybind11::object forward;  // see PythonStage
    bool split = true;
    std::optional<PythonDataParallel::Options> data_parallel = {};
  };
  struct Options {
    pybind11::object loss;      // of (outputs, targets), lists of tensors and None; None: no loss
    pybind11::object describe;  // see Raised
    std::vector<int> ranks;
    bool scale_grads = true;
    bool dynamic_shapes = false;
    double timeout = 0, first_timeout = 0;  // in seconds; 0: the default
    at::Device device = at::kCPU;
    executor::SplitDims input_dims, extra_dims, target_dims, output_dims;
    std::map<int, executor::SplitDims> extra_of_dims;
    comms::BackendPtr same_batch;
  };

  // Collective, see executor::Executor.
  Executor(const ir::Program& program, const std::vector<Stage>& stages,
           std::shared_ptr<World> world, const Options& options);
  ~Executor();

  executor::StepResult step(const executor::Batch& batch, bool return_outputs, bool evaluates);
  void confirm();
  int64_t reset();
  void record(bool on);
  ir::Timeline recording();
  void forget_shapes();
  // Ends the executor, before its world.
  void close();

 private:
  executor::Executor& get() const;
  void run(const std::function<void()>& body);

  const std::shared_ptr<World> world_;
  const std::shared_ptr<Gil> gil_ = std::make_shared<Gil>();
  const std::shared_ptr<Raised> raised_;
  std::unique_ptr<executor::Executor> executor_;
};

}  // namespace pipewright::python

#endif  // PIPEWRIGHT_PYTHON_TORCH_EXECUTOR_H_
