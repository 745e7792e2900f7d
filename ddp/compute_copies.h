#ifndef PIPEWRIGHT_DDP_COMPUTE_COPIES_H_
#define PIPEWRIGHT_DDP_COMPUTE_COPIES_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pipewright::ddp {

// Copies of parameters in another dtype (MixedPrecisionPolicy::param_dtype), which the registered
// tensors hold while a module computes. Optimizers and state dicts see the parameters themselves.
//
//   copies.begin();  // forward and backward compute with copies
//   copies.end();    // registered tensors hold the parameters again
//
// For one thread at a time.
class ComputeCopies {
 public:
  // Without a dtype there are no copies, and begin() and end() do nothing.
  explicit ComputeCopies(std::optional<at::ScalarType> dtype) : dtype_(dtype) {}
  void add(std::string name, at::Tensor registered) {
    params_.push_back({std::move(name), std::move(registered)});
  }
  // Returns `output`, or, if it is a registered tensor that holds a copy, a view of it, which shows
  // that copy also after end().
  at::Tensor outlive_end(const at::Tensor& output) const;
  bool are_used() const { return dtype_.has_value(); }
  bool has_begun() const { return has_begun_; }

  // Copies the values of all floating-point parameters of another dtype; a no-op if it has begun.
  void begin();
  // A no-op if it has not begun. Throws ContractError, naming the parameter, if somebody has
  // written to a copy, which would be lost, or has cast, moved or loaded the parameter meanwhile.
  // It has ended then too.
  void end();

 private:
  struct Param {
    std::string name;
    at::Tensor registered;
    at::Tensor original = {}, copy = {};  // contents, while there is a copy
    uint32_t version = 0;                 // of `registered` with the copy
  };

  const std::optional<at::ScalarType> dtype_;
  std::vector<Param> params_;
  bool has_begun_ = false;
};

}  // namespace pipewright::ddp

#endif  // PIPEWRIGHT_DDP_COMPUTE_COPIES_H_
