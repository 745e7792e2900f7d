// What collectives do over Gloo only; gloo_test runs this on ranks that are processes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/training/on_ranks.h"

namespace pipewright::comms {
namespace {

using tests::on_ranks;
using tests::Rank;

// Each rank receives its part from all ranks and adds them up, so the sum is rounded once. An
// all-reduce, which torch makes of it, rounds after each rank, and 256 + 1 is no bf16 number.
TEST(ReduceScatter, RoundsOnce) {
  on_ranks(3, [](Rank& self) {
    for (const bool coalesced : {false, true}) {
      std::vector<at::Tensor> inputs = {at::full({3, 2}, self.rank == 0 ? 256 : 1, at::kBFloat16)};
      std::vector<at::Tensor> outputs = {at::zeros({2}, at::kBFloat16)};
      if (coalesced)
        self.group->reduce_scatter_tensor_coalesced(outputs, inputs)->wait();
      else
        self.group->_reduce_scatter_base(outputs[0], inputs[0])->wait();
      EXPECT_TRUE(at::equal(outputs[0], at::full({2}, 258, at::kBFloat16))) << outputs[0];
    }
  });
}

// A small all-reduce too is one exchange.
TEST(AllReduce, RoundsOnceIfSmall) {
  on_ranks(3, [](Rank& self) {
    std::vector<at::Tensor> sum = {at::full({2, 3}, self.rank == 0 ? 256 : 1, at::kBFloat16)};
    self.group->allreduce(sum)->wait();
    EXPECT_TRUE(at::equal(sum[0], at::full({2, 3}, 258, at::kBFloat16))) << sum[0];
  });
}

// Small ones and large ones, and what only torch can add up, under way at once.
TEST(AllReduce, OfManySizesAndTypes) {
  on_ranks(3, [](Rank& self) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble, at::kInt}) {
      std::vector<at::Tensor> inputs;
      std::vector<c10::intrusive_ptr<c10d::Work>> under_way;
      for (const int64_t numel : {1000, 10, 3, 300'000, 2000}) {
        inputs.push_back(at::arange(numel, at::kInt).remainder(50).to(dtype).view({-1, 1}));
        std::vector<at::Tensor> sum = {inputs.back().clone().add_(self.rank)};
        under_way.push_back(self.group->allreduce(sum));
        inputs.back() = inputs.back() * 3 + 3;
        inputs.push_back(sum[0]);
      }
      for (const auto& work : under_way) work->wait();
      for (size_t i = 0; i < inputs.size(); i += 2)
        EXPECT_TRUE(at::equal(inputs[i + 1], inputs[i])) << inputs[i].numel() << " of " << dtype;
    }
    for (const auto& [op, expected] :
         {std::pair{c10d::ReduceOp::MAX, 2}, {c10d::ReduceOp::MIN, -2}}) {
      const int own = expected > 0 ? self.rank : -self.rank;
      std::vector<at::Tensor> extreme = {at::full({2}, own, at::kFloat)};
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      self.group->allreduce(extreme, options)->wait();
      EXPECT_TRUE(at::equal(extreme[0], at::full({2}, expected, at::kFloat))) << extreme[0];
    }
    std::vector<at::Tensor> nothing = {at::zeros({0})};
    self.group->allreduce(nothing)->wait();
  });
}

// Threads of this process that run collectives of torch's groups over Gloo.
int num_gloo_threads() {
  int count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(thread.path() / "comm"), name);
    count += name == "pt_gloo_runloop";
  }
  return count;
}

// All-gathers and reductions that are under way at once, as prefetching makes them. If two threads
// of a group complete collectives at the same time, torch frees memory twice; that takes up to
// 100,000 collectives to happen, so their number is asserted too.
TEST(Collectives, ManyUnderWayAtOnce) {
  on_ranks(3, [](Rank& self) {
    constexpr int kRounds = 200, kAtOnce = 8;
    for (int round = 0; round < kRounds; ++round) {
      std::vector<std::vector<at::Tensor>> parts, wholes;
      std::vector<c10::intrusive_ptr<c10d::Work>> under_way;
      for (int i = 0; i < kAtOnce; ++i) {
        parts.push_back({at::full({1}, self.rank + i, at::kFloat)});
        wholes.push_back({at::ones({3})});
        under_way.push_back(i % 2 == 0
                                ? self.group->allgather_into_tensor_coalesced(wholes[i], parts[i])
                                : self.group->reduce_scatter_tensor_coalesced(parts[i], wholes[i]));
      }
      for (const auto& work : under_way) work->wait();
      for (int i = 0; i < kAtOnce; ++i) {
        if (i % 2 == 0)
          ASSERT_EQ(wholes[i][0][1].item<float>(), 1 + i) << "round " << round;
        else
          ASSERT_EQ(parts[i][0].item<float>(), 3) << "round " << round;
      }
    }
    EXPECT_EQ(num_gloo_threads(), 2);  // one of `group`, one of `by_hand`
  });
}

// Its memory is that of the reduction before, also if that was larger, or of another dtype.
TEST(ReduceScatter, OfManySizesAndTypes) {
  on_ranks(3, [](Rank& self) {
    for (const int64_t numel : {1000, 10, 3, 2000}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble, at::kInt}) {
        std::vector<at::Tensor> inputs, outputs;
        for (const int64_t size : {numel, int64_t{2}}) {
          inputs.push_back(at::arange(3 * size, at::kInt).remainder(50).to(dtype));
          outputs.push_back(at::empty({size}, dtype));
        }
        self.group->reduce_scatter_tensor_coalesced(outputs, inputs)->wait();
        for (size_t i = 0; i < inputs.size(); ++i) {
          const at::Tensor own = inputs[i].chunk(3)[static_cast<size_t>(self.rank)];
          EXPECT_TRUE(at::equal(outputs[i], own * 3)) << numel << " of " << dtype;
        }
      }
    }
  });
}

}  // namespace
}  // namespace pipewright::comms
