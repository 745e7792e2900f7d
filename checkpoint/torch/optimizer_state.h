#ifndef PIPEWRIGHT_CHECKPOINT_TORCH_OPTIMIZER_STATE_H_
#define PIPEWRIGHT_CHECKPOINT_TORCH_OPTIMIZER_STATE_H_

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/checkpoint/safetensors.h"

namespace pipewright::checkpoint {

// The type that a checkpoint stores the elements of a tensor in. Throws std::invalid_argument,
// which calls the tensor `name`, if checkpoints have no such type.
DType stored_dtype(const at::Tensor& tensor, const std::string& name);

// The state of a random number generator as text, for the manifest of a checkpoint.
//
//   snapshot.state["generator.cpu." + std::to_string(rank)] = generator_state(generator);

// The bytes of the generator's state, in hexadecimal: about 10,000 characters for a CPU generator.
std::string generator_state(at::Generator generator);
// Throws std::invalid_argument if the text is not the state of a generator of that kind.
void set_generator_state(at::Generator generator, const std::string& text);

// The state of LibTorch's optimizers by the names that PyTorch's have for it.

// What an optimizer has stored for one parameter: `exp_avg` and the like have the parameter's
// shape; `step` is a scalar.
using ParamState = std::map<std::string, at::Tensor>;
// The options of a parameter group, as text: {"lr", "0.001"}. Numbers are read back exactly.
using GroupOptions = std::map<std::string, std::string>;

// One kind of optimizer. Stateless.
class OptimizerKind {
 public:
  virtual ~OptimizerKind() = default;

  virtual std::string name() const = 0;  // "AdamW"
  // The keys that the state of each parameter of a group has, once it has been updated.
  virtual std::vector<std::string> keys(const torch::optim::OptimizerOptions& options) const = 0;
  // Throws std::invalid_argument if `step` is too large for a float.
  virtual ParamState tensors(const torch::optim::OptimizerParamState& state) const = 0;
  virtual std::unique_ptr<torch::optim::OptimizerParamState> state(
      const ParamState& tensors) const = 0;

  virtual GroupOptions options(const torch::optim::OptimizerOptions& options) const = 0;
  // Sets the options that `texts` has. Throws std::invalid_argument, naming it, for a text that is
  // not a value of its option.
  virtual void set_options(torch::optim::OptimizerOptions& options,
                           const GroupOptions& texts) const = 0;
};

// Throws std::invalid_argument unless it is AdamW, Adam or SGD.
const OptimizerKind& kind_of(const torch::optim::Optimizer& optimizer);

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_TORCH_OPTIMIZER_STATE_H_
