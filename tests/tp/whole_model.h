#ifndef PIPEWRIGHT_TESTS_TP_WHOLE_MODEL_H_
#define PIPEWRIGHT_TESTS_TP_WHOLE_MODEL_H_

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "pipewright/layout/layout.h"
#include "pipewright/modules/distribution.h"

// Compares a model that is spread over ranks with a plain copy, which every rank has.

namespace pipewright::tp {

inline bool is_close(const at::Tensor& expected, const at::Tensor& got) {
  return expected.sizes() == got.sizes() && at::allclose(expected, got, 1e-9, 1e-11);
}

// The chunk of `rank` along `dim`.
inline at::Tensor chunk_of(const at::Tensor& whole, int64_t dim, int ranks, int rank) {
  const layout::Chunk mine = layout::chunk_of(whole.size(dim), ranks, rank);
  return whole.narrow(dim, mine.begin, mine.length);
}

// The part of a whole parameter, or of its gradient, that a rank with layout `of` has.
inline at::Tensor part_of(const at::Tensor& whole, const layout::LocalLayout& of) {
  const std::vector<layout::Box> boxes = of.layout.boxes(of.rank);
  if (boxes.empty()) return at::empty(of.layout.local_shape(of.rank), whole.options());
  EXPECT_EQ(boxes.size(), 1u);
  at::Tensor part = whole;
  for (int64_t d = 0; d < whole.dim(); ++d) {
    const auto i = static_cast<size_t>(d);
    part = part.narrow(d, boxes[0].begin[i], boxes[0].sizes[i]);
  }
  return part;
}

// Expects this rank's parts of all parameters, and of gradients if there are any.
inline void expect_parts(const torch::nn::Module& plain, const torch::nn::Module& module,
                         const std::string& when) {
  const auto parameters = module.named_parameters();
  const auto layouts = modules::layouts(module);
  for (const auto& named : plain.named_parameters()) {
    const at::Tensor &expected = named.value(), &got = parameters[named.key()];
    const layout::LocalLayout& layout = layouts.at(named.key());
    EXPECT_TRUE(is_close(part_of(expected, layout), got)) << named.key() << when;
    ASSERT_EQ(expected.grad().defined(), got.grad().defined()) << named.key() << when;
    if (!expected.grad().defined()) continue;
    EXPECT_TRUE(is_close(part_of(expected.grad(), layout), got.grad()))
        << "the gradient of " << named.key() << when;
  }
}

// The same for whole parameters and gradients. Collective.
inline void expect_whole(const torch::nn::Module& plain, const torch::nn::Module& module,
                         const std::string& when) {
  const auto parameters = module.named_parameters();
  for (const auto& named : plain.named_parameters()) {
    const at::Tensor &expected = named.value(), &got = parameters[named.key()];
    EXPECT_TRUE(is_close(expected, modules::full_tensor(got))) << named.key() << when;
    ASSERT_EQ(expected.grad().defined(), got.grad().defined()) << named.key() << when;
    if (!expected.grad().defined()) continue;
    EXPECT_TRUE(is_close(expected.grad(), modules::full_tensor(got, got.grad())))
        << "the gradient of " << named.key() << when;
  }
}

}  // namespace pipewright::tp

#endif  // PIPEWRIGHT_TESTS_TP_WHOLE_MODEL_H_
