// Votes: all ranks leave with the same result, or none does; and what one costs.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/store_rounds.h"
#include "pipewright/comms/threads/threads.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::comms {
namespace {

constexpr std::chrono::hours kForever{1};

// A store in memory that counts requests about votes.
class CountingStore final : public c10d::HashStore {
 public:
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(this);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    count(key);
    return HashStore::get(key);
  }
  int64_t add(const std::string& key, int64_t value) override {
    count(key);
    return HashStore::add(key, value);
  }
  bool deleteKey(const std::string& key) override {
    count(key);
    return HashStore::deleteKey(key);
  }
  using HashStore::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    count(key);
    HashStore::set(key, value);
  }
  using HashStore::wait;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    count(keys[0]);
    HashStore::wait(keys, timeout);
  }
  int64_t requests() const { return requests_; }

 private:
  void count(const std::string& key) { requests_ += key.starts_with("test/vote/"); }
  std::atomic<int64_t> requests_ = 0;
};

std::vector<std::string> errors_of(int size,
                                   const std::function<void(World& world, Vote& vote)>& body,
                                   const ThreadOptions& options = {}) {
  std::vector<World> worlds = thread_worlds(size, options);
  return tests::errors_of_ranks(size, [&](int rank) {
    World& world = worlds[static_cast<size_t>(rank)];
    Vote vote(world, "test", size);
    body(world, vote);
  });
}

void expect_no_errors(int size, const std::function<void(World& world, Vote& vote)>& body) {
  EXPECT_EQ(errors_of(size, body), std::vector<std::string>(static_cast<size_t>(size)));
}

TEST(Vote, AllRanksLeaveWithTheSameProblem) {
  constexpr int kVotes = 500;
  std::vector<std::vector<std::string>> agreed(5, std::vector<std::string>(kVotes));
  const auto has_problem = [](int rank, int vote) {
    return vote % 3 == 0 && std::mt19937(static_cast<unsigned>(vote * 8 + rank))() % 2 == 0;
  };
  expect_no_errors(5, [&](World& world, Vote& vote) {
    for (int i = 0; i < kVotes; ++i) {
      const std::string own =
          has_problem(world.rank(), i) ? std::to_string(world.rank()) : std::string();
      agreed[static_cast<size_t>(world.rank())][static_cast<size_t>(i)] = vote.agree(own, kForever);
    }
  });
  for (size_t i = 0; i < kVotes; ++i) {
    bool any = false;
    for (int rank = 0; rank < 5; ++rank) {
      EXPECT_EQ(agreed[static_cast<size_t>(rank)][i], agreed[0][i]) << i;
      any = any || has_problem(rank, static_cast<int>(i));
    }
    EXPECT_EQ(any, !agreed[0][i].empty()) << i;
    EXPECT_TRUE(!any || has_problem(std::stoi(agreed[0][i]), static_cast<int>(i))) << i;
  }
}

TEST(Vote, CostsAFewRequestsPerVoter) {
  const auto store = c10::make_intrusive<CountingStore>();
  constexpr int kSize = 8, kVotes = 100;
  const auto errors = errors_of(kSize,
                                [&](World&, Vote& vote) {
                                  for (int i = 0; i < kVotes; ++i) vote.agree("", kForever);
                                },
                                {.store = store});
  EXPECT_EQ(errors, std::vector<std::string>(kSize));
  EXPECT_LE(store->requests(), 16 * kSize * kVotes);
  // Only the counter and the results of the last two votes are left.
  std::vector<std::string> keys = store->listKeys();
  EXPECT_LE(std::ranges::count_if(
                keys, [](const std::string& key) { return key.starts_with("test/vote/"); }),
            4);
}

TEST(Vote, WithoutOneRankNobodyLeaves) {
  const auto errors = errors_of(3, [](World& world, Vote& vote) {
    if (world.rank() != 1) vote.agree("", std::chrono::milliseconds(50));
  });
  EXPECT_EQ(errors[0], "not all 3 ranks arrived: timed out after 50 ms");
  EXPECT_EQ(errors[2], errors[0]);
}

// A failure ends a vote whose timeout is far away; reset() makes the next one right, also when only
// some ranks had taken part.
TEST(Vote, AFailureEndsIt) {
  for (const int votes_before : {0, 1, 5}) {
    expect_no_errors(3, [&](World& world, Vote& vote) {
      for (int i = 0; i < votes_before; ++i) EXPECT_EQ(vote.agree("", kForever), "");
      if (world.rank() == 1) {
        world.failures().fail("out of luck");
      } else {
        try {
          vote.agree("", kForever);
          ADD_FAILURE() << "expected an error";
        } catch (const std::runtime_error& error) {
          EXPECT_EQ(std::string(error.what()), "rank 1: out of luck");
        }
      }
      world.reset();
      for (int i = 0; i < 3; ++i)
        EXPECT_EQ(vote.agree(i == 1 && world.rank() == 2 ? "wrong" : "", kForever),
                  i == 1 ? "wrong" : "");
    });
  }
}

// A rank that fails right after it has voted does not take the result from the others: in each
// round either all ranks count the vote or none does.
TEST(Vote, StandsOrFallsOnAllRanks) {
  constexpr int kRounds = 100;
  std::vector<std::vector<bool>> stands(4, std::vector<bool>(kRounds));
  expect_no_errors(4, [&](World& world, Vote& vote) {
    for (int round = 0; round < kRounds; ++round) {
      const bool fails_first = round % 3 == 0, mine = round % 4 == world.rank();
      EXPECT_EQ(vote.agree("", kForever), "");  // all ranks have left reset()
      try {
        if (fails_first && mine) world.failures().fail("before");
        vote.agree("", kForever);
        stands[static_cast<size_t>(world.rank())][static_cast<size_t>(round)] = true;
        if (!fails_first && mine) world.failures().fail("after");
      } catch (const std::runtime_error&) {
      }
      world.reset();
    }
  });
  for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(stands[static_cast<size_t>(rank)], stands[0]);
}

}  // namespace
}  // namespace pipewright::comms
