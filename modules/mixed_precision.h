#ifndef PIPEWRIGHT_MODULES_MIXED_PRECISION_H_
#define PIPEWRIGHT_MODULES_MIXED_PRECISION_H_

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

namespace pipewright::modules {

// Which dtypes a wrapped module computes and communicates in: PyTorch's MixedPrecisionPolicy. The
// registered parameters, their gradients and the optimizer's state keep the dtype that the
// parameters have. Buffers are never cast.
//
//   .mixed_precision = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}
struct MixedPrecisionPolicy {
  // Forward and backward use copies of the parameters in this dtype, and gather them in it;
  // nullopt: that of the parameters.
  std::optional<at::ScalarType> param_dtype = std::nullopt;
  // Gradients are accumulated and reduced in this dtype; nullopt: that of the parameters, as in
  // PyTorch from 2.15 on (before, in param_dtype).
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  // Floating-point outputs are cast to this dtype; nullopt: they are not cast.
  std::optional<at::ScalarType> output_dtype = std::nullopt;
  // Whether forward casts its floating-point inputs to param_dtype.
  bool cast_forward_inputs = true;

  bool operator==(const MixedPrecisionPolicy&) const = default;
};

// "param_dtype BFloat16, reduce_dtype none, ...": what ranks compare.
std::string to_string(const MixedPrecisionPolicy& policy);

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_MIXED_PRECISION_H_
