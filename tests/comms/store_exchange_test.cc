// Exchanges of texts: all ranks get all texts, a missing rank is named, and a failure ends a wait.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/store_rounds.h"
#include "pipewright/comms/threads/threads.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::comms {
namespace {

World& at(std::vector<World>& worlds, int rank) { return worlds[static_cast<size_t>(rank)]; }

TEST(StoreExchange, EachRankGetsAllTextsInTurn) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  std::vector<World> worlds = thread_worlds(4, {.store = store});
  EXPECT_EQ(tests::run_ranks(4,
                             [&](int rank) {
                               StoreExchange exchange(at(worlds, rank), "test");
                               StoreExchange other(at(worlds, rank), "test");  // of the same name
                               for (int round = 0; round < 50; ++round) {
                                 const std::string text = std::to_string(round) + " ";
                                 EXPECT_EQ(
                                     exchange(text + std::to_string(rank)),
                                     (std::vector{text + "0", text + "1", text + "2", text + "3"}));
                                 if (round % 10 == 0) {
                                   EXPECT_EQ(other("x"), std::vector<std::string>(4, "x"));
                                 }
                               }
                             }),
            "");
  // Texts are deleted: at most those of the last exchange are left.
  EXPECT_LT(store->getNumKeys(), 30);
}

TEST(StoreExchange, NamesTheRankThatIsMissing) {
  std::vector<World> worlds = thread_worlds(2);
  const std::vector<std::string> errors = tests::errors_of_ranks(2, [&](int rank) {
    StoreExchange exchange(at(worlds, rank), "test", std::chrono::milliseconds(200));
    if (rank == 0) exchange("");
  });
  EXPECT_EQ(errors[0], "rank 1 did not arrive: timed out after 200 ms");
}

TEST(StoreExchange, AFailureOfTheWorldEndsIt) {
  std::vector<World> worlds = thread_worlds(2);
  const std::vector<std::string> errors = tests::errors_of_ranks(2, [&](int rank) {
    StoreExchange exchange(at(worlds, rank), "test", std::chrono::hours(1));
    if (rank == 1)
      at(worlds, rank).failures().fail("out of luck");
    else
      exchange("");
  });
  EXPECT_EQ(errors[0].find("rank 1: out of luck"), 0u) << errors[0];
}

// A rank that fails after an exchange leaves its text, so all others get all texts.
TEST(StoreExchange, EndsOnAllRanksOrOnNone) {
  for (int round = 0; round < 20; ++round) {
    std::vector<World> worlds = thread_worlds(4);
    const std::vector<std::string> errors = tests::errors_of_ranks(4, [&](int rank) {
      StoreExchange exchange(at(worlds, rank), "test");
      EXPECT_EQ(exchange("x"), std::vector<std::string>(4, "x"));
      at(worlds, rank).failures().fail("done");
    });
    EXPECT_EQ(errors, std::vector<std::string>(4, ""));
  }
}

// Ranks may be in different exchanges when one fails; after a reset all count from the beginning.
TEST(StoreExchange, GoesOnAfterAReset) {
  std::vector<World> worlds = thread_worlds(2);
  EXPECT_EQ(tests::run_ranks(
                2,
                [&](int rank) {
                  World& world = at(worlds, rank);
                  StoreExchange exchange(world, "test");
                  if (rank == 1) {
                    exchange("");
                    world.failures().fail("out of luck");
                  } else {
                    const auto exchange_twice = [&] {
                      exchange("");
                      exchange("");
                    };
                    EXPECT_ANY_THROW(exchange_twice());
                  }
                  world.reset();
                  EXPECT_EQ(exchange(std::to_string(rank)), (std::vector<std::string>{"0", "1"}));
                }),
            "");
}

// A saver's thread and the training beside it: each of the two threads of a rank waits for another
// rank, which first waits for the other thread. Over one connection neither would get on.
TEST(StoreExchange, TwoThreadsOfARankDoNotWaitForEachOther) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  std::vector<World> worlds =
      thread_worlds(2, {.store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options)});
  const std::vector<std::string> ready(2, "");
  EXPECT_EQ(tests::run_ranks(2,
                             [&](int rank) {
                               using std::chrono::milliseconds;
                               World& world = at(worlds, rank);
                               StoreExchange training(world, "training", milliseconds(20'000));
                               StoreExchange saving(world, "saving", milliseconds(20'000));
                               if (rank == 1) {
                                 EXPECT_EQ(saving(""), ready);
                                 EXPECT_EQ(training(""), ready);
                                 return;
                               }
                               auto saved = std::async(std::launch::async, [&] {
                                 std::this_thread::sleep_for(milliseconds(100));
                                 return saving("");
                               });
                               EXPECT_EQ(training(""), ready);
                               EXPECT_EQ(saved.get(), ready);
                             }),
            "");
}

TEST(StoreExchange, AFailureEndsTheWaitsOfAllThreads) {
  std::vector<World> worlds = thread_worlds(2);
  const std::vector<std::string> errors = tests::errors_of_ranks(2, [&](int rank) {
    World& world = at(worlds, rank);
    StoreExchange training(world, "training", std::chrono::hours(1));
    StoreExchange saving(world, "saving", std::chrono::hours(1));
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      world.failures().fail("out of luck");
      return;
    }
    auto saved = std::async(std::launch::async, [&] { saving(""); });
    EXPECT_ANY_THROW(training(""));
    saved.get();
  });
  EXPECT_EQ(errors[0].find("rank 1: out of luck"), 0u) << errors[0];
}

TEST(StoreExchange, LongTexts) {
  std::vector<World> worlds = thread_worlds(1);
  StoreExchange exchange(worlds[0], "test");
  EXPECT_EQ(exchange(std::string(StoreExchange::kMaxText, 'x'))[0].size(), StoreExchange::kMaxText);
  EXPECT_THROW(exchange(std::string(StoreExchange::kMaxText + 1, 'x')), std::invalid_argument);
}

}  // namespace
}  // namespace pipewright::comms
