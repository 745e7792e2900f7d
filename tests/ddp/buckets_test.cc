// Buckets are those of c10d.
#include "pipewright/ddp/buckets.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace pipewright::ddp {
namespace {

using Buckets = std::vector<std::vector<size_t>>;

TEST(Buckets, ByHand) {
  const std::vector<Piece> pieces = {{4, 0}, {4, 0}, {4, 0}, {4, 0}, {100, 0}};
  EXPECT_EQ(assign_buckets(pieces, std::vector<size_t>{0, 1, 2, 3, 4}, 4, 8),
            (Buckets{{0}, {1, 2}, {3, 4}}));
  EXPECT_EQ(assign_buckets(pieces, std::vector<size_t>{4, 3, 2, 1, 0}, 4, 8),
            (Buckets{{4}, {3, 2}, {1, 0}}));
  const std::vector<Piece> kinds = {{4, 0}, {4, 1}, {4, 0}, {4, 1}};
  EXPECT_EQ(assign_buckets(kinds, std::vector<size_t>{0, 1, 2, 3}, 8, 8),
            (Buckets{{0, 2}, {1, 3}}));
}

TEST(Buckets, AsC10d) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<at::Tensor> tensors;
    std::vector<Piece> pieces;
    std::vector<size_t> order;
    for (size_t i = 0; i < 1 + random() % 20; ++i) {
      tensors.push_back(at::zeros({static_cast<int64_t>(1 + random() % 50)}));
      pieces.push_back({tensors.back().nbytes(), 0});
      order.push_back(i);
    }
    const size_t first = 4 * (1 + random() % 30), others = 4 * (1 + random() % 60);
    const auto [wanted, limits] = c10d::compute_bucket_assignment_by_size(tensors, {first, others});
    EXPECT_EQ(assign_buckets(pieces, order, first, others), wanted) << round;
  }
}

}  // namespace
}  // namespace pipewright::ddp
