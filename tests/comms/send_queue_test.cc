// When SENDs are waited for, and that they are freed then.
#include "pipewright/comms/gloo/send_queue.h"

#include <gtest/gtest.h>

#include <atomic>

namespace pipewright::comms {
namespace {

// A SEND that completes in wait(), like Gloo's.
class FakeSend final : public c10d::Work {
 public:
  FakeSend(std::atomic<int>& alive, bool fails) : alive_(alive), fails_(fails) { ++alive_; }
  ~FakeSend() override { --alive_; }
  bool wait(std::chrono::milliseconds) override {
    if (fails_) throw std::runtime_error("broken");
    return true;
  }

 private:
  std::atomic<int>& alive_;
  const bool fails_;
};

struct Sends {
  c10::intrusive_ptr<c10d::Work> add(size_t bytes, bool fails = false) {
    return queue.add(c10::make_intrusive<FakeSend>(alive, fails), bytes);
  }
  std::atomic<int> alive = 0;
  SendQueue queue;
};

TEST(SendQueue, ASmallSendIsFreedWhenItIsWaitedFor) {
  Sends sends;
  const auto one = sends.add(100), other = sends.add(100);
  EXPECT_FALSE(other->isCompleted());
  EXPECT_FALSE(sends.queue.empty());
  other->wait();
  EXPECT_TRUE(other->isCompleted());
  EXPECT_EQ(sends.alive, 1);
  one->wait();
  one->wait();
  EXPECT_EQ(sends.alive, 0);
  EXPECT_TRUE(sends.queue.empty());
}

TEST(SendQueue, FreesWhatNobodyWaitsForOnceEnoughIsPending) {
  Sends sends;
  for (int round = 0; round < 50; ++round) {
    for (size_t bytes = 0; bytes < SendQueue::kPendingBytes; bytes += 1024) sends.add(1024);
    while (sends.alive > 0) std::this_thread::yield();
  }
}

TEST(SendQueue, WaitThrowsTheErrorOfTheSend) {
  Sends sends;
  const auto small = sends.add(100, true);
  const auto large = sends.add(SendQueue::kPendingBytes, true);
  EXPECT_THROW(large->wait(), std::runtime_error);
  EXPECT_THROW(small->wait(), std::runtime_error);
  EXPECT_EQ(sends.alive, 0);
}

}  // namespace
}  // namespace pipewright::comms
