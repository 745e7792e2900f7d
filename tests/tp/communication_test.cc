// Forward and backward of each function against what it means for whole tensors on one rank: each
// rank's loss is a weighted sum of its output, and the gradient that of the sum of all losses.
#include "pipewright/tp/communication.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "pipewright/autograd/split_backward.h"
#include "pipewright/layout/layout.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/on_ranks.h"

namespace pipewright::tp {
namespace {

using tests::on_ranks;
using tests::Rank;

at::Tensor numbers(at::IntArrayRef sizes, int seed) {
  const int64_t count = c10::multiply_integers(sizes);
  return at::sin(at::arange(count, at::kDouble) * 0.7 + seed).reshape(sizes).to(tests::here());
}

// One case: `length` elements along `dim` of a tensor of three dimensions, over `ranks` ranks.
struct Case {
  int ranks;
  int64_t dim, length;

  std::vector<int64_t> sizes() const {
    std::vector<int64_t> sizes = {2, 3, 4};
    sizes[static_cast<size_t>(dim < 0 ? dim + 3 : dim)] = length;
    return sizes;
  }
  at::Tensor chunk(const at::Tensor& whole, int rank) const {
    const layout::Chunk mine = layout::chunk_of(length, ranks, rank);
    return whole.narrow(dim, mine.begin, mine.length);
  }
  std::string text() const {
    return std::to_string(length) + " along " + std::to_string(dim) + " over " +
           std::to_string(ranks);
  }
};

class Communication : public testing::TestWithParam<Case> {
 protected:
  // On each rank, applies `function` to that rank's `input`, and expects the output, and for the
  // weights of the loss (by rank) the gradient of the input.
  using ByRank = std::function<at::Tensor(int rank)>;
  static void expect(
      const std::function<at::Tensor(const at::Tensor&, const comms::BackendPtr&)>& function,
      const ByRank& input, const ByRank& output, const ByRank& weights, const ByRank& gradient) {
    on_ranks(GetParam().ranks, [&](Rank& self) {
      const at::Tensor x = input(self.rank).clone().requires_grad_();
      const at::Tensor y = function(x, self.group);
      EXPECT_TRUE(at::allclose(y.cpu(), output(self.rank).cpu())) << GetParam().text();
      (y * weights(self.rank)).sum().backward();
      ASSERT_TRUE(x.grad().defined());
      EXPECT_TRUE(at::allclose(x.grad().cpu(), gradient(self.rank).cpu())) << GetParam().text();
    });
  }
  static at::Tensor sum_over_ranks(const ByRank& each) {
    at::Tensor sum = each(0);
    for (int rank = 1; rank < GetParam().ranks; ++rank) sum = sum + each(rank);
    return sum;
  }
  static at::Tensor cat_over_ranks(const ByRank& each) {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < GetParam().ranks; ++rank) parts.push_back(each(rank));
    return at::cat(parts, GetParam().dim);
  }
};

TEST_P(Communication, CopyTo) {
  const Case& of = GetParam();
  const auto weights = [&](int rank) { return numbers(of.sizes(), 10 + rank); };
  const auto same = [&](int) { return numbers(of.sizes(), 1); };
  expect(copy_to, same, same, weights, [&](int) { return sum_over_ranks(weights); });
}

TEST_P(Communication, ReduceFrom) {
  const Case& of = GetParam();
  const auto each = [&](int rank) { return numbers(of.sizes(), rank); };
  const auto weights = [&](int) { return numbers(of.sizes(), 10); };
  expect(
      reduce_from, each, [&](int) { return sum_over_ranks(each); }, weights, weights);
}

TEST_P(Communication, GatherFrom) {
  const Case& of = GetParam();
  const auto whole = [&](int) { return numbers(of.sizes(), 1); };
  const auto weights = [&](int) { return numbers(of.sizes(), 10); };
  expect([&](const auto& x, const auto& group) { return gather_from(x, of.dim, of.length, group); },
         [&](int rank) { return of.chunk(whole(0), rank); }, whole, weights,
         [&](int rank) { return of.chunk(weights(0), rank); });
}

TEST_P(Communication, ScatterTo) {
  const Case& of = GetParam();
  const auto whole = [&](int) { return numbers(of.sizes(), 1); };
  const auto weights = [&](int rank) { return of.chunk(numbers(of.sizes(), 10 + rank), rank); };
  expect([&](const auto& x, const auto& group) { return scatter_to(x, of.dim, group); }, whole,
         [&](int rank) { return of.chunk(whole(0), rank); }, weights,
         [&](int) { return cat_over_ranks(weights); });
}

TEST_P(Communication, GatherPartial) {
  const Case& of = GetParam();
  const auto whole = [&](int) { return numbers(of.sizes(), 1); };
  const auto weights = [&](int rank) { return numbers(of.sizes(), 10 + rank); };
  expect(
      [&](const auto& x, const auto& group) { return gather_partial(x, of.dim, of.length, group); },
      [&](int rank) { return of.chunk(whole(0), rank); }, whole, weights,
      [&](int rank) { return of.chunk(sum_over_ranks(weights), rank); });
}

TEST_P(Communication, ReduceScatter) {
  const Case& of = GetParam();
  const auto each = [&](int rank) { return numbers(of.sizes(), rank); };
  const auto weights = [&](int rank) { return of.chunk(numbers(of.sizes(), 10 + rank), rank); };
  expect([&](const auto& x, const auto& group) { return reduce_scatter(x, of.dim, group); }, each,
         [&](int rank) { return of.chunk(sum_over_ranks(each), rank); }, weights,
         [&](int) { return cat_over_ranks(weights); });
}

// Even, uneven, and with ranks that have no element.
INSTANTIATE_TEST_SUITE_P(Sizes, Communication,
                         testing::Values(Case{1, 0, 3}, Case{2, 0, 4}, Case{2, -1, 5},
                                         Case{3, 1, 5}, Case{4, 0, 5}, Case{4, 1, 2},
                                         Case{4, -1, 9}),
                         [](const auto& of) {
                           return std::to_string(of.param.ranks) + "ranks_" +
                                  std::to_string(of.index);
                         });

// Backward communicates only where a gradient is needed.
TEST(CommunicationCalls, AreThoseOfTheTable) {
  on_ranks(2, [](Rank& self) {
    const auto calls = [&] {
      std::string text;
      for (const comms::CallRecord& call : self.log->calls()) text += call.op + " ";
      self.log->clear();
      return text;
    };
    const at::Tensor x = numbers({2, 4}, 1), weight = numbers({2, 4}, 2).requires_grad_();
    (copy_to(x, self.group) * weight).sum().backward();
    EXPECT_EQ(calls(), "");
    copy_to(weight, self.group).sum().backward();
    EXPECT_EQ(calls(), "allreduce ");
    reduce_from(x, self.group);
    EXPECT_EQ(calls(), "allreduce ");
    reduce_from(x * weight, self.group).sum().backward();
    EXPECT_EQ(calls(), "allreduce ");
    gather_from(weight, 0, 4, self.group).sum().backward();
    EXPECT_EQ(calls(), "_allgather_base ");
    scatter_to(weight, 0, self.group).sum().backward();
    EXPECT_EQ(calls(), "_allgather_base ");
    gather_partial(weight, 0, 4, self.group).sum().backward();
    EXPECT_EQ(calls(), "_allgather_base _reduce_scatter_base ");
    reduce_scatter(weight, 0, self.group).sum().backward();
    EXPECT_EQ(calls(), "_reduce_scatter_base _allgather_base ");
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(reduce_from(weight, self.group).requires_grad());
  });
}

// A column-parallel layer after another one: I all-reduces, W communicates nothing.
TEST(CommunicationCalls, AreInTheInputHalfOfASplitBackward) {
  on_ranks(2, [](Rank& self) {
    at::Tensor input = numbers({3, 4}, 1).requires_grad_(),
               first = numbers({4, 4}, 2).requires_grad_(),
               second = numbers({2, 4}, 3 + self.rank).requires_grad_();
    const auto forward = [&] {
      return at::linear(copy_to(at::linear(input, first), self.group), second);
    };
    const at::Tensor gradient = numbers({3, 2}, 9);
    forward().backward(gradient);
    const std::vector<at::Tensor> expected = {input.grad(), first.grad(), second.grad()};
    for (at::Tensor* each : {&input, &first, &second}) each->mutable_grad().reset();

    self.log->clear();
    const auto work = std::make_shared<autograd::WeightWork>();
    autograd::NodeRange nodes;
    const at::Tensor output = forward();
    nodes.end();
    const auto inputs =
        autograd::backward_input({autograd::root_of(output)}, {gradient}, {input}, nodes, *work);
    EXPECT_EQ(self.log->count("allreduce"), 1);
    EXPECT_FALSE(first.grad().defined());
    self.log->clear();
    work->run();
    EXPECT_TRUE(self.log->calls().empty());
    EXPECT_TRUE(at::equal(inputs[0].cpu(), expected[0].cpu()));
    EXPECT_TRUE(at::equal(first.grad().cpu(), expected[1].cpu()));
    EXPECT_TRUE(at::equal(second.grad().cpu(), expected[2].cpu()));
  });
}

TEST(CommunicationErrors, NameTheDimensionAndTheSizes) {
  on_ranks(2, [](Rank& self) {
    const auto message = [](const auto& function) -> std::string {
      try {
        function();
      } catch (const std::invalid_argument& error) {
        return error.what();
      }
      return "no error";
    };
    const at::Tensor x = numbers({2, 3}, 1);
    EXPECT_EQ(message([&] { scatter_to(x, 2, self.group); }),
              "scatter_to: expected a dimension of a tensor of 2, got 2");
    EXPECT_EQ(message([&] { gather_from(x, 0, 7, self.group); }),
              std::string("gather along dimension 0: expected ") + (self.rank == 0 ? "4" : "3") +
                  " of 7 elements on rank " + std::to_string(self.rank) + " of 2, got [2, 3]");
  });
}

}  // namespace
}  // namespace pipewright::tp
