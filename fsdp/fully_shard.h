#ifndef PIPEWRIGHT_FSDP_FULLY_SHARD_H_
#define PIPEWRIGHT_FSDP_FULLY_SHARD_H_

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "pipewright/comms/mesh.h"
#include "pipewright/comms/world.h"
#include "pipewright/fsdp/trace.h"
#include "pipewright/modules/data_parallel.h"

// Parameters sharded over a data-parallel group (ZeRO-3; Zhao et al., "PyTorch FSDP", 2023, and
// PyTorch's fully_shard, whose names and semantics these are): each rank keeps its part of every
// parameter, of its gradient and of the optimizer's state, and a layer's whole parameters exist
// only while it computes.
//
//   for (const auto& block : model->blocks) units.push_back(fsdp::fully_shard(*block, group));
//   units.push_back(fsdp::fully_shard(*model, group));
//   torch::optim::AdamW optimizer(model->parameters());     // before or after: it steps shards
//   fsdp::forward(model, x).sum().backward();                // gradients are averaged and sharded
//   optimizer.step();
//
// LibTorch's modules have no hooks: what is sharded apart must be called through forward() or
// call() below, also inside the model's own forward. They are plain calls for modules that are not
// sharded. Called otherwise, a sharded module computes with shards: backward refuses that, and
// without a backward only shapes can. A module is cast, moved and loaded before it is sharded.
//
// All ranks must call the same units in the same order, and reach the same ones in backward: each
// gather and reduction is of all of them. Which parameters of a unit they use is their own affair.

namespace pipewright::fsdp {

// What happens to a unit's whole parameters between its forward and its backward.
class ReshardAfterForward {
 public:
  // They are freed, but for the outermost unit, which backward needs first.
  constexpr ReshardAfterForward() = default;
  // Freed, or kept.
  // NOLINTNEXTLINE(google-explicit-constructor)
  constexpr ReshardAfterForward(bool reshard) : ranks_(reshard ? kAll : 1) {}
  // Sharded over so many neighbouring ranks, which must divide the group: gathered again faster.
  template <typename Int>
  requires(std::is_integral_v<Int> && !std::is_same_v<Int, bool>)
      // NOLINTNEXTLINE(google-explicit-constructor)
      constexpr ReshardAfterForward(Int ranks)
      : ranks_(static_cast<int>(ranks)) {}

  // Over how many ranks, of `size`; 1 keeps them.
  int ranks(bool is_outermost, int size) const {
    if (ranks_ == kDefault) return is_outermost ? 1 : size;
    return ranks_ == kAll ? size : ranks_;
  }

 private:
  static constexpr int kDefault = -1, kAll = 0;
  int ranks_ = kDefault;
};

// Which unit backward gathers ahead: the one that ran before the current one in forward, when the
// current one's backward begins (PyTorch's BACKWARD_PRE), or when it has ended (BACKWARD_POST, less
// memory), or none.
enum class BackwardPrefetch { kNone, kPre, kPost };

struct Options {
  ReshardAfterForward reshard_after_forward = {};
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;  // of the outermost unit, for all
  // The dimension to shard a parameter along; null: 0 for all. Others than 0 must divide evenly.
  std::function<int64_t(const at::Tensor& parameter)> shard_placement_fn = nullptr;
  // Stay as they are: neither sharded nor reduced.
  std::vector<at::Tensor> ignored_params = {};
  // Rank 0's parameters and buffers are given to all. Without it all must have the same.
  bool sync_module_states = true;
  // Where forward puts its inputs; null: where the parameters are.
  std::optional<at::Device> device = std::nullopt;
  // What the units do is written there; of the outermost unit, for all.
  std::shared_ptr<Trace> trace = nullptr;
};

// One call's parameters. Made by fully_shard(); the module is sharded as long as it lives, and what
// it holds must be called no other way afterwards. For one thread at a time, and those of its
// backward.
class Sharded {
 public:
  virtual ~Sharded() = default;

  // Gathers the parameters of this unit, not of those within it; a no-op if they are there.
  void unshard() {
    unshard_async();
    wait_unshard();
  }
  // Only posts it: the next forward of the unit waits, or wait_unshard().
  virtual void unshard_async() = 0;
  virtual void wait_unshard() = 0;
  // Frees them. What was computed with them may still be used. To be called between a forward that
  // has no backward and an optimizer's step; a forward with grad mode off does it by itself.
  virtual void reshard() = 0;
  virtual bool is_unsharded() const = 0;

  // Of this unit and, unless `recurse` is false, those within it.
  virtual void set_reshard_after_forward(bool reshard, bool recurse = true) = 0;
  virtual void set_reshard_after_backward(bool reshard, bool recurse = true) = 0;
  // Whether the backwards to come reduce gradients, or only add them up here, whole.
  virtual void set_requires_gradient_sync(bool sync, bool recurse = true) = 0;
  // Of the outermost unit. If false, the backward returns while reductions are on their way.
  virtual void set_is_last_backward(bool last) = 0;
  // False for parameters that backward does not need, such as those of embeddings.
  virtual void set_unshard_in_backward(bool unshard) = 0;
  // Units to gather behind this one's own gather. Backward's list replaces the automatic one.
  virtual void set_modules_to_forward_prefetch(const std::vector<Sharded*>& units) = 0;
  virtual void set_modules_to_backward_prefetch(const std::vector<Sharded*>& units) = 0;
  // What a sum of gradients is divided by instead of the number of ranks; of this unit alone.
  virtual void set_gradient_divide_factor(double factor) = 0;
  // Sums, and divides by itself, for backends whose averages are not to be used.
  virtual void set_force_sum_reduction_for_comms(bool force) = 0;

  // For the executor, which says when this unit and those within it are gathered and reduced:
  // UNSHARD and RESHARD of the program take the place of reshard_after_forward, backward gathers
  // nothing, and a split backward is as good as a whole one. As long as it lives.
  virtual std::shared_ptr<modules::DataParallel> data_parallel() = 0;

  // Of its parameters, in the order of its buffers, within the module that it was made for; of
  // several modules, with the place in the list in front.
  virtual std::vector<std::string> parameter_names() const = 0;

  // Of parameters and gradients within this rank, since it was made.
  virtual int64_t bytes_copied() const = 0;
};

// Shards the parameters of `modules` that no earlier call has taken, as one group which is gathered
// and reduced by one call each: bottom-up, the layers first and the whole last. Collective over the
// group. Throws std::invalid_argument that names the parameter for a second call for a module, a
// scalar, meta tensors, several dtypes or devices, a tensor that is also part of another group, and
// on every rank where ranks do not have the same shapes.
[[nodiscard]] std::shared_ptr<Sharded> fully_shard(const std::vector<torch::nn::Module*>& modules,
                                                   comms::BackendPtr group, Options options = {});
[[nodiscard]] std::shared_ptr<Sharded> fully_shard(torch::nn::Module& module,
                                                   comms::BackendPtr group, Options options = {});
// Over all ranks of some dimensions of a mesh. Only so can it be sharded behind forward over a
// number of ranks, for which groups are made.
[[nodiscard]] std::shared_ptr<Sharded> fully_shard(const std::vector<torch::nn::Module*>& modules,
                                                   comms::Mesh& mesh,
                                                   const std::vector<std::string>& dims,
                                                   Options options = {});
[[nodiscard]] std::shared_ptr<Sharded> fully_shard(torch::nn::Module& module, comms::Mesh& mesh,
                                                   const std::vector<std::string>& dims,
                                                   Options options = {});

// Calls `function`, which uses `module`'s parameters, with `inputs` as the forward of that module:
// its parameters are gathered before, on the inputs' way back they are freed. Also for methods that
// are not called forward. Undefined tensors are left alone; inputs that require a gradient are not
// to be written to in place.
std::vector<at::Tensor> call(
    const torch::nn::Module& module,
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& function,
    const std::vector<at::Tensor>& inputs);

namespace internal {

inline std::vector<at::Tensor> pack(at::Tensor output) { return {std::move(output)}; }
inline std::vector<at::Tensor> pack(std::vector<at::Tensor> outputs) { return outputs; }
template <typename... T>
std::vector<at::Tensor> pack(std::tuple<T...> outputs) {
  return std::apply([](auto&&... each) { return std::vector<at::Tensor>{std::move(each)...}; },
                    std::move(outputs));
}

template <typename Result>
Result unpack(std::vector<at::Tensor> outputs) {
  if constexpr (std::is_same_v<Result, at::Tensor>) {
    return std::move(outputs[0]);
  } else if constexpr (std::is_same_v<Result, std::vector<at::Tensor>>) {
    return outputs;
  } else {
    return [&]<size_t... I>(std::index_sequence<I...>) { return Result{std::move(outputs[I])...}; }
    (std::make_index_sequence<std::tuple_size_v<Result>>());
  }
}

}  // namespace internal

// module->forward(inputs...) as part of its unit, if it is sharded; `module` is a pointer or a
// ModuleHolder, the inputs tensors, the result a tensor, a tuple or a vector of them.
template <typename Module, typename... Inputs>
auto forward(const Module& module, const Inputs&... inputs) {
  auto callee = module;  // ModuleHolder's arrow is const, but what it points to is not
  using Result = std::decay_t<decltype(callee->forward(inputs...))>;
  const auto function = [&callee](const std::vector<at::Tensor>& moved) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return internal::pack(callee->forward(moved[I]...));
    }
    (std::make_index_sequence<sizeof...(Inputs)>());
  };
  return internal::unpack<Result>(call(*callee, function, std::vector<at::Tensor>{inputs...}));
}

}  // namespace pipewright::fsdp

#endif  // PIPEWRIGHT_FSDP_FULLY_SHARD_H_
