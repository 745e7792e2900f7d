// Losses and gradients of logits that are split over the vocabulary against ATen's cross_entropy on
// the whole ones; what is communicated; errors.
#include "pipewright/tp/cross_entropy.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "pipewright/layout/layout.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/recording/recording_backend.h"
#include "tests/support/training/named_wait.h"
#include "tests/support/training/on_ranks.h"

namespace pipewright::tp {
namespace {

using tests::here;
using tests::on_ranks;
using tests::Rank;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor numbers(at::IntArrayRef sizes) {
  return 3 * at::sin(1.7 * at::arange(c10::multiply_integers(sizes), at::kDouble)).reshape(sizes);
}

at::Tensor tokens(const std::vector<int64_t>& values) { return at::tensor(values); }

at::Tensor part_of(const at::Tensor& whole, const Rank& self) {
  const layout::Chunk mine = layout::chunk_of(whole.size(-1), self.world->size(), self.rank);
  return whole.narrow(-1, mine.begin, mine.length);
}

// The loss and its gradient for `logits` [rows, vocabulary], with a weight per loss if there are
// several.
void expect_same(const Rank& self, const at::Tensor& logits, const at::Tensor& targets,
                 const CrossEntropyOptions& options, const std::string& what) {
  const at::Tensor whole = logits.clone().requires_grad_();
  const at::Tensor expected = at::cross_entropy_loss(whole, targets, /*weight=*/{},
                                                     options.reduction, options.ignore_index);
  const at::Tensor part = part_of(logits, self).clone().to(here()).requires_grad_();
  const at::Tensor got =
      cross_entropy(part, targets.to(here()), logits.size(-1), self.group, options);
  EXPECT_TRUE(at::allclose(expected, got.cpu(), 1e-10, 1e-12, /*equal_nan=*/true))
      << what << ": expected " << expected << ", got " << got;
  const at::Tensor weights = at::cos(at::arange(expected.numel(), at::kDouble)) + 2;
  (expected * weights.reshape(expected.sizes())).sum().backward();
  (got * weights.reshape(expected.sizes()).to(here())).sum().backward();
  ASSERT_TRUE(part.grad().defined()) << what;
  EXPECT_TRUE(at::allclose(part_of(whole.grad(), self), part.grad().cpu(), 1e-10, 1e-12, true))
      << what;
}

TEST(CrossEntropy, IsThatOfTheWholeLogits) {
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, [&](Rank& self) {
      for (const int64_t vocabulary : {8, 7, 5, 1}) {  // 5 over 4 ranks are 2, 2, 1 and 0
        for (const auto reduction :
             {at::Reduction::Mean, at::Reduction::Sum, at::Reduction::None}) {
          const std::string what = std::to_string(vocabulary) + " tokens over " +
                                   std::to_string(ranks) + ", reduction " +
                                   std::to_string(reduction);
          const at::Tensor targets = at::arange(9).remainder(vocabulary);
          const at::Tensor logits = numbers({9, vocabulary});
          expect_same(self, logits, targets, {.reduction = reduction}, what);
          // A far larger offset than exp() can take, different in each row.
          expect_same(self, logits + 1000 * at::arange(9).unsqueeze(-1), targets,
                      {.reduction = reduction}, what + ", large");
          for (const int64_t ignore : {-100, 0, 3}) {
            const at::Tensor some = targets.masked_fill(at::arange(9).eq(5), ignore);
            if (ignore >= vocabulary) continue;
            expect_same(self, logits, some, {.reduction = reduction, .ignore_index = ignore},
                        what + ", ignored " + std::to_string(ignore));
          }
          // Nothing but ignored targets: a mean of NaN, a sum of 0.
          expect_same(self, logits, at::full({9}, -1), {.reduction = reduction, .ignore_index = -1},
                      what + ", all ignored");
        }
      }
    });
  }
}

// A token that cannot occur has a logit of minus infinity.
TEST(CrossEntropy, TakesLogitsOfMinusInfinity) {
  on_ranks(2, [](Rank& self) {
    at::Tensor logits = numbers({4, 6});
    logits.select(1, 1).fill_(-kInfinity);
    logits.narrow(1, 3, 3)[2].fill_(-kInfinity);  // all that the second rank has of a row
    expect_same(self, logits, tokens({0, 2, 2, 5}), {}, "minus infinity");
  });
}

TEST(CrossEntropy, KeepsOtherDimensionsAndComputesInFp32) {
  on_ranks(2, [](Rank& self) {
    const at::Tensor logits = numbers({2, 3, 8}).to(at::kBFloat16).to(here());
    const at::Tensor targets = at::arange(6).reshape({2, 3});
    const at::Tensor got = cross_entropy(part_of(logits, self), targets.to(here()), 8, self.group,
                                         {.reduction = at::Reduction::None});
    EXPECT_EQ(got.scalar_type(), at::kFloat);
    const at::Tensor expected =
        at::cross_entropy_loss(logits.cpu().to(at::kFloat).flatten(0, 1), targets.flatten(),
                               /*weight=*/{}, at::Reduction::None);
    EXPECT_TRUE(at::allclose(expected.reshape({2, 3}), got.cpu(), 1e-6, 1e-6));
  });
}

TEST(CrossEntropy, CommunicatesThreeValuesPerTarget) {
  on_ranks(2, [](Rank& self) {
    const at::Tensor part = part_of(numbers({10, 8}), self).to(at::kFloat).to(here());
    const at::Tensor loss =
        cross_entropy(part.requires_grad_(), at::arange(10).remainder(8).to(here()), 8, self.group);
    EXPECT_EQ(self.log->count("allreduce"), 2);
    EXPECT_EQ(self.log->bytes("allreduce"), (1 + 2) * 10 * 4);
    EXPECT_EQ(self.log->calls().size(), 2u);
    loss.backward();
    EXPECT_EQ(self.log->calls().size(), 2u);
  });
}

TEST(CrossEntropy, ItsWaitIsNamed) {
  tests::expect_named_wait("allreduce", [](const comms::BackendPtr& group) {
    const at::Tensor part = numbers({10, 8}).narrow(-1, 4 * group->getRank(), 4);
    cross_entropy(part, at::arange(10).remainder(8), 8, group);
  });
}

TEST(CrossEntropy, Errors) {
  on_ranks(2, [](Rank& self) {
    const auto error_of = [&](const at::Tensor& logits, const at::Tensor& targets) -> std::string {
      try {
        cross_entropy(logits, targets, 7, self.group);
      } catch (const std::invalid_argument& error) {
        return error.what();
      }
      return "no error";
    };
    const at::Tensor part = part_of(numbers({3, 7}), self);
    const std::string mine = self.rank == 0 ? "4" : "3";
    EXPECT_EQ(error_of(numbers({3, 7}), at::arange(3)),
              "cross_entropy: expected logits of sizes [3, " + mine + "], " + mine +
                  " of 7 tokens per target, got [3, 7]");
    EXPECT_NE(error_of(part, at::arange(4)), "no error");
    EXPECT_EQ(error_of(part, at::arange(3).to(at::kInt)),
              "cross_entropy: expected targets of type Long, got Int");
    EXPECT_EQ(error_of(part, tokens({0, 7, 1})),
              "cross_entropy: expected targets from 0 to 6, got 7");
    EXPECT_EQ(error_of(part, tokens({0, 1, -1})),
              "cross_entropy: expected targets from 0 to 6, got -1");
    EXPECT_TRUE(self.log->calls().empty());
    if (here() == at::kCPU) return;
    const at::Tensor loss =
        cross_entropy(part.to(here()), tokens({0, 7, 1}).to(here()), 7, self.group);
    EXPECT_TRUE(loss.isnan().item<bool>());
  });
}

}  // namespace
}  // namespace pipewright::tp
