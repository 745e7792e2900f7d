// Collectives that pipewright implements itself: for ranks as threads, and over Gloo.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/training/on_ranks.h"

namespace pipewright::comms {
namespace {

using tests::on_ranks;
using tests::Rank;

// Several shapes, one of them empty; sums and averages.
TEST(Collectives, CoalescedReduceScatter) {
  on_ranks(3, [](Rank& self) {
    for (const bool average : {false, true}) {
      std::vector<at::Tensor> inputs, outputs;
      const std::vector<std::vector<int64_t>> shapes = {{2, 5}, {1}, {0, 4}, {7}};
      int64_t begin = 0;
      for (const std::vector<int64_t>& shape : shapes) {
        outputs.push_back(at::full(shape, -1, at::kDouble));
        std::vector<int64_t> whole = shape;
        whole[0] *= 3;
        const int64_t numel = outputs.back().numel() * 3;
        inputs.push_back(
            (at::arange(begin, begin + numel, at::kDouble) * (self.rank + 1)).view(whole));
        begin += numel;
      }
      const std::vector<at::Tensor> before = [&] {
        std::vector<at::Tensor> copies;
        for (const at::Tensor& input : inputs) copies.push_back(input.clone());
        return copies;
      }();
      c10d::ReduceScatterOptions options;
      options.reduceOp = average ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
      const auto work = self.group->reduce_scatter_tensor_coalesced(outputs, inputs, options);
      work->wait();
      work->wait();  // a second wait() changes nothing
      begin = 0;
      for (size_t i = 0; i < shapes.size(); ++i) {
        const int64_t numel = outputs[i].numel();
        const int64_t mine = begin + self.rank * numel;
        // The inputs of the ranks are 1, 2 and 3 times the same values.
        const at::Tensor want = at::arange(mine, mine + numel, at::kDouble) * (average ? 2 : 6);
        EXPECT_TRUE(at::equal(outputs[i], want.view(shapes[i]))) << i << average;
        EXPECT_TRUE(at::equal(inputs[i], before[i]));
        begin += 3 * numel;
      }
    }
  });
}

TEST(Collectives, ReduceScatterOfWrongSize) {
  on_ranks(2, [](Rank& self) {
    std::vector<at::Tensor> inputs = {at::ones({4}), at::ones({5})};
    std::vector<at::Tensor> outputs = {at::ones({2}), at::ones({2})};
    EXPECT_THROW(self.group->reduce_scatter_tensor_coalesced(outputs, inputs)->wait(),
                 std::exception);
  });
}

}  // namespace
}  // namespace pipewright::comms
