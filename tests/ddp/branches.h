#ifndef PIPEWRIGHT_TESTS_DDP_BRANCHES_H_
#define PIPEWRIGHT_TESTS_DDP_BRANCHES_H_

#include <ATen/ATen.h>

#include <vector>

#include "tests/support/ranks/ground.h"
#include "tests/support/training/modules.h"

namespace pipewright::tests {

// Three parameters, of which forward() uses the first; tests use others in losses of their own.
struct Branches : TestModule {
  Branches() {
    for (const char* name : {"a", "b", "c"})
      weights.push_back(register_parameter(name, at::ones({2}, here())));
  }
  at::Tensor forward(const at::Tensor& input) override { return input * weights[0]; }
  std::vector<at::Tensor> weights;
};

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_DDP_BRANCHES_H_
