#ifndef PIPEWRIGHT_AUTOGRAD_KEPT_RESULTS_H_
#define PIPEWRIGHT_AUTOGRAD_KEPT_RESULTS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace pipewright::autograd {

// The operators whose results a checkpointed part keeps from its first forward to the second one,
// which computes the others only: selective checkpointing, as PyTorch's
// create_selective_checkpoint_contexts() with a list of operators (Korthikanti et al., "Reducing
// Activation Recomputation in Large Transformer Models", 2022, has the idea).
//
//   x = checkpoint(forward, {x}, KeepPolicy::matrix_products())[0];
//
// An operator that draws random numbers in a call, such as attention with dropout, is computed
// again. Immutable; for any thread. Make a policy before other threads run operators: the first one
// that names an operator registers a kernel for it.
class KeepPolicy {
 public:
  KeepPolicy() = default;  // keeps nothing
  // Operators of LibTorch by name, such as "aten::mm", each with all its overloads. Throws
  // std::invalid_argument for one that does not exist, that writes to an argument or returns a view
  // of one, or that only calls other operators, as aten::linear does.
  explicit KeepPolicy(const std::vector<std::string>& operators);
  // Matrix products, convolutions and attention: what takes long to compute for its size.
  static KeepPolicy matrix_products();

  bool keeps(const c10::OperatorName& name) const { return operators_.contains(name.name); }

 private:
  static KeepPolicy make_matrix_products();

  std::set<std::string, std::less<>> operators_;
};

// The results that one part keeps. For one thread at a time.
class KeptResults {
 public:
  using Function = std::function<std::vector<at::Tensor>()>;
  explicit KeptResults(KeepPolicy policy) : policy_(std::move(policy)) {}
  KeptResults(const KeptResults&) = delete;
  KeptResults& operator=(const KeptResults&) = delete;

  // Calls `forward` and keeps results of what this thread computes in it. A part within the part
  // has results of its own.
  std::vector<at::Tensor> keep(const Function& forward);
  // Calls `forward`, which gets the kept results where it computed them before, and frees each one
  // thereby. Throws ContractError if it calls other operators, or if a result was written in place
  // since. A further call computes everything.
  std::vector<at::Tensor> reuse(const Function& forward);

  void clear();

  // Called by the kernels of operators that some policy names.
  static void call(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
                   torch::jit::Stack* stack);
  // To be called before an operator of this thread writes to a tensor in keep(): a result in its
  // memory is copied, and kept as it was.
  static void before_write(const at::Tensor& tensor);

 private:
  struct Result {
    std::string name;  // of the operator
    std::vector<c10::IValue> values;
    // The tensors among them, and outputs of the part in their memory, with their versions.
    std::vector<std::pair<at::Tensor, uint32_t>> watched = {};

    void watch(const at::Tensor& tensor) { watched.emplace_back(tensor, tensor._version()); }
    void watch_values();
  };
  class Scope;
  std::vector<c10::IValue> take(const std::string& name);

  const KeepPolicy policy_;
  std::vector<Result> results_;  // in the order of the calls
  size_t next_ = 0;              // which one the second forward takes next
  bool are_spent_ = false;
};

}  // namespace pipewright::autograd

#endif  // PIPEWRIGHT_AUTOGRAD_KEPT_RESULTS_H_
