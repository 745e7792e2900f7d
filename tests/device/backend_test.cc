// Communication on the test device follows NCCL's rules, and breaking them is seen.
#include "tests/device/backend.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/device/device.h"
#include "tests/device/machine.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::testdevice {
namespace {

constexpr uint64_t kSeeds = 20;
const std::vector<int> kPair = {0, 1};

comms::BackendPtr group_of(std::vector<comms::World>& worlds, int rank, const std::string& name,
                           const std::vector<int>& ranks = kPair) {
  return worlds[static_cast<size_t>(rank)].make_group(name, ranks);
}

at::Tensor filled(int rank, double value, int64_t size = 4) {
  return at::full({size}, value, device(rank));
}

TEST(Backend, Collectives) {
  constexpr int kRanks = 4;
  const std::vector<int> all = {0, 1, 2, 3};
  for (uint64_t of = 0; of < kSeeds; ++of) {
    seed(of);
    std::vector<comms::World> worlds = device_worlds(kRanks);
    const auto body = [&](int rank) {
      const comms::BackendPtr group = group_of(worlds, rank, "all", all);
      Tensors read, expected;
      const auto expect = [&](const at::Tensor& tensor, const at::Tensor& value) {
        read.push_back(tensor * 1);
        expected.push_back(value);
      };
      const auto reduce = [&](c10d::ReduceOp::RedOpType op, double value) {
        c10d::AllreduceOptions options;
        options.reduceOp = op;
        Tensors tensors = {filled(rank, rank + 1)};
        group->allreduce(tensors, options)->wait();
        expect(tensors[0], at::full({4}, value));
      };
      reduce(c10d::ReduceOp::SUM, 10);
      reduce(c10d::ReduceOp::AVG, 2.5);
      reduce(c10d::ReduceOp::MIN, 1);
      reduce(c10d::ReduceOp::MAX, 4);
      reduce(c10d::ReduceOp::PRODUCT, 24);
      const at::Tensor each = at::arange(kRanks, at::kFloat).repeat_interleave(2);
      at::Tensor mine = filled(rank, rank, 2), whole = filled(rank, -1, 8),
                 part = filled(rank, -1, 2);
      group->_allgather_base(whole, mine)->wait();
      expect(whole, each);
      std::vector<Tensors> list(1);
      for (int i = 0; i < kRanks; ++i) list[0].push_back(filled(rank, -1, 2));
      Tensors inputs = {mine};
      group->allgather(list, inputs)->wait();
      expect(at::cat(list[0]), each);
      group->_reduce_scatter_base(part, whole)->wait();
      expect(part, at::full({2}, 4.0 * rank));
      Tensors copy = {filled(rank, rank)};
      c10d::BroadcastOptions from_two;
      from_two.rootRank = 2;
      group->broadcast(copy, from_two)->wait();
      expect(copy[0], at::full({4}, 2.0));
      group->barrier()->wait();
      for (size_t i = 0; i < read.size(); ++i)
        EXPECT_TRUE(at::equal(read[i].cpu(), expected[i])) << "seed " << of << ", result " << i;
      group->shutdown();
    };
    EXPECT_EQ(tests::run_ranks(kRanks, body), "");
    drain();
    EXPECT_EQ(races(), std::vector<std::string>());
    EXPECT_EQ(host_syncs()["synchronizeEvent"], kRanks);  // the barriers
  }
}

// Rank 0 sends a product to rank 1, which sends a gradient back; then both gather. `skipped` is the
// wait that is left out. Returns whether the result is right.
bool exchange(int skipped) {
  std::vector<comms::World> worlds = device_worlds(2, {.records_transfers = false});
  std::atomic<bool> right = true;
  const std::string errors = tests::run_ranks(2, [&](int rank) {
    const comms::BackendPtr down = group_of(worlds, rank, "down"),
                            up = group_of(worlds, rank, "up"), all = group_of(worlds, rank, "all");
    const auto wait = [&](int number, const c10::intrusive_ptr<c10d::Work>& work) {
      if (number != skipped) work->wait();
    };
    const at::TensorOptions here(device(rank));
    at::Tensor w = at::full({8, 8}, 0.5 + rank, here).requires_grad_();
    for (int m = 0; m < 4; ++m) {
      if (rank == 0) {
        const at::Tensor y = at::full({4, 8}, 1.0 + m, here).mm(w);
        Tensors out = {y.detach()}, in = {at::empty({4, 8}, here)};
        const auto sent = down->send(out, 1, 0);
        const auto received = up->recv(in, 1, 0);
        wait(1, received);
        y.backward(in[0]);
        wait(2, sent);
      } else {
        Tensors in = {at::empty({4, 8}, here)};
        wait(3, down->recv(in, 0, 0));
        const at::Tensor x = in[0].detach().requires_grad_();
        x.mm(w).sin().sum().backward();
        Tensors out = {x.grad()};
        wait(4, up->send(out, 0, 0));
      }
    }
    at::Tensor mine = w.grad(), both = at::empty({2, 8, 8}, here);
    wait(5, all->_allgather_base(both, mine));
    const at::Tensor result = (both * 1).cpu();
    const at::Tensor w0 = at::full({8, 8}, 0.5).requires_grad_();
    const at::Tensor w1 = at::full({8, 8}, 1.5).requires_grad_();
    for (int m = 0; m < 4; ++m) at::full({4, 8}, 1.0 + m).mm(w0).mm(w1).sin().sum().backward();
    if (!at::allclose(result, at::stack({w0.grad(), w1.grad()}))) right = false;
    for (const auto& group : {down, up, all}) group->shutdown();
  });
  EXPECT_EQ(errors, "");
  return right;
}

TEST(Backend, TransfersAreOrderedByTheirWaits) {
  for (uint64_t of = 0; of < kSeeds; ++of) {
    seed(of);
    EXPECT_TRUE(exchange(0)) << "seed " << of;
    drain();
    EXPECT_EQ(races(), std::vector<std::string>()) << "seed " << of;
  }
}

TEST(Backend, AWaitThatIsLeftOutIsARace) {
  for (const int skipped : {1, 3, 4, 5}) {
    for (uint64_t of = 0; of < kSeeds; ++of) {
      seed(of);
      exchange(skipped);
      drain();
      EXPECT_FALSE(races().empty()) << "wait " << skipped << ", seed " << of;
    }
  }
}

// The answer to a SEND has arrived, so the SEND is done: its wait orders nothing that is not
// ordered.
TEST(Backend, AWaitThatAnotherOneImpliesIsNoRace) {
  for (uint64_t of = 0; of < kSeeds; ++of) {
    seed(of);
    EXPECT_TRUE(exchange(2));
    drain();
    EXPECT_EQ(races(), std::vector<std::string>()) << "seed " << of;
  }
}

TEST(Backend, AMismatchNamesBothEnds) {
  seed(0);
  std::vector<comms::World> worlds = device_worlds(2);
  const comms::BackendPtr a = group_of(worlds, 0, "pair"), b = group_of(worlds, 1, "pair");
  Tensors x = {filled(0, 1)}, y = {filled(1, 1, 8)};
  const auto message = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  a->send(x, 1, 0);
  EXPECT_EQ(
      message([&] { b->recv(y, 0, 0); }),
      "communicator pair[0,1]#0, operation 0 of `0>1`: rank 0 issued SEND of 4 x Float to rank "
      "1, rank 1 issued RECV of 8 x Float from rank 0");
  a->allreduce(x);
  EXPECT_EQ(message([&] { b->_allgather_base(y[0], y[0]); }),
            "communicator pair[0,1]#0, operation 0 of `all`: rank 0 issued all-reduce SUM of 4 x "
            "Float, rank 1 issued all-gather of 8 x Float");
  EXPECT_EQ(errors().size(), 2u);
  a->abort();
  b->abort();
}

TEST(Backend, AnAbortIsLocalAndLeavesGarbage) {
  seed(0);
  std::vector<comms::World> worlds = device_worlds(2);
  const comms::BackendPtr a = group_of(worlds, 0, "pair");
  comms::BackendPtr b = group_of(worlds, 1, "pair");
  Tensors x = {filled(0, 1)}, y = {filled(1, 1)};
  const auto work = a->recv(x, 1, 0);
  EXPECT_FALSE(work->isCompleted());
  work->wait();
  a->abort();
  EXPECT_TRUE(x[0].isnan().all().item<bool>());
  EXPECT_TRUE(work->isCompleted());
  EXPECT_FALSE(work->isSuccess());
  EXPECT_THROW(a->recv(x, 1, 0), std::runtime_error);
  // The other end does not learn of it, and is destroyed with its transfer under way.
  const auto late = b->send(y, 0, 0);
  EXPECT_FALSE(late->isCompleted());
  b.reset();
}

TEST(Backend, DestructionLeavesGarbageAndShutdownDoesNot) {
  for (const bool shuts_down : {false, true}) {
    seed(0);
    // Not the groups of a world, which shut down.
    const auto communicator = std::make_shared<Communicator>("pair", std::vector{0, 1});
    const auto end = [&](int rank) {
      return c10::make_intrusive<DeviceBackend>(
          std::make_shared<Member>(communicator, rank, std::chrono::minutes(1)), rank, 2,
          BackendOptions{});
    };
    auto a = end(0), b = end(1);
    Tensors x = {filled(0, 1)}, y = {filled(1, 5)};
    a->recv(x, 1, 0)->wait();
    b->send(y, 0, 0)->wait();
    if (shuts_down) a->shutdown();
    a.reset();
    EXPECT_EQ(x[0].isnan().all().item<bool>(), !shuts_down);
    if (shuts_down) {
      EXPECT_EQ(x[0][0].item<float>(), 5);
    }
  }
}

// Autograd's thread may be the last to drop a rank's group, after the rank has returned. The end
// then waits for the ranks that still run, and does not take itself for the only one.
TEST(Backend, AGroupMayOutliveItsRank) {
  seed(0);
  std::vector<comms::World> worlds = device_worlds(2);
  const auto may_issue = std::make_shared<std::atomic<bool>>(false);
  const auto is_running = [](int rank) {
    const Lock lock(machine().mutex);
    return machine().ranks.contains(rank);
  };
  std::thread last_owner;
  const auto body = [&](int rank) {
    comms::BackendPtr group = group_of(worlds, rank, "pair");
    while (rank == 1 && !may_issue->load()) std::this_thread::yield();
    Tensors sum = {filled(rank, rank + 1)};
    group->allreduce(sum, {})->wait();
    if (rank == 1) {
      EXPECT_EQ(sum[0][0].item<float>(), 3);
      return;
    }
    last_owner = std::thread([&is_running, may_issue, group = std::move(group)]() mutable {
      while (is_running(0)) std::this_thread::yield();
      std::thread late([may_issue] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        *may_issue = true;
      });
      group.reset();
      late.join();
    });
  };
  EXPECT_EQ(tests::run_ranks(2, body), "");
  last_owner.join();
  drain();
}

// Each of two ranks sends first on one communicator: a deadlock, which a group resolves.
TEST(Backend, GroupsCompleteTogether) {
  for (const bool grouped : {true, false}) {
    seed(0);
    std::vector<comms::World> worlds = device_worlds(2, {.stash = true});
    std::vector<comms::BackendPtr> ends = {group_of(worlds, 0, "pair"),
                                           group_of(worlds, 1, "pair")};
    std::vector<Tensors> received;
    for (int rank = 0; rank < 2; ++rank) {
      const comms::BackendPtr& end = ends[static_cast<size_t>(rank)];
      Tensors out = {filled(rank, rank)};
      received.push_back({filled(rank, -1)});
      if (grouped) end->startCoalescing();
      end->send(out, 1 - rank, 0);
      auto work = end->recv(received.back(), 1 - rank, 0);
      if (grouped) work = end->endCoalescing();
      work->wait();
    }
    if (grouped) {
      EXPECT_EQ(received[0][0][0].item<float>(), 1);
      EXPECT_EQ(received[1][0][0].item<float>(), 0);
    } else {
      try {
        received[0][0].cpu();
        FAIL();
      } catch (const std::runtime_error& error) {
        EXPECT_NE(std::string(error.what()).find("deadlock"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("pair[0,1]#0"), std::string::npos) << error.what();
      }
    }
    for (const comms::BackendPtr& end : ends) end->abort();
    drain();
  }
}

TEST(Backend, TheWatchdogEndsWhatCannotComplete) {
  seed(0);
  std::vector<comms::World> worlds = device_worlds(2, {.timeout = std::chrono::milliseconds(50)});
  const comms::BackendPtr a = group_of(worlds, 0, "pair"), b = group_of(worlds, 1, "pair"),
                          other = group_of(worlds, 0, "other");
  group_of(worlds, 1, "other");
  Tensors x = {filled(0, 1)}, y = {filled(1, 1)}, z = {filled(0, 1)};
  const auto completes = a->recv(x, 1, 0);
  b->send(y, 0, 0);
  const auto hangs = other->recv(z, 1, 0);
  while (errors().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(errors(),
            std::vector<std::string>{
                "watchdog of communicator other[0,1]#0: rank 0: RECV of 4 x Float from rank 1 did "
                "not complete within 50 ms"});
  EXPECT_TRUE(completes->isSuccess());
  EXPECT_FALSE(hangs->isSuccess());
  hangs->wait();
  EXPECT_TRUE(z[0].isnan().all().item<bool>());
}

// Without a stash the caller must keep a tensor until it has waited.
TEST(Backend, AStashKeepsTensorsUntilWait) {
  for (const bool stash : {false, true}) {
    seed(0);
    std::vector<comms::World> worlds =
        device_worlds(2, {.stash = stash, .records_transfers = false});
    const comms::BackendPtr a = group_of(worlds, 0, "pair"), b = group_of(worlds, 1, "pair");
    Tensors out = {filled(0, 1)}, in = {filled(1, 1)};
    const auto sent = a->send(out, 1, 0);
    out.clear();
    b->recv(in, 0, 0)->wait();
    sent->wait();
    drain();
    EXPECT_EQ(races().empty(), stash);
  }
}

}  // namespace
}  // namespace pipewright::testdevice
