// What collectives do over Gloo only; gloo_test runs this on ranks that are processes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace pipewright::comms
