#ifndef PIPEWRIGHT_TP_SPLIT_MODULE_H_
#define PIPEWRIGHT_TP_SPLIT_MODULE_H_

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "pipewright/comms/world.h"
#include "pipewright/modules/forward.h"
#include "pipewright/tp/parallelize.h"

namespace pipewright::tp {

// Compares the inputs of each forward of a module, shapes, dtypes and all bits, between the ranks
// of `group`. If they differ, all ranks throw the same std::invalid_argument, which names the first
// input that differs and the rank. So do the ranks of `copies`, which may be null, with `place` of
// the ranks that differ before the message.
std::shared_ptr<modules::ForwardHook> input_check(comms::BackendPtr group, comms::BackendPtr copies,
                                                  std::string place);

// One module of a plan: which of its weights are split along which dimension, and what its forward
// does before and after.

// A weight of the module. `placement` is replicate or shard(d), along the mesh dimension.
struct SplitWeight {
  std::string name;  // within the module
  at::Tensor tensor;
  layout::TensorPlacement placement;
  bool has_partial_grad = false;  // the sum over ranks is the gradient
};

class SplitModule : public modules::ForwardHook {
 public:
  virtual std::vector<SplitWeight> weights() const = 0;
  // Whether its first input is this rank's part of an activation, or a copy whose gradient is
  // summed further up only.
  virtual bool takes_parts() const = 0;
};

// Changes nothing yet. Throws std::invalid_argument for a module or layouts that the style does not
// support, and if the weights do not have the sizes that the module was made with. `name` is that
// of style and module in errors of forward, "colwise_parallel of `up`". `group` has the ranks of
// the mesh dimension; `module` must outlive the result.
std::shared_ptr<SplitModule> split_module(torch::nn::Module& module, const Style& style,
                                          const std::string& name, const comms::BackendPtr& group);

}  // namespace pipewright::tp

#endif  // PIPEWRIGHT_TP_SPLIT_MODULE_H_
