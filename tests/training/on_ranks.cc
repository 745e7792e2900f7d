#include "tests/training/on_ranks.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <numeric>
#include <random>

#include "comms/gloo.h"
#include "comms/thread_backend.h"
#include "tests/ranks/ranks.h"

namespace pipewright::tests {
namespace {

// Null for a process alone.
comms::World* world_of_processes() {
  static const std::unique_ptr<comms::World> world = [] {
    const comms::Environment environment = comms::read_environment();
    return environment.world_size == 1
               ? nullptr
               : std::make_unique<comms::World>(comms::gloo_world(environment));
  }();
  return world.get();
}

}  // namespace

std::vector<std::string> errors_on_ranks(int size, const std::function<void(Rank&)>& body,
                                         const comms::Injector& injector,
                                         std::chrono::milliseconds timeout) {
  at::set_num_threads(1);
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto run_rank = [&](comms::World& world) {
    const auto log = std::make_shared<comms::CallLog>();
    Rank self{world.rank(), comms::record(world.make_group("dp", ranks), log, injector),
              world.make_group("hand", ranks), log, &world};
    body(self);
  };
  if (comms::World* world = world_of_processes()) {
    // This process is one rank; what wants another number of them is for another run.
    if (world->size() != size) return std::vector<std::string>(static_cast<size_t>(size));
    run_rank(*world);
    std::printf("over Gloo: %s\n", testing::UnitTest::GetInstance()->current_test_info()->name());
    return std::vector<std::string>(static_cast<size_t>(size));
  }
  std::vector<comms::World> worlds = comms::thread_worlds(size, {.timeout = timeout});
  return errors_of_ranks(size, [&](int rank) { run_rank(worlds[static_cast<size_t>(rank)]); });
}

void on_ranks(int size, const std::function<void(Rank&)>& body, const comms::Injector& injector) {
  EXPECT_EQ(errors_on_ranks(size, body, injector),
            std::vector<std::string>(static_cast<size_t>(size)));
}

bool ranks_are_processes() { return world_of_processes() != nullptr; }

void on_first_rank_alone(Rank& self, const std::function<void()>& body) {
  self.by_hand->barrier()->wait();
  if (self.rank == 0) body();
  self.by_hand->barrier()->wait();
}

comms::Injector random_delays(const std::string& op) {
  return [op](const comms::CallRecord& call) {
    // A thread is one rank's, and each is late at other calls.
    thread_local std::mt19937 random(static_cast<unsigned>(7 + call.rank));
    comms::Fault fault;
    if (call.op == op) {
      fault.delay = std::chrono::microseconds(random() % 3000);
      fault.work_delay = std::chrono::microseconds(random() % 3000);
    }
    return fault;
  };
}

torch::optim::Adam adam(torch::nn::Module& module) {
  return torch::optim::Adam(module.parameters(), torch::optim::AdamOptions(1e-2));
}

uint64_t data_seed(int iteration, int rank) {
  return 1000 * static_cast<uint64_t>(iteration) + 42 + static_cast<uint64_t>(rank);
}

}  // namespace pipewright::tests
