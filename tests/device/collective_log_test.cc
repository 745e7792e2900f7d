// What a group's log says of collectives that a device has not ended.
#include "pipewright/comms/collective_log.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "pipewright/comms/device_event.h"
#include "pipewright/comms/group.h"
#include "pipewright/comms/process/sockets.h"
#include "tests/device/backend.h"
#include "tests/device/current.h"
#include "tests/device/device.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::testdevice {
namespace {

constexpr std::chrono::seconds kLimit(20);

struct Member {
  explicit Member(comms::World& world)
      : group(world.make_group("pair", std::vector{0, 1})),
        spare(world.make_group("spare", std::vector{0, 1})),
        sum({at::ones({2}, device(world.rank()))}) {}

  comms::GroupState state() const { return dynamic_cast<comms::Group&>(*group).log()->state(); }
  bool comes_to(const std::function<bool(const comms::GroupState&)>& expected) const {
    return comms::poll(kLimit, 1, [&] { return expected(state()); });
  }

  const comms::BackendPtr group, spare;
  std::vector<at::Tensor> sum;
};

// Two ranks that log what they call, each on its device.
void run(const std::function<void(int rank, Member& own)>& body) {
  seed(1);
  std::vector<comms::World> worlds = device_worlds(2);
  const std::string errors = tests::run_ranks(2, [&](int rank) {
    Member own(worlds[static_cast<size_t>(rank)]);
    body(rank, own);
  });
  EXPECT_EQ(errors, "");
}

// The current stream of rank 0's device waits until `opens`.
void pass_gate(int rank, const Member& own, const std::atomic<bool>& opens) {
  std::vector<at::Tensor> gate = {at::ones({1}, device(rank))};
  if (rank == 1) {
    comms::poll(kLimit, 1, [&] { return opens.load(); });
    own.spare->send(gate, 0, 0)->wait();
  } else {
    own.spare->recv(gate, 1, 0)->wait();
  }
}

// Rank 0 waits for a collective on a stream of its device until rank 1 calls it.
TEST(CollectiveLog, ADeviceWaits) {
  std::atomic<bool> joins = false;
  run([&](int rank, Member& own) {
    if (rank == 1) comms::poll(kLimit, 1, [&] { return joins.load(); });
    own.group->allreduce(own.sum)->wait();
    if (rank == 0) {
      EXPECT_TRUE(own.comes_to([](const comms::GroupState& state) {
        return state.joined == 1 && !state.device_waits.empty();
      }));
      const comms::GroupState state = own.state();
      EXPECT_EQ(state.device_waits[0].number, 1);
      EXPECT_EQ(state.device_waits[0].stream, current_stream(0));
      EXPECT_FALSE(state.last.at(0).is_done);
      joins = true;
    }
    EXPECT_TRUE(own.comes_to([](const comms::GroupState& state) {
      return state.device_waits.empty() && state.last.at(0).is_done;
    }));
  });
}

// A device has joined what its streams have come to, and no more, also if nobody waits for them.
TEST(CollectiveLog, ADeviceIsBehindItsHost) {
  constexpr int64_t kCalls = 300;
  std::atomic<bool> sends = false;
  run([&](int rank, Member& own) {
    pass_gate(rank, own, sends);
    for (int64_t call = 0; call < kCalls; ++call) {
      own.group->allreduce(own.sum)->wait();
      if (rank == 0 && call == 0) {
        EXPECT_EQ(own.state().joined, 0);
      }
    }
    if (rank == 0) {
      EXPECT_EQ(own.state().issued, kCalls);
      EXPECT_EQ(own.state().joined, 0);
      sends = true;
    }
    own.sum[0].cpu();
    EXPECT_EQ(own.state().joined, kCalls);
  });
}

// A communicator runs its collectives in the order of the calls, whichever streams they are made
// on: the device has not joined the second one while the stream of the first one is not there.
TEST(CollectiveLog, TwoStreamsOfOneGroup) {
  std::atomic<bool> sends = false;
  run([&](int rank, Member& own) {
    std::vector<at::Tensor> first = {at::ones({2}, device(rank))};
    {
      const c10::Stream own_stream = current_stream(rank), side = new_stream(rank);
      order(own_stream, side);
      const c10::StreamGuard on_side(side);
      pass_gate(rank, own, sends);
      own.group->allreduce(first)->wait();
    }
    own.group->allreduce(own.sum)->wait();
    if (rank == 0) {
      // The stream of the second call has nothing to wait for but the collective.
      c10::Event called(kDeviceType);
      called.record(current_stream(rank));
      EXPECT_FALSE(called.query());
      EXPECT_EQ(own.state().issued, 2);
      EXPECT_EQ(own.state().joined, 0);
      sends = true;
    }
    EXPECT_EQ(own.sum[0].sum().item<float>(), 4);
    EXPECT_TRUE(own.comes_to([](const comms::GroupState& state) {
      return state.joined == 2 && state.device_waits.empty() && state.last.at(0).is_done;
    }));
  });
}

// The watcher's thread asks for the state, and must not get the error of a kernel.
TEST(CollectiveLog, OfADeviceThatHasFailed) {
  run([&](int rank, Member& own) {
    if (rank == 1) return;
    own.group->allreduce(own.sum);  // rank 1 never comes
    const at::Tensor outside = at::full({1}, 7, at::TensorOptions(at::kLong).device(device(0)));
    static_cast<void>(at::ones({2}, device(0)).index_select(0, outside));
    c10::Event failed(kDeviceType);
    failed.record(current_stream(0));
    EXPECT_TRUE(comms::poll(kLimit, 1, [&] { return comms::has_ended(failed); }));
    EXPECT_THROW(failed.query(), std::runtime_error);
    EXPECT_EQ(own.state().joined, 1);
    own.group->abort();
  });
  EXPECT_EQ(errors().size(), 1u);
}

}  // namespace
}  // namespace pipewright::testdevice
