// The matching of operations between threads: order, capacity, failure, and under tsan the absence
// of data races. Messages are ints.
#include "pipewright/comms/threads/mailboxes.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

namespace pipewright::comms {
namespace {

using std::chrono::milliseconds;

struct Message final : Operation {
  explicit Message(int first) : value(first) {}
  std::string describe() const override { return "message " + std::to_string(value); }
  int value;  // sent, received, or this rank's part of a sum
  int buffer = 0;
};

struct IntCarrier final : Carrier {
  void buffer(Operation& send) override {
    auto& message = static_cast<Message&>(send);
    message.buffer = message.value;
  }
  void deliver(Operation& send, Operation& receive) override {
    const auto& from = static_cast<Message&>(send);
    const int value = from.done() ? from.buffer : from.value;
    if (value < 0) throw std::runtime_error("a negative message");
    static_cast<Message&>(receive).value = value;
  }
  void collect(std::span<const std::shared_ptr<Operation>> parts) override {
    int sum = 0;
    for (const auto& part : parts) sum += static_cast<Message&>(*part).value;
    for (const auto& part : parts) static_cast<Message&>(*part).value = sum;
  }
};

struct Group {
  Group(int ranks, ir::ChannelCapacity capacity)
      : mailboxes("group", ranks, capacity, std::make_unique<IntCarrier>()) {}

  std::shared_ptr<Message> send(int from, int to, int value) {
    auto message = std::make_shared<Message>(value);
    mailboxes.post_send(message, from, to);
    return message;
  }
  std::shared_ptr<Message> receive(int from, int to) {
    auto message = std::make_shared<Message>(-100);
    mailboxes.post_receive(message, from, to);
    return message;
  }
  std::shared_ptr<Message> sum(int rank, int value) {
    auto message = std::make_shared<Message>(value);
    mailboxes.post_collective(message, rank);
    return message;
  }

  Mailboxes mailboxes;
};

bool wait(Operation& operation, milliseconds limit = milliseconds(20000)) {
  return operation.wait_until(std::chrono::steady_clock::now() + limit,
                              std::chrono::microseconds(50));
}

std::string error_of(const Operation& operation) {
  if (!operation.error()) return "";
  try {
    std::rethrow_exception(operation.error());
  } catch (const std::exception& error) {
    return error.what();
  }
}

TEST(Mailboxes, RendezvousWaitsForBothEnds) {
  Group group(2, 0);
  const auto send = group.send(0, 1, 7);
  EXPECT_FALSE(send->done());
  const auto receive = group.receive(0, 1);
  EXPECT_TRUE(send->done());
  EXPECT_TRUE(receive->done());
  EXPECT_EQ(receive->value, 7);
}

TEST(Mailboxes, UpToCapacitySendsCompleteBeforeTheirReceives) {
  Group group(2, 2);
  const auto first = group.send(0, 1, 1), second = group.send(0, 1, 2), third = group.send(0, 1, 3);
  EXPECT_TRUE(first->done());
  EXPECT_TRUE(second->done());
  EXPECT_FALSE(third->done());
  first->value = 99;  // the buffer holds a copy
  EXPECT_EQ(group.receive(0, 1)->value, 1);
  EXPECT_TRUE(third->done());
  EXPECT_EQ(group.receive(0, 1)->value, 2);
  EXPECT_EQ(group.receive(0, 1)->value, 3);
}

// One queue per rank: on both ranks the SEND is queued after the RECV.
TEST(Mailboxes, HeadOfQueueBlocksTheRest) {
  Group group(2, 0);
  const auto receive0 = group.receive(1, 0), send0 = group.send(0, 1, 1);
  const auto receive1 = group.receive(0, 1), send1 = group.send(1, 0, 2);
  EXPECT_FALSE(receive0->done() || send0->done() || receive1->done() || send1->done());
  Group roomy(2, 1);  // a buffered SEND must not overtake a RECV either
  const auto early0 = roomy.receive(1, 0), early1 = roomy.receive(0, 1);
  roomy.send(0, 1, 1);
  roomy.send(1, 0, 2);
  EXPECT_FALSE(early0->done() || early1->done());
}

TEST(Mailboxes, CompletionUnblocksOtherQueues) {
  Group group(3, 0);
  // Rank 1 can send to rank 2 only after it has received from rank 0; rank 2 then sends to rank 0.
  const auto late = group.receive(1, 2);
  const auto last = group.send(2, 0, 5);
  group.receive(0, 1);
  group.send(1, 2, 4);
  group.send(0, 1, 3);
  const auto end = group.receive(2, 0);
  EXPECT_EQ(late->value, 4);
  EXPECT_TRUE(last->done());
  EXPECT_EQ(end->value, 5);
}

TEST(Mailboxes, CollectivesMatchByNumber) {
  Group group(3, 0);
  const auto a0 = group.sum(0, 1), b0 = group.sum(0, 10);
  const auto a1 = group.sum(1, 2), b1 = group.sum(1, 20);
  const auto a2 = group.sum(2, 3);
  EXPECT_EQ(a0->value, 6);
  EXPECT_EQ(a1->value, 6);
  EXPECT_EQ(a2->value, 6);
  EXPECT_FALSE(b0->done() || b1->done());
  EXPECT_EQ(group.sum(2, 30)->value, 60);
  EXPECT_EQ(b0->value, 60);
}

TEST(Mailboxes, FailureCompletesAndNamesAllPendingOperations) {
  Group group(3, 0);
  const auto receive = group.receive(0, 1);
  const auto part = group.sum(0, 8);
  EXPECT_FALSE(wait(*receive, milliseconds(1)));
  group.mailboxes.fail("rank 2 left");
  ASSERT_TRUE(wait(*receive));
  EXPECT_EQ(error_of(*receive),
            "group, message -100: rank 2 left\n"
            "  pending: message -100\n"
            "  pending: message 8, not posted by ranks 1, 2");
  EXPECT_EQ(error_of(*part).find("group, message 8, not posted by ranks 1, 2: rank 2 left"), 0u);
  EXPECT_THROW(group.send(0, 1, 1), std::runtime_error);
}

TEST(Mailboxes, ExceptionOfTheCarrierFailsTheGroup) {
  Group group(3, 0);
  const auto other = group.receive(2, 1);
  const auto bad = group.send(0, 2, -1);
  EXPECT_EQ(error_of(*group.receive(0, 2)), "group, a negative message");
  EXPECT_EQ(error_of(*bad), "group, a negative message");
  EXPECT_EQ(error_of(*other).find("group, message -100: a negative message"), 0u);
  EXPECT_THROW(group.send(0, 1, 1), std::runtime_error);
}

// Every message of every pair arrives in order, however the threads interleave.
TEST(Mailboxes, ConcurrentPosting) {
  constexpr int kRanks = 4, kMessages = 500;
  for (const ir::ChannelCapacity capacity : {0u, 3u, ir::kUnboundedCapacity}) {
    Group group(kRanks, capacity);
    std::vector<std::thread> threads;
    std::vector<int> wrong(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        const int next = (rank + 1) % kRanks, before = (rank + kRanks - 1) % kRanks;
        for (int i = 0; i < kMessages; ++i) {
          // Even ranks send first, so that a rendezvous is possible.
          std::shared_ptr<Message> sent, received;
          if (rank % 2 == 0) sent = group.send(rank, next, rank * kMessages + i);
          received = group.receive(before, rank);
          if (rank % 2 != 0) sent = group.send(rank, next, rank * kMessages + i);
          const auto total = group.sum(rank, i);
          const bool all = wait(*sent) && wait(*received) && wait(*total);
          if (!all || received->value != before * kMessages + i || total->value != kRanks * i)
            ++wrong[static_cast<size_t>(rank)];
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, std::vector<int>(kRanks)) << "capacity " << capacity;
  }
}

TEST(Mailboxes, FailureWakesSleepingThreads) {
  Group group(2, 0);
  const auto receive = group.receive(0, 1);
  std::thread sleeper([&] { EXPECT_TRUE(wait(*receive)); });
  std::this_thread::sleep_for(milliseconds(20));
  group.mailboxes.fail("enough");
  sleeper.join();
  EXPECT_NE(receive->error(), nullptr);
}

}  // namespace
}  // namespace pipewright::comms
