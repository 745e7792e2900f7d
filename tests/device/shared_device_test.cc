// Data parallelism over ranks that are threads sharing one device, and so the one thread on which
// autograd runs the backwards of that device.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "pipewright/comms/threads/threads.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/modules/data_parallel.h"
#include "pipewright/modules/forward.h"
#include "tests/device/device.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright {
namespace {

constexpr int kRanks = 2;

at::Tensor input_of(int rank, int microbatch) {
  return at::arange(4, at::kFloat).add(10 * rank + microbatch).view({1, 4});
}

// On each rank, with its group. Returns the errors.
std::string on_shared_device(const std::function<void(int, const comms::BackendPtr&)>& body) {
  std::vector<comms::World> worlds =
      comms::thread_worlds(kRanks, {.timeout = std::chrono::seconds(5)});
  const std::vector<int> ranks = {0, 1};
  return tests::run_ranks(kRanks, [&](int rank) {
    body(rank, worlds[static_cast<size_t>(rank)].make_group("dp", ranks));
  });
}

using Module = std::shared_ptr<torch::nn::LinearImpl>;

// Two steps of two microbatches with a REDUCE_GRAD each. The second backward finds the reduction of
// the first REDUCE_GRAD under way: the other rank is late. Returns the gradients of the weight,
// whose rows are each the sum of all inputs.
at::Tensor reduce_twice_per_step(int rank, const Module& linear, modules::DataParallel& stage) {
  for (int step = 0; step < 2; ++step) {
    stage.step_begins();
    stage.unshard();
    stage.wait_unshard();
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      const at::Tensor x = input_of(rank, microbatch).to(testdevice::device(0));
      const at::Tensor loss = modules::forward(linear, x).sum();
      stage.before_backward(microbatch, /*last=*/true);
      loss.backward();
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      stage.after_last_backward();
      stage.reduce_grad();
    }
    stage.reshard();
    stage.wait_reduce();
  }
  return linear->weight.grad().cpu();
}

at::Tensor expected_grad(int64_t rows) {
  at::Tensor sum = at::zeros({1, 4});
  for (int rank = 0; rank < kRanks; ++rank) sum = sum + input_of(rank, 0) + input_of(rank, 1);
  return (sum * 2 / kRanks).expand({rows, 4});
}

TEST(SharedDevice, ReducesTwicePerStep) {
  for (const bool is_mixed : {false, true}) {
    for (const bool is_sharded : {false, true}) {
      const std::string errors = on_shared_device([&](int rank, const comms::BackendPtr& group) {
        const auto linear =
            std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(4, 3).bias(false));
        linear->to(testdevice::device(0));
        modules::MixedPrecisionPolicy policy;
        if (is_mixed) policy.reduce_dtype = at::kDouble;
        if (is_sharded) {
          const auto unit = fsdp::fully_shard(*linear, group, {.mixed_precision = policy});
          const auto stage = unit->data_parallel();
          const at::Tensor grad = reduce_twice_per_step(rank, linear, *stage);
          EXPECT_TRUE(at::allclose(grad, expected_grad(rank == 0 ? 2 : 1))) << grad;
        } else {
          const auto unit = ddp::replicate(*linear, group, {.mixed_precision = policy});
          const auto stage = unit->data_parallel();
          const at::Tensor grad = reduce_twice_per_step(rank, linear, *stage);
          EXPECT_TRUE(at::allclose(grad, expected_grad(3))) << grad;
        }
      });
      EXPECT_EQ(errors, "") << is_mixed << is_sharded;
    }
  }
}

// Without an executor the reductions end with the backward, on that thread: an error at once, and
// not when the time limit is over.
TEST(SharedDevice, ReplicateWithoutAnExecutor) {
  const std::string errors = on_shared_device([&](int rank, const comms::BackendPtr& group) {
    const auto linear =
        std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(4, 3).bias(false));
    linear->to(testdevice::device(0));
    const auto unit = ddp::replicate(*linear, group);
    const at::Tensor loss =
        modules::forward(linear, input_of(rank, 0).to(testdevice::device(0))).sum();
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    loss.backward();
  });
  EXPECT_NE(errors.find("wait() inside a backward would block the autograd thread that all ranks "
                        "share: train with an Executor"),
            std::string::npos)
      << errors;
}

}  // namespace
}  // namespace pipewright
