#include "examples/any_rank.h"

#include <ATen/ops/full.h>

#include <vector>

#include "pipewright/comms/world.h"

namespace pipewright::examples {

at::Tensor any_rank(bool mine, c10d::Backend& ranks, at::Device device) {
  std::vector<at::Tensor> any = {at::full({1}, mine ? 1.0F : 0.0F, at::device(device))};
  if (ranks.getSize() > 1) {
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    ranks.allreduce(any, options)->wait();
  }
  return any[0];
}

bool on_any_rank(bool mine, c10d::Backend& ranks, at::Device device) {
  return any_rank(mine, ranks, device).item<float>() > 0;
}

}  // namespace pipewright::examples
