// What reset() leaves behind: nothing of the failure, and every process is watched again. And time
// limits of work on a device.
#include "pipewright/comms/failure/failure_domain.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "pipewright/comms/failure/lifeline.h"
#include "pipewright/comms/process/sockets.h"

namespace pipewright::comms {
namespace {

constexpr std::chrono::seconds kTimeout(20);

// One rank of a world of processes, in this process: with a watcher and a lifeline of its own.
class Rank {
 public:
  Rank(int rank, int size, const c10::intrusive_ptr<c10d::Store>& store)
      : domain_(FailureDomain::owned(std::make_shared<FailureDomain>(
            rank, size, store, std::make_shared<Watcher>(), rank == 0, [] {},
            std::make_unique<Lifeline>(rank, *store, "127.0.0.1", kTimeout)))) {}
  FailureDomain& domain() { return *domain_; }

 private:
  std::shared_ptr<FailureDomain> domain_;
};

std::vector<std::unique_ptr<Rank>> make_ranks(int size,
                                              const c10::intrusive_ptr<c10d::Store>& store) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.push_back(std::make_unique<Rank>(rank, size, store));
  return ranks;
}

void reset_all(const std::vector<std::unique_ptr<Rank>>& ranks) {
  std::vector<std::jthread> threads;
  for (const auto& rank : ranks)
    threads.emplace_back([&] { EXPECT_EQ(rank->domain().reset(3, kTimeout), 3); });
}

bool all_fail(const std::vector<std::unique_ptr<Rank>>& ranks) {
  return poll(kTimeout, 1, [&] {
    return std::ranges::all_of(ranks, [](const auto& rank) { return rank->domain().failed(); });
  });
}

// The lifelines of this process that end at rank 0.
std::vector<int> lifelines(c10d::Store& store) {
  const std::string place = store.get_to_str("lifeline");
  return sockets_to(static_cast<uint16_t>(std::stoi(place.substr(place.find(' ')))));
}

// All of them are made again, because those that did not break may have broken at one end.
TEST(Reset, ProcessesWhoseLifelinesBrokeAreWatchedAgain) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto ranks = make_ranks(3, store);
  ranks[0]->domain().set_place([] { return "step 1"; });
  for (int round = 0; round < 3; ++round) {
    const std::vector<int> sockets = lifelines(*store);
    ASSERT_EQ(sockets.size(), 2U);
    shutdown(sockets[static_cast<size_t>(round % 2)], SHUT_RDWR);
    ASSERT_TRUE(all_fail(ranks)) << round;
    for (const auto& rank : ranks) {
      EXPECT_TRUE(rank->domain().cause().ends_with(": its connection to rank 0 has closed"))
          << rank->domain().cause();
    }
    reset_all(ranks);
    for (const auto& rank : ranks) EXPECT_EQ(rank->domain().cause(), "");
  }
}

// What the watcher finds of the time before a reset() does not fail the time after it.
TEST(Reset, ALateCheckDoesNotFailTheNextGeneration) {
  std::promise<void> begins, ends;
  std::atomic<int> checks = 0;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto ranks = make_ranks(2, store);
  ranks[0]->domain().set_check([&](c10d::Store&) -> std::string {
    if (checks++ > 0) return "";
    begins.set_value();
    ends.get_future().wait();
    return "late";
  });
  begins.get_future().wait();
  for (const auto& rank : ranks) rank->domain().fail("out of luck");
  reset_all(ranks);
  ends.set_value();
  EXPECT_TRUE(poll(kTimeout, 1, [&] { return checks > 2; }));
  for (const auto& rank : ranks) EXPECT_EQ(rank->domain().cause(), "");
}

// Tells nothing before it may.
class SlowObserver final : public StepObserver {
 public:
  std::string stalled() override { return ""; }
  std::string report() override { return "-"; }
  std::string verdict(const Reports&, const Who&) override {
    begins.set_value();
    ends.get_future().wait();
    return "\n  the first verdict";
  }
  void dump() override {}
  void stuck(const std::string&) override {}
  std::promise<void> begins, ends;
};

// A watcher that is still explaining a hang after reset() neither waits for what nobody will say
// any more, nor leaves its explanation to the next failure.
TEST(Reset, ALateExplanationIsThatOfItsOwnFailure) {
  const auto observer = std::make_shared<SlowObserver>();
  const auto ranks = make_ranks(2, c10::make_intrusive<c10d::HashStore>());
  ranks[0]->domain().set_observer(observer);
  ranks[1]->domain().fail("out of luck", FailureDomain::Kind::kHang);
  observer->begins.get_future().wait();
  reset_all(ranks);
  observer->ends.set_value();
  ranks[1]->domain().fail("out of memory");
  ASSERT_TRUE(all_fail(ranks));
  const std::string text = ranks[0]->domain().explain();
  EXPECT_TRUE(text.starts_with("rank 1: out of memory\n")) << text;
  EXPECT_EQ(text.find("the first verdict"), std::string::npos) << text;
}

// A store whose host may have ended.
class ClosableStore final : public c10d::HashStore {
 public:
  std::atomic<bool> closed = false;
  bool closes_on_reading = false;  // when a rank says that it has read
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    if (closes_on_reading && key.find("read/") != std::string::npos)
      throw std::runtime_error("closed");
    HashStore::set(key, value);
  }
  bool check(const std::vector<std::string>& keys) override {
    if (closed) throw std::runtime_error("closed");
    return HashStore::check(keys);
  }
};

// A program may end as soon as it has its error, and the store with it. A rank that asks again
// needs no store.
TEST(Explain, TheHostOfTheStoreWaitsUntilTheOthersHaveReadWhoIsAbsent) {
  const auto store = c10::make_intrusive<ClosableStore>();
  const auto ranks = make_ranks(3, store);
  ranks[1]->domain().fail("out of luck");
  ASSERT_TRUE(all_fail(ranks));
  std::string text;
  {
    const std::jthread late([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      ranks[1]->domain().explain();
      text = ranks[2]->domain().explain();
    });
    ranks[0]->domain().explain();
    store->closed = true;
  }
  EXPECT_TRUE(text.starts_with("rank 1: out of luck\n  rank 1: host ")) << text;
  EXPECT_EQ(ranks[2]->domain().explain(), text);
  store->closed = false;
}

// The host waits for a limited time only.
TEST(Explain, ARankThatHasReadWhoIsAbsentKeepsItWhenTheStoreEnds) {
  const auto store = c10::make_intrusive<ClosableStore>();
  const auto ranks = make_ranks(2, store);
  ranks[1]->domain().fail("out of luck");
  ASSERT_TRUE(all_fail(ranks));
  store->closes_on_reading = true;
  const std::string text = ranks[1]->domain().explain();
  EXPECT_TRUE(text.starts_with("rank 1: out of luck\n  rank 1: host ")) << text;
}

// A limit of hours, as of a first step, does not hold up the shorter ones after it, and these do
// not begin before that work has ended.
TEST(ExpectBy, EachLimitBeginsWhenTheWorkBeforeHasEnded) {
  const auto ranks = make_ranks(2, c10::make_intrusive<c10d::HashStore>());
  FailureDomain& domain = ranks[0]->domain();
  std::atomic<bool> first_ended = false;
  std::atomic<int> asked = 0;
  domain.expect_by(
      [&] {
        ++asked;
        return first_ended ? "" : "the first has not ended";
      },
      std::chrono::hours(1));
  domain.expect_by([] { return "the second has not ended"; }, std::chrono::milliseconds(50));
  domain.expect_by([] { return "the third has not ended"; }, std::chrono::milliseconds(50));
  ASSERT_TRUE(poll(kTimeout, 1, [&] { return asked > 3; }));  // three tenths of a second
  EXPECT_FALSE(domain.failed());
  first_ended = true;
  ASSERT_TRUE(poll(kTimeout, 1, [&] { return domain.failed(); }));
  EXPECT_EQ(domain.cause(), "rank 0: the second has not ended");
  EXPECT_TRUE(domain.hung());
}

class CountingStore final : public c10d::HashStore {
 public:
  std::atomic<int> checks = 0;
  bool check(const std::vector<std::string>& keys) override {
    ++checks;
    return HashStore::check(keys);
  }
};

// With 4096 ranks, each request is 40000 per second for the store of rank 0.
TEST(Tick, AsksTheStoreOnce) {
  std::atomic<int> ticks = 0;
  const auto store = c10::make_intrusive<CountingStore>();
  const auto ranks = make_ranks(2, store);
  for (const auto& rank : ranks) {
    rank->domain().set_check([&](c10d::Store&) -> std::string {
      ++ticks;
      return "";
    });
  }
  const int asked = store->checks, begin = ticks;
  ASSERT_TRUE(poll(kTimeout, 1, [&] { return ticks >= begin + 20; }));
  // Each rank may be in the middle of a tick at both counts.
  EXPECT_LE(store->checks - asked, ticks - begin + 4);
}

TEST(Reset, NamesARankThatDoesNotCallIt) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto ranks = make_ranks(3, store);
  for (const auto& rank : ranks) rank->domain().fail("out of luck");
  const auto error_of = [&](int rank) {
    try {
      ranks[static_cast<size_t>(rank)]->domain().reset(3, std::chrono::milliseconds(300));
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  // Rank 0, which calls it, waits for rank 1 as well.
  std::string first, last;
  {
    std::jthread thread([&] { first = error_of(0); });
    last = error_of(2);
  }
  EXPECT_EQ(first, "reset: rank 1 did not call it within 300 ms");
  EXPECT_EQ(last, first);
  reset_all(ranks);  // it can be called again
}

}  // namespace
}  // namespace pipewright::comms
