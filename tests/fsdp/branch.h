#ifndef PIPEWRIGHT_TESTS_FSDP_BRANCH_H_
#define PIPEWRIGHT_TESTS_FSDP_BRANCH_H_

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <vector>

#include "tests/support/training/modules.h"

namespace pipewright::tests {

// Three parameters, of which a forward uses the one that is set, or that and the second one.
struct Branch : torch::nn::Module {
  explicit Branch(uint64_t seed) {
    for (const char* name : {"a", "b", "c"}) {
      weights.push_back(register_parameter(name, random_input({3}, ++seed)));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = x * weights[static_cast<size_t>(used)];
    return both ? y + x * weights[1] : y;
  }
  int used = 0;
  bool both = false;
  std::vector<at::Tensor> weights;
};

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_FSDP_BRANCH_H_
