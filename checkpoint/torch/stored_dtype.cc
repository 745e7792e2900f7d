#include "pipewright/checkpoint/torch/stored_dtype.h"

#include <c10/util/StringUtil.h>

#include <array>
#include <stdexcept>
#include <utility>

namespace pipewright::checkpoint {
namespace {

constexpr std::array<std::pair<at::ScalarType, DType>, 15> kTypes = {{
    {at::kBool, DType::kBool},
    {at::kByte, DType::kU8},
    {at::kChar, DType::kI8},
    {at::kUInt16, DType::kU16},
    {at::kShort, DType::kI16},
    {at::kUInt32, DType::kU32},
    {at::kInt, DType::kI32},
    {at::kUInt64, DType::kU64},
    {at::kLong, DType::kI64},
    {at::kHalf, DType::kF16},
    {at::kBFloat16, DType::kBF16},
    {at::kFloat, DType::kF32},
    {at::kDouble, DType::kF64},
    {at::kFloat8_e4m3fn, DType::kF8E4M3},
    {at::kFloat8_e5m2, DType::kF8E5M2},
}};

}  // namespace

DType stored_dtype(const at::Tensor& tensor, const std::string& name) {
  for (const auto& [scalar, dtype] : kTypes) {
    if (tensor.scalar_type() == scalar) return dtype;
  }
  throw std::invalid_argument(
      c10::str("checkpoint: tensor `", name, "`: cannot store a tensor of ", tensor.scalar_type()));
}

}  // namespace pipewright::checkpoint
