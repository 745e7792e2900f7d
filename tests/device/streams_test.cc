// The test device itself: what must be ordered and is not is wrong for some seeds and a race for
// all; what is ordered is right for all.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>
#include <torch/nn/init.h>

#include <thread>

#include "pipewright/comms/device_event.h"
#include "tests/device/device.h"

namespace pipewright::testdevice {
namespace {

constexpr uint64_t kSeeds = 20;

const at::TensorOptions kOnDevice(device(0));

c10::Stream current() { return c10::impl::VirtualGuardImpl(kDeviceType).getStream(device(0)); }

// How many of the seeds gave a wrong result, and how many a race.
struct Counted {
  uint64_t wrong = 0, raced = 0;
  std::string race;  // the first one of the last seed
};

Counted over_seeds(const std::function<bool()>& is_right) {
  Counted counted;
  for (uint64_t i = 0; i < kSeeds; ++i) {
    seed(i);
    counted.wrong += is_right() ? 0 : 1;
    drain();
    if (races().empty()) continue;
    ++counted.raced;
    counted.race = races().front();
  }
  return counted;
}

// One stream writes, the other one reads.
bool produce_and_consume(bool waits) {
  const c10::Stream producer = new_stream(0), consumer = new_stream(0);
  at::Tensor x, y;
  {
    const c10::StreamGuard guard(producer);
    x = at::full({8}, 3.0, kOnDevice);
    x.mul_(2);
  }
  {
    const c10::StreamGuard guard(consumer);
    if (waits) order(producer, consumer);
    y = x + 1;
  }
  order(consumer, producer);  // x is freed there
  const c10::StreamGuard guard(consumer);
  return at::equal(y.cpu(), at::full({8}, 7.0));
}

TEST(Streams, AMissingWaitIsARace) {
  const Counted right = over_seeds([] { return produce_and_consume(true); });
  EXPECT_EQ(right.wrong, 0u);
  EXPECT_EQ(right.raced, 0u) << right.race;
  const Counted wrong = over_seeds([] { return produce_and_consume(false); });
  EXPECT_GT(wrong.wrong, 0u);
  EXPECT_EQ(wrong.raced, kSeeds);
  EXPECT_NE(wrong.race.find("aten::"), std::string::npos) << wrong.race;
  EXPECT_NE(wrong.race.find("on stream 2 of device 0"), std::string::npos) << wrong.race;
  EXPECT_NE(wrong.race.find("on stream 1 of device 0"), std::string::npos) << wrong.race;
}

TEST(Streams, IgnoredWaitsAreRaces) {
  const Counted counted = over_seeds([] {
    ignore_event_waits(true);
    return produce_and_consume(true);
  });
  EXPECT_EQ(counted.raced, kSeeds);
}

// A tensor is freed on its stream while another one still reads it, and its memory is used again.
bool free_while_used(bool records) {
  const c10::Stream reader = new_stream(0);
  at::Tensor x = at::full({8}, 3.0, kOnDevice), y;
  order(current(), reader);
  {
    const c10::StreamGuard guard(reader);
    y = x + 1;
    if (records) x.record_stream(reader);
  }
  x.reset();
  const at::Tensor reuses = at::full({8}, 100.0, kOnDevice);
  const c10::StreamGuard guard(reader);
  return at::equal(y.cpu(), at::full({8}, 4.0));
}

TEST(Streams, AMissingRecordStreamIsARace) {
  const Counted right = over_seeds([] { return free_while_used(true); });
  EXPECT_EQ(right.wrong, 0u);
  EXPECT_EQ(right.raced, 0u) << right.race;
  const Counted wrong = over_seeds([] { return free_while_used(false); });
  EXPECT_GT(wrong.wrong, 0u);
  EXPECT_EQ(wrong.raced, kSeeds);
  EXPECT_NE(wrong.race.find("the free of a tensor"), std::string::npos) << wrong.race;
  const Counted ignored = over_seeds([] {
    ignore_record_stream(true);
    return free_while_used(true);
  });
  EXPECT_EQ(ignored.raced, kSeeds);
}

TEST(Streams, ASeedGivesTheSameResultEachTime) {
  for (uint64_t i = 0; i < kSeeds; ++i) {
    const auto run = [i] {
      seed(i);
      return produce_and_consume(false);
    };
    EXPECT_EQ(run(), run()) << "seed " << i;
  }
}

TEST(Streams, NothingRunsBeforeItIsNeededWithSeedZero) {
  seed(0);
  bool ran = false;
  const at::Tensor x = at::empty({1}, kOnDevice);
  launch("set", {}, {x}, [&ran] { ran = true; });
  EXPECT_FALSE(ran);
  const at::Tensor copy = x.cpu();
  EXPECT_TRUE(ran);
}

// With CUDA this makes a context on device 0, however the event is used.
TEST(Events, AreQueriedOnThreadsThatHaveSetADevice) {
  seed(1);
  c10::Event event(kDeviceType);
  event.record(c10::impl::VirtualGuardImpl(kDeviceType).getStream(device(3)));
  std::thread([&] { comms::has_ended(event); }).join();
  EXPECT_EQ(errors(), std::vector<std::string>());
  std::thread([&] { event.query(); }).join();
  std::thread([own = std::move(event)]() mutable { c10::Event dies(std::move(own)); }).join();
  EXPECT_EQ(errors(),
            (std::vector<std::string>{
                "an event of device 3 was queried on a thread that has set no device",
                "an event of device 3 was destroyed on a thread that has set no device"}));
}

TEST(Memory, IsGarbageWhenNewAndWhenFreed) {
  seed(0);
  const at::Tensor x = at::empty({4}, kOnDevice);
  EXPECT_TRUE(x.isnan().all().item<bool>());
  at::Tensor y = at::ones({64}, kOnDevice);
  const void* memory = y.const_data_ptr();
  y.reset();
  const at::Tensor z = at::empty({64}, kOnDevice);
  EXPECT_EQ(z.const_data_ptr(), memory);  // reused at once
  EXPECT_TRUE(z.isnan().all().item<bool>());
}

TEST(HostSyncs, AreCountedAndForbidden) {
  seed(1);
  const at::Tensor x = at::ones({4}, kOnDevice), host = at::ones({4});
  EXPECT_TRUE(host_syncs().empty());
  x.sum().item();
  x.cpu();
  x.copy_(host);
  x.nonzero();
  synchronize(0);
  c10::Event event(kDeviceType);
  event.record(current());
  event.synchronize();
  const std::map<std::string, int64_t> expected = {
      {"aten::nonzero", 1}, {"copy from host", 1},    {"copy to host", 1},
      {"item", 1},          {"synchronizeDevice", 1}, {"synchronizeEvent", 1}};
  EXPECT_EQ(host_syncs(), expected);
  forbid_host_syncs(true);
  EXPECT_THROW(x.sum().item(), std::runtime_error);
  EXPECT_THROW(x.cpu(), std::runtime_error);
  EXPECT_THROW(x.copy_(host), std::runtime_error);
  x.copy_(host, /*non_blocking=*/true);
  const at::Tensor pinned = at::empty({4}, at::TensorOptions().pinned_memory(true));
  pinned.copy_(x, /*non_blocking=*/true);
  forbid_host_syncs(false);
}

TEST(HostSyncs, ThrowTheErrorOfAKernel) {
  seed(0);
  const at::Tensor x = at::ones({4}, kOnDevice);
  const at::Tensor y = x.index_select(0, at::full({1}, 9, kOnDevice.dtype(at::kLong)));
  try {
    y.cpu();
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("in kernel `aten::index_select"), std::string::npos)
        << error.what();
  }
  EXPECT_EQ(errors().size(), 1u);
  seed(0);
  EXPECT_TRUE(errors().empty());
}

// The source of an asynchronous copy must stay as it is; pageable memory is read at once.
TEST(HostSyncs, APinnedSourceIsReadLate) {
  seed(0);
  for (const bool pinned : {false, true}) {
    const at::Tensor source = at::ones({4}, at::TensorOptions().pinned_memory(pinned));
    const at::Tensor x = at::empty({4}, kOnDevice);
    x.copy_(source, /*non_blocking=*/true);
    source.fill_(2);
    EXPECT_EQ(x[0].item<float>(), pinned ? 2 : 1);
  }
}

// Autograd runs each node on the stream of its forward, and orders streams where a graph joins.
TEST(Autograd, RunsOnTheStreamsOfForward) {
  const Counted counted = over_seeds([] {
    const c10::Stream left = new_stream(0), right = new_stream(0), join = new_stream(0);
    const at::Tensor leaf = at::full({8}, 2.0, kOnDevice).requires_grad_();
    at::Tensor a, b, loss;
    order(current(), left);
    order(current(), right);
    {
      const c10::StreamGuard guard(left);
      a = leaf * 3;
    }
    {
      const c10::StreamGuard guard(right);
      b = leaf * leaf;
    }
    order(left, join);
    order(right, join);
    const c10::StreamGuard guard(join);
    loss = (a + b).sum();
    loss.backward();
    const bool right_result = at::equal(leaf.grad().cpu(), at::full({8}, 7.0));
    for (const c10::Stream& stream : {left, right, c10::Stream(c10::Stream::DEFAULT, device(0))})
      order(join, stream);
    return right_result;
  });
  EXPECT_EQ(counted.wrong, 0u);
  EXPECT_EQ(counted.raced, 0u) << counted.race;
}

// On one hardware queue, a wait for an event that is recorded later in another stream holds up that
// stream as well; on two it does not. Nothing is held up by a kernel.
TEST(HardwareQueues, AWaitHoldsUpOtherStreams) {
  for (const int queues : {1, 2}) {
    seed(0);
    const c10::Stream first = new_stream(0), second = new_stream(0), third = new_stream(0);
    limit_hardware_queues(queues);
    const auto launch_on = [](const c10::Stream& stream, const std::string& name) {
      const c10::StreamGuard guard(stream);
      launch(name, {}, {}, [] {});
    };
    launch_on(third, "before");
    order(third, first);          // queues: first and third, second
    launch_on(second, "beside");  // behind the wait only on one queue
    c10::Event end(kDeviceType);
    end.record(second);
    end.synchronize();
    EXPECT_EQ(execution_order(0), queues == 1 ? (std::vector<std::string>{"before", "beside"})
                                              : std::vector<std::string>{"beside"});
    drain();
  }
}

}  // namespace
}  // namespace pipewright::testdevice
