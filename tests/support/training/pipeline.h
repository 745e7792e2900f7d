#ifndef PIPEWRIGHT_TESTS_SUPPORT_TRAINING_PIPELINE_H_
#define PIPEWRIGHT_TESTS_SUPPORT_TRAINING_PIPELINE_H_

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/modules/data_parallel.h"
#include "pipewright/schedules/registry.h"
#include "tests/support/recording/recording_backend.h"

// The pipelines of PyTorch's test_composability.py: 8 layers of width 10, 8 microbatches, 2
// pipeline ranks (those of the program) times some data-parallel ranks, as threads. The loss is a
// mean squared error. PyTorch's is a cross entropy times 1e-4, whose gradients are so small that
// its tolerance of 5e-5 accepts anything.

namespace pipewright::tests {

inline constexpr int kPipelineLayers = 8, kPipelineMicrobatches = 8;

// x + Linear, relu, Linear.
class Layer : public torch::nn::Module {
 public:
  // Equal numbers produce equal weights. `partial` adds a weight that only some copies use.
  Layer(int number, at::ScalarType dtype, bool partial);
  at::Tensor forward(const at::Tensor& x);
  // The layer computes as that of copy `copy`.
  void set_copy(int copy) { copy_ = copy; }
  int number() const { return number_; }

 private:
  const int number_;
  const bool partial_;
  int copy_ = 0;
  std::vector<at::Tensor> weights_;
};

struct LayersArgs {
  at::ScalarType dtype = at::kDouble;
  bool checkpointed = false;
  bool unused = false;   // adds a parameter that no forward uses
  bool partial = false;  // adds to each layer a parameter that only some copies use
  std::set<int> checkpointed_layers = {};  // besides, if `checkpointed` is false
  std::set<std::string> frozen = {};       // names of parameters, such as "layer3.weight1"
  // How a layer is called; its forward by default.
  std::function<at::Tensor(const std::shared_ptr<Layer>&, const at::Tensor&)> call = nullptr;
};

// Layers `begin` to `end` - 1, with their names in the whole model.
class Layers : public torch::nn::Module {
 public:
  Layers(int begin, int end, LayersArgs args);
  at::Tensor forward(const at::Tensor& input);
  void set_copy(int copy);
  const std::vector<std::shared_ptr<Layer>>& layers() const { return layers_; }

 private:
  const LayersArgs args_;
  std::vector<std::shared_ptr<Layer>> layers_;
};

// Wraps the module of a stage for data parallelism; null leaves it unwrapped.
using Wrap = std::function<std::shared_ptr<modules::DataParallel>(
    const std::shared_ptr<Layers>&, const comms::BackendPtr& data_parallel_group)>;

struct PipelineCase {
  const schedules::ScheduleSpec* schedule = nullptr;
  std::optional<ir::Program> program = std::nullopt;  // replaces the schedule; any number of ranks
  int reduce_every = kPipelineMicrobatches;
  int copies = 2;          // size of the data-parallel group
  bool same_data = false;  // all copies train on the data of copy 0
  int steps = 3;           // of AdamW
  bool delays = false;     // random delays before and after collectives, different on each rank
  // Mixed precision: inputs, targets and computation are in this dtype, gradients are accumulated
  // and reduced in that of the layers.
  std::optional<at::ScalarType> compute = std::nullopt;
  LayersArgs layers = {};
};

ir::Program program_of(const PipelineCase& pipeline);

// The results of training: parameters at the end, and gradients of the last step.
struct Trained {
  std::vector<at::Tensor> losses;                                 // of all steps and microbatches
  torch::OrderedDict<std::string, at::Tensor> parameters, grads;  // of this rank's stages
  int copy = 0;
  std::vector<comms::CallRecord> calls;  // of the data-parallel group in the last step
};

// By rank. An error on any rank fails the test.
std::vector<Trained> train_pipeline(const PipelineCase& pipeline, const Wrap& wrap);

// Without a pipeline: one model, on the data of all copies, with the mean of their losses.
Trained train_reference(const PipelineCase& pipeline);

// Expects the parameters and gradients of each rank to be the `part` of the reference's for its
// copy.
struct Tolerance {
  double relative = 1e-10, absolute = 1e-12;
};
void expect_trained(const Trained& expected, const std::vector<Trained>& got,
                    const std::function<at::Tensor(const at::Tensor& whole, int copy)>& part,
                    Tolerance tolerance = {});

std::string name_of_schedule(const schedules::ScheduleSpec& spec);

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SUPPORT_TRAINING_PIPELINE_H_
