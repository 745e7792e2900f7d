// Collectives that pipewright implements itself: for ranks as threads, and over Gloo.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <regex>

#include "pipewright/comms/group.h"
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
    self.group->barrier()->wait();  // a process that ends would disturb one that still connects
    std::vector<at::Tensor> inputs = {at::ones({4}), at::ones({5})};
    std::vector<at::Tensor> outputs = {at::ones({2}), at::ones({2})};
    EXPECT_THROW(self.group->reduce_scatter_tensor_coalesced(outputs, inputs)->wait(),
                 std::exception);
  });
}

// Ranks that call different collectives all get an error, the same over Gloo, and no process
// aborts.
TEST(Collectives, ThatDiffer) {
  using Call = std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&, int64_t size)>;
  struct Case {
    std::string op;
    Call call;
  };
  const std::vector<Case> cases = {
      {"allreduce",
       [](c10d::Backend& group, int64_t size) {
         std::vector<at::Tensor> sum = {at::ones({size})};
         return group.allreduce(sum);
       }},
      {"_allgather_base",
       [](c10d::Backend& group, int64_t size) {
         at::Tensor input = at::ones({size}), output = at::ones({3 * size});
         return group._allgather_base(output, input);
       }},
      {"_reduce_scatter_base",
       [](c10d::Backend& group, int64_t size) {
         at::Tensor input = at::ones({3 * size}), output = at::ones({size});
         return group._reduce_scatter_base(output, input);
       }},
  };
  for (const Case& one_case : cases) {
    on_ranks(3, [&](Rank& self) {
      const BackendPtr group = self.world->make_group("tp", std::vector{0, 1, 2});
      one_case.call(*group, 2)->wait();
      std::string error = "no error";
      try {
        one_case.call(*group, self.rank == 1 ? 1000 : 2)->wait();
      } catch (const std::runtime_error& caught) {
        error = caught.what();
      }
      const std::string pattern =
          tests::ranks_are_processes()
              ? "rank [012]: collective 2 of group `tp\\[0,1,2\\]#[0-9]+`: expected " +
                    one_case.op + " of Float \\[[0-9]+\\] as on rank [012], got " + one_case.op +
                    " of Float \\[[0-9]+\\]"
              : ".* does not match rank .*";
      EXPECT_TRUE(std::regex_match(error, std::regex(pattern))) << error;
      if (!tests::ranks_are_processes()) return;
      self.world->reset();
      one_case.call(*group, 2)->wait();
    });
  }
}

}  // namespace
}  // namespace pipewright::comms
