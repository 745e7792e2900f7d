#ifndef PIPEWRIGHT_TESTS_SUPPORT_TRAINING_PIPELINE_H_
#define PIPEWRIGHT_TESTS_SUPPORT_TRAINING_PIPELINE_H_

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/comms/recording_backend.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/modules/data_parallel.h"
#include "pipewright/schedules/registry.h"

// The pipelines of PyTorch's test_composability.py: 8 layers of dim 10, 8 microbatches, 2 ranks
// that hold stages times some that hold other data, as threads. The loss is a mean square, where
// PyTorch's is a cross entropy times 1e-4: with gradients that small its tolerance of 5e-5 lets
// anything pass.

namespace pipewright::tests {

inline constexpr int kPipelineLayers = 8, kPipelineMicrobatches = 8;

// x + Linear, relu, Linear.
class Layer : public torch::nn::Module {
 public:
  // The same for the same number.
  Layer(int number, at::ScalarType dtype);
  at::Tensor forward(const at::Tensor& x);

 private:
  std::vector<at::Tensor> weights_;
};

struct LayersArgs {
  at::ScalarType dtype = at::kDouble;
  bool checkpointed = false;
  bool unused = false;  // there is a parameter that nobody uses
  // How a layer is called: its forward, unless what is tested must be called there.
  std::function<at::Tensor(const std::shared_ptr<Layer>&, const at::Tensor&)> call = nullptr;
};

// Layers `begin` to `end`, under their names in the whole model.
class Layers : public torch::nn::Module {
 public:
  Layers(int begin, int end, LayersArgs args);
  at::Tensor forward(const at::Tensor& input);
  const std::vector<std::shared_ptr<Layer>>& layers() const { return layers_; }

 private:
  const LayersArgs args_;
  std::vector<std::shared_ptr<Layer>> layers_;
};

// What is done with each stage's module; null leaves it alone.
using Wrap = std::function<std::shared_ptr<modules::DataParallel>(
    const std::shared_ptr<Layers>&, const comms::BackendPtr& data_parallel_group)>;

struct PipelineCase {
  const schedules::ScheduleSpec* schedule;
  int reduce_every = kPipelineMicrobatches;
  int copies = 2;          // ranks of the data-parallel group
  bool same_data = false;  // each copy runs rank 0's
  int steps = 3;           // of AdamW
  bool delays = false;     // before and behind collectives, other ones on each rank
  LayersArgs layers = {};
};

ir::Program program_of(const PipelineCase& pipeline);

// What is left behind the last step, before the optimizer takes it.
struct Trained {
  std::vector<at::Tensor> losses;                                 // of all steps and microbatches
  torch::OrderedDict<std::string, at::Tensor> parameters, grads;  // of this rank's stages
  int copy = 0;
  std::vector<comms::CallRecord> calls;  // of the last step, over the data-parallel group
};

// By rank; what a rank throws is a failure of the test.
std::vector<Trained> train_pipeline(const PipelineCase& pipeline, const Wrap& wrap);

// One model that runs all copies' data and takes the mean of their losses.
Trained train_reference(const PipelineCase& pipeline);

// Expects the parameters and gradients of each rank to be `part` of the reference's.
struct Tolerance {
  double relative = 1e-10, absolute = 1e-12;
};
void expect_trained(const Trained& want, const std::vector<Trained>& got,
                    const std::function<at::Tensor(const at::Tensor& whole, int copy)>& part,
                    Tolerance tolerance = {});

std::string name_of_schedule(const schedules::ScheduleSpec& spec);

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SUPPORT_TRAINING_PIPELINE_H_
