#include "examples/batch.h"

#include <ATen/ATen.h>

#include "examples/late_copy.h"
#include "pipewright/comms/world.h"

namespace pipewright::examples {

bool in_first_copy(const comms::Mesh& mesh) {
  return mesh.coordinate("dp_replicate") == 0 && mesh.coordinate("dp_shard") == 0;
}

executor::Batch batch_of(const Text& text, const std::vector<int64_t>& starts,
                         const comms::Mesh& mesh, at::Device device) {
  const int64_t replica = mesh.coordinate("dp_replicate"), shards = mesh.size("dp_shard");
  const int64_t copy = replica * shards + mesh.coordinate("dp_shard");
  const int64_t copies = mesh.size("dp_replicate") * shards;
  const auto windows = static_cast<int64_t>(starts.size());
  std::vector<at::Tensor> inputs, targets;
  for (int64_t i = windows * copy / copies; i < windows * (copy + 1) / copies; ++i) {
    const auto [input, target] = text.window(starts[static_cast<size_t>(i)]);
    inputs.push_back(at::tensor(input));
    targets.push_back(at::tensor(target));
  }
  return {.inputs = {to_device(at::stack(inputs), device)},
          .targets = {to_device(at::stack(targets), device)}};
}

executor::LossFunction make_loss(const Options& options, const comms::BackendPtr& tp) {
  const double scale = static_cast<double>(options.copies()) /
                       static_cast<double>(options.batch * options.model.context);
  return [tp, scale](const executor::Tensors& outputs, const executor::Tensors& targets) {
    const double tokens = static_cast<double>(targets[0].numel());
    return gpt_loss(outputs[0], targets[0], tp) * (tokens * scale);
  };
}

at::Tensor total_loss(const std::vector<at::Tensor>& losses, c10d::Backend& ranks, int copies) {
  std::vector<at::Tensor> sum = {at::zeros({}, losses.front().options().dtype(at::kDouble))};
  for (const at::Tensor& loss : losses) sum[0] += loss;
  if (ranks.getSize() > 1) ranks.allreduce(sum)->wait();
  return sum[0] / copies;
}

}  // namespace pipewright::examples
