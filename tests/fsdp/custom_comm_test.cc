// Communication of a user's own, PyTorch's custom all-gather and reduce-scatter objects: a
// c10d::Backend that does something else than an all-gather and a reduce-scatter.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "pipewright/fsdp/fully_shard.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"

namespace pipewright::fsdp {
namespace {

using tests::on_ranks;
using tests::Rank;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Work that is done when it is waited for.
class Later final : public c10d::Work {
 public:
  explicit Later(std::function<void()> body) : body_(std::move(body)) {}
  bool wait(std::chrono::milliseconds) override {
    body_();
    return true;
  }

 private:
  const std::function<void()> body_;
};

// Gathers twice the shards, and reduces gradients to 7. What it communicates itself goes over
// `group`.
class Custom final : public c10d::Backend {
 public:
  explicit Custom(comms::BackendPtr group)
      : Backend(group->getRank(), group->getSize()), group_(std::move(group)) {}

  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    ++gathers;
    expect_own(outputs);
    const WorkPtr work = group_->allgather_into_tensor_coalesced(outputs, inputs, options);
    return c10::make_intrusive<Later>([work, outputs] {
      work->wait();
      for (const at::Tensor& output : outputs) output.mul_(2);
    });
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions&) override {
    ++reductions;
    expect_own(outputs);
    expect_own({inputs[0]});  // after the gradients comes what tells which parameters are used
    return c10::make_intrusive<Later>([outputs] {
      for (const at::Tensor& output : outputs) output.fill_(7);
    });
  }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return can_allocate; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    const at::Tensor tensor = at::empty({size}, options);
    const auto begin = reinterpret_cast<uintptr_t>(tensor.data_ptr());
    own_.push_back({begin, begin + tensor.nbytes()});
    return tensor;
  }
  // For the comparison of modules and for their values.
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    return group_->_allgather_base(output, input, options);
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return group_->broadcast(tensors, options);
  }
  const std::string getBackendName() const override { return "custom"; }

  int gathers = 0, reductions = 0;
  bool can_allocate = true, must_allocate = false;
  size_t allocations() const { return own_.size(); }

 private:
  struct Range {
    uintptr_t begin, end;
  };
  void expect_own(const Tensors& tensors) const {
    if (!must_allocate) return;
    for (const at::Tensor& tensor : tensors) {
      const auto data = reinterpret_cast<uintptr_t>(tensor.data_ptr());
      EXPECT_TRUE(std::ranges::any_of(
          own_, [&](const Range& own) { return data >= own.begin && data < own.end; }));
    }
  }

  const comms::BackendPtr group_;
  std::vector<Range> own_;
};

// Along dimension 1, a gather writes to a buffer of its own.
TEST(FullyShardCustomComm, GathersAndReductionsAreThoseOfTheBackend) {
  for (const int64_t dim : {0, 1}) {
    for (const bool from_group : {false, true}) {
      for (const bool can_allocate : {true, false}) {
        on_ranks(2, [&](Rank& self) {
          const auto linear =
              std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(4, 6).bias(false));
          linear->weight.set_data(tests::random_input({6, 4}, 1));
          const at::Tensor whole = linear->weight.detach().clone();
          const auto custom = c10::make_intrusive<Custom>(self.by_hand);
          const auto unit = fully_shard(
              *linear, custom, {.shard_placement_fn = [dim](const at::Tensor&) { return dim; }});
          unit->set_allocate_memory_from_process_group_for_comm(from_group);
          custom->can_allocate = can_allocate;
          custom->must_allocate = from_group && can_allocate;
          const at::Tensor x = tests::random_input({2, 4}, 2).requires_grad_();
          for (int step = 1; step <= 2; ++step) {
            linear->weight.mutable_grad().reset();
            const at::Tensor y = forward(linear, x);
            EXPECT_TRUE(at::allclose(y, at::linear(x, 2 * whole)));
            y.sum().backward();
            EXPECT_TRUE(at::equal(linear->weight.grad(), at::full_like(linear->weight, 7)));
            EXPECT_EQ(custom->gathers, step);
            EXPECT_EQ(custom->reductions, step);
          }
          EXPECT_EQ(custom->allocations() > 0, custom->must_allocate);
        });
      }
    }
  }
}

}  // namespace
}  // namespace pipewright::fsdp
