#include "tests/support/training/on_ranks.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <numeric>
#include <random>
#include <string_view>
#include <thread>

#include "pipewright/comms/gloo/gloo.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::tests {
namespace {

constexpr std::string_view kHere = "{here}";

// Null if this process is not one of several ranks.
comms::World* world_of_processes() {
  static const std::unique_ptr<comms::World> world = [] {
    const comms::Environment environment = comms::read_environment();
    return environment.world_size == 1
               ? nullptr
               : std::make_unique<comms::World>(comms::gloo_world(environment));
  }();
  return world.get();
}

bool is_late(Late late, Late where) { return late == where || late == Late::kEverywhere; }

// Each thread is one rank, with its own random sequence.
std::chrono::microseconds some_time(int rank) {
  thread_local std::mt19937 random(static_cast<unsigned>(7 + rank));
  return std::chrono::microseconds(random() % 3000);
}

}  // namespace

const char* to_string(Late late) {
  switch (late) {
    case Late::kNowhere:
      return "nowhere";
    case Late::kAfterForward:
      return "after_forward";
    case Late::kBeforeGather:
      return "before_gather";
    case Late::kBeforeReduction:
      return "before_reduction";
    case Late::kBeforeStep:
      return "before_step";
    case Late::kEverywhere:
      return "everywhere";
  }
  return "";
}

void Rank::be_late(Late where) const {
  if (is_late(late, where)) std::this_thread::sleep_for(some_time(rank));
}

std::vector<std::string> errors_on_ranks(int size, const std::function<void(Rank&)>& body,
                                         const comms::Injector& injector,
                                         std::chrono::milliseconds timeout) {
  at::set_num_threads(1);
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto run_rank = [&](comms::World& world) {
    const auto log = std::make_shared<comms::CallLog>();
    Rank self{world.rank(),
              comms::record(world.make_group("dp", ranks), log, injector),
              world.make_group("hand", ranks),
              log,
              &world,
              injector};
    body(self);
  };
  if (comms::World* world = world_of_processes()) {
    // This process is one rank. Tests for a different number of ranks are skipped in this run.
    if (world->size() != size) return std::vector<std::string>(static_cast<size_t>(size));
    run_rank(*world);
    std::printf("over Gloo: %s\n", testing::UnitTest::GetInstance()->current_test_info()->name());
    return std::vector<std::string>(static_cast<size_t>(size));
  }
  std::vector<comms::World> worlds = make_worlds(size, {.timeout = timeout});
  return errors_of_ranks(size, [&](int rank) { run_rank(worlds[static_cast<size_t>(rank)]); });
}

void expect_errors(int size, const std::string& what, const std::function<void(Rank&)>& body) {
  std::vector<std::string> expected(static_cast<size_t>(size), what);
  const std::vector<std::string> errors = errors_on_ranks(size, [&](Rank& self) {
    std::string& text = expected[static_cast<size_t>(self.rank)];
    for (size_t at = 0; (at = text.find(kHere)) != std::string::npos;)
      text.replace(at, kHere.size(), here().str());
    body(self);
  });
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    EXPECT_NE(errors[rank].find(expected[rank]), std::string::npos)
        << errors[rank] << "\nexpected: " << expected[rank];
  }
}

void on_ranks(int size, const std::function<void(Rank&)>& body) {
  EXPECT_EQ(errors_on_ranks(size, body), std::vector<std::string>(static_cast<size_t>(size)));
}

void on_late_ranks(int size, Late late, const std::function<void(Rank&)>& body) {
  const auto delay = [late](const comms::CallRecord& call) {
    comms::Fault fault;
    const Late where = call.op.starts_with("allgather") ? Late::kBeforeGather
                       : call.op.starts_with("reduce_scatter") || call.op == "allreduce"
                           ? Late::kBeforeReduction
                           : Late::kNowhere;
    if (where == Late::kNowhere || !is_late(late, where)) return fault;
    fault.delay = some_time(call.rank);
    fault.work_delay = some_time(call.rank);
    return fault;
  };
  const auto late_body = [&](Rank& self) {
    self.late = late;
    body(self);
  };
  EXPECT_EQ(errors_on_ranks(size, late_body, delay),
            std::vector<std::string>(static_cast<size_t>(size)));
}

bool ranks_are_processes() { return world_of_processes() != nullptr; }

void on_first_rank_alone(Rank& self, const std::function<void()>& body) {
  self.by_hand->barrier()->wait();
  if (self.rank == 0) body();
  self.by_hand->barrier()->wait();
}

uint64_t data_seed(int iteration, int rank) {
  return 1000 * static_cast<uint64_t>(iteration) + 42 + static_cast<uint64_t>(rank);
}

}  // namespace pipewright::tests
