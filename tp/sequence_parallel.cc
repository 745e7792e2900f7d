#include "pipewright/tp/sequence_parallel.h"

#include <c10/core/GradMode.h>

#include <utility>
#include <vector>

#include "pipewright/tp/communication.h"
#include "pipewright/tp/rank_generator.h"

namespace pipewright::tp {
namespace {

class SequenceParallel final : public SplitModule {
 public:
  SequenceParallel(torch::nn::Module& module, comms::BackendPtr group) : group_(std::move(group)) {
    for (const auto& named : module.named_parameters()) {
      weights_.push_back({named.key(), named.value(), layout::TensorPlacement::replicate(),
                          /*has_partial_grad=*/true});
    }
  }
  std::vector<SplitWeight> weights() const override { return weights_; }
  bool takes_parts() const override { return true; }
  modules::Tensors run(const torch::nn::Module* /*module*/, const Function& forward,
                       modules::Tensors inputs) override {
    const RankGenerator generator(*group_, inputs.at(0).device());
    return forward(inputs);
  }

 private:
  const comms::BackendPtr group_;
  std::vector<SplitWeight> weights_;
};

}  // namespace

std::shared_ptr<SplitModule> sequence_parallel_module(torch::nn::Module& module,
                                                      const comms::BackendPtr& group) {
  return std::make_shared<SequenceParallel>(module, group);
}

GradientSum::GradientSum(const at::Tensor& leaf, comms::BackendPtr group) : leaf_(leaf) {
  // Only a leaf that requires a gradient takes a hook, which then stays when it no longer does.
  const bool requires_grad = leaf.requires_grad();
  leaf.requires_grad_(true);
  hook_ = leaf.register_hook([group = std::move(group)](const at::Tensor& grad) {
    const c10::NoGradGuard no_grad;
    return reduce_from(grad, group);
  });
  in_input_half_.emplace(leaf);
  leaf.requires_grad_(requires_grad);
}

GradientSum::~GradientSum() { leaf_.remove_hook(hook_); }

}  // namespace pipewright::tp
