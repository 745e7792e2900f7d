#ifndef PIPEWRIGHT_CHECKPOINT_TORCH_STORED_DTYPE_H_
#define PIPEWRIGHT_CHECKPOINT_TORCH_STORED_DTYPE_H_

#include <ATen/core/Tensor.h>

#include <string>

#include "pipewright/checkpoint/dtype.h"

namespace pipewright::checkpoint {

// The type that a checkpoint stores the elements of a tensor in. Throws std::invalid_argument,
// which calls the tensor `name`, if checkpoints have no such type.
DType stored_dtype(const at::Tensor& tensor, const std::string& name);

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_TORCH_STORED_DTYPE_H_
