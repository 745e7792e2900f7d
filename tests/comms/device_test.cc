// Ranks as threads that share a device with streams: data moves after the work that was queued on
// the streams of both ends when they posted, and the stream of the waiting rank continues after the
// data has moved. Runs on the test device (tests/device).
#include "tests/device/device.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

#include "pipewright/comms/threads/thread_backend.h"
#include "pipewright/comms/threads/threads.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::comms {
namespace {

using Tensors = std::vector<at::Tensor>;
constexpr int kRanks = 4;
constexpr uint64_t kSeeds = 10;
const at::Device kDevice = testdevice::device(0);

at::Tensor filled(double value, int64_t size) { return at::full({size}, value, kDevice); }

// Each rank fills tensors on its own stream, communicates, reads the results on that stream, and
// synchronizes only at the end and only with that stream. Returns the number of wrong results, or
// the error of a rank.
std::string wrong_results(ir::ChannelCapacity capacity) {
  std::vector<World> worlds = thread_worlds(kRanks, {.capacity = capacity});
  std::vector<int> ranks(kRanks);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::atomic<int> wrong = 0;
  const std::string errors = tests::run_ranks(kRanks, [&](int rank) {
    const c10::StreamGuard guard(testdevice::new_stream(0));
    const BackendPtr group = worlds[static_cast<size_t>(rank)].make_group("all", ranks);
    std::vector<std::pair<at::Tensor, at::Tensor>> read;  // a result, and the expected value
    const auto expect = [&](const at::Tensor& tensor, const at::Tensor& value) {
      read.emplace_back(tensor * 1, value);
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
    out[0].fill_(-7);
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

    for (const auto& [seen, value] : read) wrong += at::equal(seen.cpu(), value) ? 0 : 1;
  });
  testdevice::drain();
  return errors.empty() ? std::to_string(wrong) : errors;
}

TEST(ThreadsOnADevice, EventsOrderEverything) {
  for (const ir::ChannelCapacity capacity : {0u, 2u}) {
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      testdevice::seed(seed);
      EXPECT_EQ(wrong_results(capacity), "0");
      EXPECT_EQ(testdevice::races(), std::vector<std::string>());
    }
  }
}

// Proves that the test above can fail.
TEST(ThreadsOnADevice, WithoutEventsOrRecordedStreamsThereAreRaces) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    testdevice::seed(seed);
    testdevice::ignore_event_waits(true);
    wrong_results(0);
    EXPECT_FALSE(testdevice::races().empty());
  }
  testdevice::seed(0);
  EXPECT_NE((testdevice::ignore_event_waits(true), wrong_results(0)), "0");
  testdevice::seed(0);
}

// A sender may drop its Work and its tensor as soon as it has posted: only recordStream keeps the
// memory until the data has moved on the receiver's stream.
TEST(ThreadsOnADevice, ASenderMayFreeItsTensor) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    testdevice::seed(seed);
    std::vector<World> worlds = thread_worlds(2);
    EXPECT_EQ(tests::run_ranks(2,
                               [&](int rank) {
                                 const c10::StreamGuard guard(testdevice::new_stream(0));
                                 const BackendPtr group =
                                     worlds[static_cast<size_t>(rank)].make_group(
                                         "all", std::vector{0, 1});
                                 for (int i = 0; i < 10; ++i) {
                                   Tensors tensors = {filled(rank == 0 ? i : -1, 8)};
                                   if (rank == 0) {
                                     group->send(tensors, 1, 0);
                                     continue;
                                   }
                                   group->recv(tensors, 0, 0)->wait();
                                   EXPECT_EQ(tensors[0][7].item<float>(), i);
                                 }
                               }),
              "");
    testdevice::drain();
    EXPECT_EQ(testdevice::races(), std::vector<std::string>());
  }
}

TEST(ThreadsOnADevice, PostingNeverBlocksTheHost) {
  testdevice::seed(0);
  std::vector<World> worlds = thread_worlds(2);
  EXPECT_EQ(tests::run_ranks(2,
                             [&](int rank) {
                               const c10::StreamGuard guard(testdevice::new_stream(0));
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
  EXPECT_TRUE(testdevice::host_syncs().empty());
}

// A function whose backward waits for all ranks.
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
    group->allreduce(tensors)->wait();
    return {grads[0] * tensors[0][0], at::Tensor()};
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

TEST(ThreadsOnADevice, AGroupOfOneRankWaitsForNobodyInABackward) {
  for (uint64_t of = 0; of < kSeeds; ++of) {
    testdevice::seed(of);
    const BackendPtr alone =
        with_local_groups(nullptr, 2, std::chrono::minutes(1))("mesh.dp[1]#0", 0, 1);
    const c10::StreamGuard guard(testdevice::new_stream(0));
    const at::Tensor x = filled(1, 2).set_requires_grad(true);
    Waits::apply(x, reinterpret_cast<int64_t>(alone.get())).sum().backward();
    EXPECT_TRUE(testdevice::host_syncs().empty());
    EXPECT_TRUE(at::equal(x.grad().cpu(), at::ones({2})));
    EXPECT_EQ(testdevice::races(), std::vector<std::string>());
  }
}

}  // namespace
}  // namespace pipewright::comms
