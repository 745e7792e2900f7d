// The assignment of gradients to buckets equals that of c10d.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "pipewright/ddp/grad_buckets.h"

namespace pipewright::ddp {
namespace {

using Buckets = std::vector<std::vector<size_t>>;

TEST(Buckets, SmallExamples) {
  const std::vector<GradSize> grads = {{4, 0}, {4, 0}, {4, 0}, {4, 0}, {100, 0}};
  EXPECT_EQ(assign_buckets(grads, std::vector<size_t>{0, 1, 2, 3, 4}, 4, 8),
            (Buckets{{0}, {1, 2}, {3, 4}}));
  EXPECT_EQ(assign_buckets(grads, std::vector<size_t>{4, 3, 2, 1, 0}, 4, 8),
            (Buckets{{4}, {3, 2}, {1, 0}}));
  const std::vector<GradSize> kinds = {{4, 0}, {4, 1}, {4, 0}, {4, 1}};
  EXPECT_EQ(assign_buckets(kinds, std::vector<size_t>{0, 1, 2, 3}, 8, 8),
            (Buckets{{0, 2}, {1, 3}}));
}

TEST(Buckets, EqualC10d) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<at::Tensor> tensors;
    std::vector<GradSize> grads;
    std::vector<size_t> order;
    for (size_t i = 0; i < 1 + random() % 20; ++i) {
      tensors.push_back(at::zeros({static_cast<int64_t>(1 + random() % 50)}));
      grads.push_back({tensors.back().nbytes(), 0});
      order.push_back(i);
    }
    const size_t first = 4 * (1 + random() % 30), others = 4 * (1 + random() % 60);
    const auto [expected, limits] =
        c10d::compute_bucket_assignment_by_size(tensors, {first, others});
    EXPECT_EQ(assign_buckets(grads, order, first, others), expected) << round;
  }
}

}  // namespace
}  // namespace pipewright::ddp
