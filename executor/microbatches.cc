#include "pipewright/executor/microbatches.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor_split.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <stdexcept>

namespace pipewright::executor {
namespace {

std::string place(const std::string& what, size_t tensor) {
  return what + " " + std::to_string(tensor);
}

// `dim` for each tensor that `dims` split.
SplitDims along(int dim, const SplitDims& dims, size_t tensors) {
  SplitDims result;
  for (size_t i = 0; i < tensors; ++i)
    result.push_back(dim_of(dims, i) ? std::optional(dim) : std::nullopt);
  return result;
}

std::vector<Tensors> split_into_slices(const Tensors& batch, int num_slices, const SplitDims& dims,
                                       const std::string& what, const std::string& help,
                                       const Slicing& slices) {
  for (size_t i = 0; i < batch.size(); ++i) {
    if (!dim_of(dims, i) || !batch[i].defined()) continue;
    const bool exists = slices.dim >= -batch[i].dim() && slices.dim < batch[i].dim();
    if (exists && batch[i].size(slices.dim) % slices.count == 0) continue;
    throw std::invalid_argument(place(what, i) + ": expected a multiple of " +
                                std::to_string(slices.count) + " slices along dimension " +
                                std::to_string(slices.dim) + ", got " +
                                (exists ? std::to_string(batch[i].size(slices.dim))
                                        : std::to_string(batch[i].dim()) + " dimensions") +
                                help);
  }
  std::vector<Tensors> result;
  for (const Tensors& microbatch :
       split_batch(batch, num_slices / slices.count, dims, what, help)) {
    for (Tensors& slice : split_batch(microbatch, slices.count,
                                      along(slices.dim, dims, microbatch.size()), what, help))
      result.push_back(std::move(slice));
  }
  return result;
}

}  // namespace

std::string to_string(const SplitDims& dims) {
  std::string text;
  for (const std::optional<int>& dim : dims)
    text += (text.empty() ? "" : " ") + (dim ? std::to_string(*dim) : "none");
  return text;
}

std::optional<int> dim_of(const SplitDims& dims, size_t tensor) {
  return tensor < dims.size() ? dims[tensor] : 0;
}

std::vector<Tensors> split_batch(const Tensors& batch, int num_microbatches, const SplitDims& dims,
                                 const std::string& what, const std::string& help,
                                 const Slicing& slices) {
  if (slices.count > 1) return split_into_slices(batch, num_microbatches, dims, what, help, slices);
  std::vector<Tensors> microbatches(static_cast<size_t>(num_microbatches));
  for (size_t i = 0; i < batch.size(); ++i) {
    const std::optional<int> dim = dim_of(dims, i);
    if (!dim || !batch[i].defined()) {
      for (Tensors& microbatch : microbatches) microbatch.push_back(batch[i]);
      continue;
    }
    if (*dim < -batch[i].dim() || *dim >= batch[i].dim()) {
      throw std::invalid_argument(place(what, i) + " with " + std::to_string(batch[i].dim()) +
                                  " dimensions cannot be split along dimension " +
                                  std::to_string(*dim) + help);
    }
    if (batch[i].size(*dim) < num_microbatches) {
      throw std::invalid_argument(place(what, i) + ": expected size at least " +
                                  std::to_string(num_microbatches) + " along dimension " +
                                  std::to_string(*dim) + ", one per microbatch, got " +
                                  std::to_string(batch[i].size(*dim)) + help);
    }
    const Tensors parts = at::tensor_split(batch[i], num_microbatches, *dim);
    for (size_t m = 0; m < parts.size(); ++m) microbatches[m].push_back(parts[m]);
  }
  return microbatches;
}

Tensors merge_batch(const std::vector<Tensors>& microbatches, const SplitDims& dims,
                    const std::string& what, const Slicing& slices) {
  if (slices.count > 1) {
    std::vector<Tensors> whole;
    for (auto first = microbatches.begin(); first != microbatches.end(); first += slices.count) {
      const std::vector<Tensors> parts(first, first + slices.count);
      whole.push_back(merge_batch(parts, along(slices.dim, dims, parts[0].size()), what));
    }
    return merge_batch(whole, dims, what);
  }
  const size_t count = microbatches.front().size();
  for (const Tensors& microbatch : microbatches) {
    if (microbatch.size() == count) continue;
    throw std::invalid_argument(what + "s: expected " + std::to_string(count) +
                                " in each microbatch, as in the first one, got " +
                                std::to_string(microbatch.size()));
  }
  Tensors merged;
  for (size_t i = 0; i < count; ++i) {
    Tensors parts;
    for (const Tensors& microbatch : microbatches) parts.push_back(microbatch[i]);
    if (std::ranges::none_of(parts, &at::Tensor::defined)) {
      merged.emplace_back();
      continue;
    }
    const std::optional<int> dim = dim_of(dims, i);
    if (dim) {
      const auto is_scalar = [](const at::Tensor& part) {
        return part.defined() && part.dim() == 0;
      };
      const bool scalars = (*dim == 0 || *dim == -1) && std::ranges::all_of(parts, is_scalar);
      try {
        merged.push_back(scalars ? at::stack(parts) : at::cat(parts, *dim));
      } catch (const c10::Error& error) {
        throw std::invalid_argument(place(what, i) + " cannot be concatenated along dimension " +
                                    std::to_string(*dim) + ": " + error.what_without_backtrace());
      }
      continue;
    }
    if (!parts[0].is_floating_point() && !parts[0].is_complex()) {
      throw std::invalid_argument(place(what, i) +
                                  ": expected a floating-point or complex dtype for a mean over "
                                  "microbatches, got " +
                                  c10::toString(parts[0].scalar_type()));
    }
    at::Tensor sum = parts[0].clone();
    for (size_t m = 1; m < parts.size(); ++m) sum.add_(parts[m]);
    merged.push_back(sum.div_(static_cast<int64_t>(parts.size())));
  }
  return merged;
}

}  // namespace pipewright::executor
