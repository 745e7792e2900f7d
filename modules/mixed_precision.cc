#include "pipewright/modules/mixed_precision.h"

#include <c10/util/StringUtil.h>

namespace pipewright::modules {

std::string to_string(const MixedPrecisionPolicy& policy) {
  const auto name = [](std::optional<at::ScalarType> dtype) {
    return dtype ? c10::toString(*dtype) : "none";
  };
  const auto& [param_dtype, reduce_dtype, output_dtype, cast_forward_inputs] = policy;
  return c10::str("param_dtype ", name(param_dtype), ", reduce_dtype ", name(reduce_dtype),
                  ", output_dtype ", name(output_dtype), ", cast_forward_inputs ",
                  cast_forward_inputs);
}

}  // namespace pipewright::modules
