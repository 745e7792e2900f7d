#ifndef PIPEWRIGHT_MODULES_SPARSE_GRADIENTS_H_
#define PIPEWRIGHT_MODULES_SPARSE_GRADIENTS_H_

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

namespace pipewright::modules {

// Whether backward computes a sparse gradient for the weight of `module`: it is an Embedding or an
// EmbeddingBag with sparse(true). Wrappers reduce dense gradients, and say so when they are called.
inline bool has_sparse_gradient(const torch::nn::Module& module) {
  if (const auto* embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module))
    return embedding->options.sparse();
  const auto* bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module);
  return bag && bag->options.sparse();
}

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_SPARSE_GRADIENTS_H_
