// Ranks as threads on a device with streams: data moves after the work that was queued on the
// streams of both ends when they posted, and the stream of the waiting rank continues after the
// data has moved. Runs on a test device that delays kernels as long as events allow.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

#include "pipewright/comms/threads.h"
#include "tests/comms/late_device.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::comms {
namespace {

using Tensors = std::vector<at::Tensor>;
constexpr int kRanks = 4;

at::Tensor filled(double value, int64_t size) {
  const at::Tensor tensor = at::empty({size}, at::TensorOptions().device(tests::kLateDevice));
  tests::launch([host = tests::on_host(tensor), value]() mutable { host.fill_(value); });
  return tensor;
}

// Each rank fills tensors with kernels on its own stream, communicates, reads the results with
// kernels on that stream, and synchronizes only at the end and only with that stream. Returns the
// number of wrong results, or the error of a rank.
std::string wrong_results(ir::ChannelCapacity capacity) {
  std::vector<World> worlds = thread_worlds(kRanks, {.capacity = capacity});
  std::vector<int> ranks(kRanks);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::atomic<int> wrong = 0;
  const std::string errors = tests::run_ranks(kRanks, [&](int rank) {
    tests::use_new_stream();
    const BackendPtr group = worlds[static_cast<size_t>(rank)].make_group("all", ranks);
    std::vector<std::pair<at::Tensor, at::Tensor>>
        read;  // what a kernel read, and the expected value
    const auto expect = [&](const at::Tensor& tensor, const at::Tensor& value) {
      const at::Tensor seen = at::empty(tensor.sizes());
      tests::launch([seen, host = tests::on_host(tensor)]() mutable { seen.copy_(host); });
      read.emplace_back(seen, value);
    };
    const int next = (rank + 1) % kRanks, before = (rank + kRanks - 1) % kRanks;
    Tensors out = {filled(rank + 1, 8)}, in = {filled(-1, 8)};
    // One queue per rank: in a ring, not all ranks may start with a RECV, or with a SEND.
    const auto send = [&] { return group->send(out, next, 3); };
    const auto receive = [&] { return group->recv(in, before, 3); };
    const bool first = rank % 2 == 0;
    const auto one = first ? send() : receive(), other = first ? receive() : send();
    one->wait();
    other->wait();
    tests::launch([host = tests::on_host(out[0])]() mutable { host.fill_(-7); });
    expect(in[0], at::full({8}, before + 1.0));

    Tensors sum = {filled(rank + 1, 5)};
    group->allreduce(sum)->wait();
    expect(sum[0], at::full({5}, 10.0));
    c10d::AllreduceOptions average;
    average.reduceOp = c10d::ReduceOp::AVG;
    Tensors mean = {filled(rank + 1, 5)};
    group->allreduce(mean, average)->wait();
    expect(mean[0], at::full({5}, 2.5));
    at::Tensor mine = filled(rank, 2), all = filled(-1, 8), part = filled(-1, 2);
    group->_allgather_base(all, mine)->wait();
    expect(all, at::arange(4, at::kFloat).repeat_interleave(2));
    group->_reduce_scatter_base(part, all)->wait();
    expect(part, at::full({2}, 4.0 * rank));
    Tensors copy = {filled(rank, 3)};
    c10d::BroadcastOptions from_two;
    from_two.rootRank = 2;
    group->broadcast(copy, from_two)->wait();
    expect(copy[0], at::full({3}, 2.0));

    tests::synchronize();
    for (const auto& [seen, value] : read) wrong += at::equal(seen, value) ? 0 : 1;
  });
  return errors.empty() ? std::to_string(wrong) : errors;
}

TEST(ThreadsOnADevice, EventsOrderEverything) {
  for (const ir::ChannelCapacity capacity : {0u, 2u}) {
    for (int round = 0; round < 10; ++round) EXPECT_EQ(wrong_results(capacity), "0");
  }
  EXPECT_GT(tests::num_uses_recorded(), 0);
}

// Proves that the test above can fail: without events, results are read before they are computed.
TEST(ThreadsOnADevice, WithoutEventsResultsAreWrong) {
  tests::ignore_events(true);
  EXPECT_NE(wrong_results(0), "0");
  tests::ignore_events(false);
}

TEST(ThreadsOnADevice, PostingNeverBlocksTheHost) {
  std::vector<World> worlds = thread_worlds(2);
  EXPECT_EQ(tests::run_ranks(2,
                             [&](int rank) {
                               tests::use_new_stream();
                               const BackendPtr group =
                                   worlds[static_cast<size_t>(rank)].make_group("all",
                                                                                std::vector{0, 1});
                               if (rank == 1) return;  // never posts
                               Tensors tensors = {filled(1, 4)};
                               EXPECT_FALSE(group->send(tensors, 1, 0)->isCompleted());
                               EXPECT_FALSE(group->allreduce(tensors)->isCompleted());
                               group->abort();
                             }),
            "");
}

// A function whose backward waits for a peer.
struct Waits : torch::autograd::Function<Waits> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            int64_t group) {
    context->saved_data["group"] = group;
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    auto* group = reinterpret_cast<c10d::Backend*>(context->saved_data["group"].toInt());
    Tensors tensors = {filled(1, 4)};
    group->recv(tensors, 1, 0)->wait();
    return {grads[0], at::Tensor()};
  }
};

TEST(ThreadsOnADevice, WaitInsideABackwardIsAnError) {
  std::vector<World> worlds = thread_worlds(2);
  const std::vector<std::string> errors = tests::errors_of_ranks(2, [&](int rank) {
    const BackendPtr group = worlds[static_cast<size_t>(rank)].make_group("all", std::vector{0, 1});
    if (rank == 1) return;
    const at::Tensor x = at::ones({2}).set_requires_grad(true);
    Waits::apply(x, reinterpret_cast<int64_t>(group.get())).sum().backward();
  });
  EXPECT_NE(
      errors[0].find("wait() inside a backward would block the autograd thread that all ranks "
                     "share"),
      std::string::npos)
      << errors[0];
}

}  // namespace
}  // namespace pipewright::comms
