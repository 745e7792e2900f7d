#ifndef PIPEWRIGHT_EXECUTOR_MODULE_STAGE_H_
#define PIPEWRIGHT_EXECUTOR_MODULE_STAGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/autograd/split_backward.h"
#include "pipewright/executor/slice_cache.h"
#include "pipewright/executor/stage.h"
#include "pipewright/modules/forward_tensors.h"

namespace pipewright::executor {

// A stage over any differentiable function, such as the forward of a torch::nn::Module. Its
// backward runs on the autograd graph, whole or split into I and W (autograd/split_backward.h).
// Gradients of the weights accumulate in their .grad, as with .backward():
//
//   auto stage = make_stage(module);                                  // a torch::nn::Module
//   ModuleStage stage([&](const Tensors& inputs) -> Tensors {         // any function
//     return {at::linear(inputs[0], weight)};
//   });
//
// Where the program says that the stage recomputes, the function is called inside
// autograd::checkpoint, twice per microbatch.
//
// Throws ContractError for a backward of a microbatch without a forward. For one thread at a time.
class ModuleStage final : public Stage {
 public:
  // `forward` is called for each F, and again where the stage recomputes. Gradients reach all
  // weights that it uses.
  explicit ModuleStage(autograd::Forward forward);
  ~ModuleStage() override;

  // For modules that compute the gradients of their weights themselves, such as a fused layer that
  // splits its own backward (PyTorch's dw_builder). `make_weight_work` is called after the backward
  // of a microbatch, and returns a function that does the work of its W; B calls it immediately.
  // The autograd graph is not split then.
  void set_weight_work(std::function<std::function<void()>()> make_weight_work);

  // Where the program says that the stage recomputes, it keeps the results of these operators, and
  // computes the others again.
  void set_keep_policy(autograd::KeepPolicy policy) { keeps_ = std::move(policy); }

  // Where the program says that the stage offloads, what its F saves is copied to the host, but for
  // tensors of less than `least_bytes` (64 KiB by default), weights, the stage's inputs, and what
  // shares memory with these.
  void set_least_offload(int64_t least_bytes) { least_offload_bytes_ = least_bytes; }
  // The weights that require no gradient, which would be taken for results otherwise. make_stage()
  // sets this for a module.
  void set_weights(std::function<Tensors()> weights) { weights_ = std::move(weights); }

  // For programs whose microbatches are cut into slices: what the stage's modules extend, or null
  // for a stage that computes each position of the sequence without the others, as an MLP does.
  // Without this call the stage runs whole microbatches only.
  void set_slice_cache(std::shared_ptr<SliceCache> cache);

  Tensors forward(int microbatch, const Tensors& inputs) override;
  Tensors backward(int microbatch, Tensors output_grads) override;
  Tensors backward_input(int microbatch, Tensors output_grads) override;
  void backward_weight(int microbatch) override;
  void check_weight_free(int microbatch) override;
  bool joins_loss() const override { return true; }
  void set_loss(int microbatch, const at::Tensor& loss) override;
  bool set_recompute(bool recomputes) override;
  void recompute(int microbatch) override;
  bool set_offload(bool offloads) override;
  void copy_to_host(int microbatch, comms::SideStream& stream) override;
  void free_on_device(int microbatch) override;
  void copy_back(int microbatch, comms::SideStream& stream) override;
  bool set_slices(int slices) override;
  void clear() override;

 private:
  struct Kept;
  Tensors recorded_forward(int microbatch, const Tensors& inputs);
  Tensors saving_forward(const Tensors& inputs, Kept& kept);
  void begin_backward(Kept& work, int microbatch);
  // Throws ContractError, naming the method `what`, for a microbatch without a forward.
  Kept& kept(int microbatch, const char* what);

  const autograd::Forward forward_;
  std::function<std::function<void()>()> make_weight_work_;
  bool recomputes_ = false;
  autograd::KeepPolicy keeps_;  // when it recomputes
  bool offloads_ = false;
  int64_t least_offload_bytes_ = 1 << 16;
  std::function<Tensors()> weights_;  // that never are offloaded
  bool runs_slices_ = false;
  std::shared_ptr<SliceCache> slices_;                   // null without slices
  std::unordered_map<int, std::unique_ptr<Kept>> kept_;  // by microbatch
};

// A stage over a module: a shared_ptr or a ModuleHolder, called through its wrappers with the
// tensors of the stage as arguments (modules/forward_tensors.h). The module's forward takes and
// returns tensors, or tuples, optionals and vectors of them; defaulted arguments may be left out.
// The stage's forward throws std::invalid_argument for a number of tensors that the module's does
// not take.
template <typename Module>
std::shared_ptr<ModuleStage> make_stage(Module module) {
  static_assert(modules::TakesTensors<Module>,
                "make_stage: expected a shared_ptr or a ModuleHolder of a module whose forward "
                "takes tensors and returns tensors, or tuples, optionals and vectors of them");
  if constexpr (modules::TakesTensors<Module>) {
    auto stage = std::make_shared<ModuleStage>(
        [module](const Tensors& inputs) { return modules::forward_tensors(module, inputs); });
    stage->set_weights([module] { return module->parameters(); });
    return stage;
  } else {
    return nullptr;
  }
}

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_MODULE_STAGE_H_
