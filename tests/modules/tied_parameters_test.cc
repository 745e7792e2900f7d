// Parameters that several pipeline stages share: copies of them on one rank and on several.
#include "pipewright/modules/tied_parameters.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "pipewright/comms/mesh.h"
#include "pipewright/modules/clip_grad_norm.h"
#include "pipewright/modules/distribution.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/on_ranks.h"

namespace pipewright::modules {
namespace {

using tests::errors_on_ranks;
using tests::here;
using tests::on_ranks;
using tests::Rank;

// Three copies: the first and the last on rank 2, the second on rank 0, none on rank 1.
const std::vector<int> kRanks = {2, 0, 2};

std::vector<at::Tensor> copies_on(int rank) {
  std::vector<at::Tensor> copies;
  for (size_t i = 0; i < kRanks.size(); ++i) {
    if (kRanks[i] == rank)
      copies.push_back(at::full({2, 3}, static_cast<double>(7 + i), here()).requires_grad_());
  }
  return copies;
}

// A backward whose gradient of copy i is 10^i times `factor`; in all, 111 of them.
void backward(const std::vector<at::Tensor>& copies, int rank, double factor) {
  size_t own = 0;
  for (size_t i = 0; i < kRanks.size(); ++i) {
    if (kRanks[i] == rank) (copies[own++] * (factor * std::pow(10, i))).sum().backward();
  }
}

void expect_all(const std::vector<at::Tensor>& tensors, double value) {
  for (const at::Tensor& tensor : tensors)
    EXPECT_TRUE(at::equal(tensor.cpu(), at::full({2, 3}, value))) << tensor.cpu() << value;
}

std::vector<at::Tensor> grads_of(const std::vector<at::Tensor>& copies) {
  std::vector<at::Tensor> grads;
  for (const at::Tensor& copy : copies) grads.push_back(copy.grad());
  return grads;
}

void zero(const std::vector<at::Tensor>& copies, bool set_to_none) {
  for (const at::Tensor& copy : copies) {
    if (set_to_none)
      copy.mutable_grad().reset();
    else
      copy.mutable_grad().zero_();
  }
}

TEST(TiedParameters, HaveTheSumOfAllGradients) {
  on_ranks(3, [](Rank& self) {
    TiedParameters tied(*self.world);
    const std::vector<at::Tensor> copies = copies_on(self.rank);
    if (!copies.empty()) tied.tie("weight", kRanks, copies);
    expect_all(copies, 7);
    for (const bool set_to_none : {true, false}) {
      double sum = 0;
      for (const double factor : {1.0, 3.0, 0.5}) {  // gradients of steps accumulate
        tied.step_begins();
        for (int microbatch = 0; microbatch < 2; ++microbatch)
          backward(copies, self.rank, factor / 2);
        tied.add_gradients();
        sum += 111 * factor;
        expect_all(grads_of(copies), sum);
      }
      zero(copies, set_to_none);
    }
    // A training that skips a batch, and one that begins again in the middle of a step.
    tied.step_begins();
    backward(copies, self.rank, 100);
    zero(copies, true);
    tied.step_begins();
    backward(copies, self.rank, 1);
    tied.add_gradients();
    expect_all(grads_of(copies), 111);
  });
}

TEST(TiedParameters, ACopyWithoutAGradientCountsAsZero) {
  on_ranks(3, [](Rank& self) {
    TiedParameters tied(*self.world);
    const std::vector<at::Tensor> copies = copies_on(self.rank);
    if (!copies.empty()) tied.tie("weight", kRanks, copies);
    tied.step_begins();
    if (self.rank == 0) backward(copies, 0, 1);
    tied.add_gradients();
    expect_all(grads_of(copies), 10);
    // Gradients are not shared: the optimizer, and clipping, change each of them.
    if (self.rank == 2) {
      copies[0].mutable_grad().zero_();
      expect_all({copies[1].grad()}, 10);
    }
    zero(copies, true);
    for (at::Tensor copy : copies) copy.requires_grad_(false);
    tied.step_begins();
    tied.add_gradients();
    for (const at::Tensor& copy : copies) EXPECT_FALSE(copy.grad().defined());
  });
}

// Both stages of one rank use one tensor, which is two of the copies.
TEST(TiedParameters, OneTensorMayBeSeveralCopies) {
  on_ranks(2, [](Rank& self) {
    TiedParameters tied(*self.world);
    const at::Tensor weight = at::full({2, 3}, 7.0, here()).requires_grad_();
    std::vector<at::Tensor> copies = {weight};
    if (self.rank == 0) copies.push_back(weight);
    tied.tie("weight", {0, 0, 1}, copies);
    EXPECT_EQ(layout_of(weight).layout.text(), "[2, 3] tied=2:replicate");
    EXPECT_EQ(layout_of(weight).rank, self.rank);
    for (const double sum : {11.0, 22.0}) {  // gradients accumulate
      tied.step_begins();
      (weight * (self.rank == 0 ? 1 : 10)).sum().backward();
      tied.add_gradients();
      expect_all({weight.grad()}, sum);
    }
    const at::Tensor norm = total_grad_norm(grads_to_clip(copies), *self.by_hand);
    EXPECT_NEAR(norm.item<double>(), std::sqrt(6.0) * 22, 1e-5);
  });
}

// A gradient with other strides than the parameter, as of a transposed product.
TEST(TiedParameters, TakeGradientsWithOtherStrides) {
  on_ranks(2, [](Rank& self) {
    TiedParameters tied(*self.world);
    const at::Tensor copy = at::zeros({2, 3}, here(at::kDouble)).requires_grad_();
    tied.tie("weight", {0, 1}, {copy});
    const at::Tensor grad = at::arange(6, at::kDouble).to(here()).view({3, 2}).t();
    copy.mutable_grad() = self.rank == 0 ? grad.clone() : grad.contiguous();
    tied.add_gradients();
    EXPECT_TRUE(at::equal(copy.grad().cpu(), (2 * grad).cpu()));
  });
}

// The ranks of two ties wait for each other's in another order than their stages have.
TEST(TiedParameters, SeveralAreAddedInTheOrderOfTheirTies) {
  on_ranks(3, [](Rank& self) {
    TiedParameters tied(*self.world);
    std::vector<at::Tensor> mine;
    const std::vector<std::vector<int>> pairs = {{0, 1}, {2, 1}, {2, 0}};
    for (size_t i = 0; i < pairs.size(); ++i) {
      if (std::ranges::find(pairs[i], self.rank) == pairs[i].end()) continue;
      mine.push_back(at::full({4}, 1.0 + static_cast<double>(i), here()).requires_grad_());
      tied.tie("weight" + std::to_string(i), pairs[i], {mine.back()});
    }
    tied.step_begins();
    for (const at::Tensor& copy : mine) (copy * copy).sum().backward();
    tied.add_gradients();
    for (const at::Tensor& copy : mine)
      EXPECT_TRUE(at::equal(copy.grad().cpu(), 4 * copy.detach().cpu())) << copy.cpu();
  });
}

TEST(TiedParameters, AreReplicasForClippingAndCheckpoints) {
  on_ranks(3, [](Rank& self) {
    TiedParameters tied(*self.world);
    const std::vector<at::Tensor> copies = copies_on(self.rank);
    if (!copies.empty()) tied.tie("weight", kRanks, copies);
    size_t own = 0;
    for (size_t i = 0; i < kRanks.size(); ++i) {
      if (kRanks[i] != self.rank) continue;
      const layout::LocalLayout where = layout_of(copies[own++]);
      EXPECT_EQ(where.layout.text(), "[2, 3] tied=3:replicate");
      EXPECT_EQ(where.rank, i);
    }
    tied.step_begins();
    backward(copies, self.rank, 1);
    tied.add_gradients();
    // Another parameter, of rank 1.
    std::vector<at::Tensor> all = copies;
    if (self.rank == 1) {
      all.push_back(at::zeros({1}, here()).requires_grad_());
      all.back().mutable_grad() = at::full({1}, 1000.0, here());
    }
    const at::Tensor norm = clip_grad_norm_(grads_to_clip(all), *self.by_hand, 1);
    const double expected = std::sqrt(6 * 111.0 * 111.0 + 1e6);
    EXPECT_NEAR(norm.item<double>(), expected, 1e-3);
    for (const at::Tensor& copy : copies)
      EXPECT_NEAR(copy.grad()[0][0].item<double>(), 111 / expected, 1e-6);
  });
}

TEST(TiedParameters, CopiesThatDifferAreAnErrorOnAllRanks) {
  const auto errors = [](const std::function<std::vector<at::Tensor>(int rank)>& copies_of) {
    return errors_on_ranks(3, [&](Rank& self) {
      TiedParameters tied(*self.world);
      if (const auto copies = copies_of(self.rank); !copies.empty())
        tied.tie("weight", kRanks, copies);
    });
  };
  std::vector<std::string> found = errors([](int rank) {
    auto copies = copies_on(rank);
    if (rank == 0) copies[0] = at::zeros({3, 2}, here());
    return copies;
  });
  const std::string differs =
      "ranks disagree: expected `weight`, Float [2, 3], part 0 as on rank 0, got `weight`, Float "
      "[3, 2], part 0 on rank 1";
  EXPECT_EQ(found, (std::vector<std::string>{differs, "", differs}));
  // Two copies of one rank.
  found = errors([](int rank) {
    auto copies = copies_on(rank);
    if (rank == 2) copies[1] = copies[1].detach().to(at::kDouble);
    return copies;
  });
  EXPECT_NE(found[0].find("Float [2, 3], part 0 and `weight`, Double [2, 3]"), std::string::npos)
      << found[0];
  EXPECT_EQ(found[2], found[0]);
  EXPECT_EQ(errors_on_ranks(
                1,
                [](Rank& self) {
                  TiedParameters tied(*self.world);
                  tied.tie("weight", {0, 0}, {at::zeros({2}, here()), at::zeros({3}, here())});
                })[0],
            "tied parameters: expected equal copies, got `weight`, Float [2], part 0 and `weight`, "
            "Float [3], part 0");
  EXPECT_EQ(errors_on_ranks(1,
                            [](Rank& self) {
                              TiedParameters tied(*self.world);
                              tied.tie("weight", {0, 0}, {at::zeros({2}, here())});
                            })[0],
            "tied parameter `weight`: rank 0 has 2 of the copies, got 1");
}

}  // namespace
}  // namespace pipewright::modules
