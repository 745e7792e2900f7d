// Hangs of collectives on a device, where a wait does not block the host: the report names the rank
// that causes them, not those whose devices wait for it.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/group.h"
#include "pipewright/comms/process/sockets.h"
#include "pipewright/schedules/registry.h"
#include "tests/device/current.h"
#include "tests/device/device.h"
#include "tests/executor/models.h"
#include "tests/executor/trainer.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::testdevice {
namespace {

using executor::ActionContext;
using executor::HangError;

constexpr int64_t kStep = 1;  // that hangs
constexpr std::chrono::seconds kTimeout{2};

struct Rank {
  int rank;
  int64_t step;
  c10d::Backend &pair, &spare;  // two groups of the ranks that have the same stage
};

void allreduce(const Rank& own) {
  std::vector<at::Tensor> sum = {at::zeros({1}, tests::here())};
  own.pair.allreduce(sum)->wait();
}

// The lines of each rank's error that name culprits, after two copies of a pipeline of two stages
// have trained; ranks 0 and 1 have the first stage. `before` runs before each FORWARD, `after`
// after step kStep, which `further` steps follow.
std::vector<std::string> culprits(
    const std::function<void(const Rank&, const ir::Action& forward)>& before,
    const std::function<void(const Rank&)>& after = [](const Rank&) {}, int64_t further = 0) {
  std::vector<comms::World> worlds = tests::make_worlds(4);
  std::vector<std::string> found(4);
  const std::string errors = tests::run_ranks(4, [&](int rank) {
    comms::World& world = worlds[static_cast<size_t>(rank)];
    const std::vector<int> both = {rank / 2 * 2, rank / 2 * 2 + 1};
    const comms::BackendPtr pair = world.make_group("pair", both);
    const comms::BackendPtr spare = world.make_group("spare", both);
    executor::Trainer trainer(executor::make_program(*schedules::find_schedule("1F1B"), {2, 2, 2}),
                              executor::Parallel::kReplicate, 2, world, nullptr,
                              {.timeout = kTimeout, .first_timeout = std::chrono::minutes(1)});
    try {
      for (int64_t step = 0; step <= kStep; ++step) {
        trainer.executor->set_function(ir::ActionKind::kForward, [&](const ActionContext& context) {
          before({rank, step, *pair, *spare}, context.action());
          context.run_default();
        });
        trainer.executor->step(trainer.batch(step));
        if (step < kStep) trainer.executor->confirm();
      }
      after({rank, kStep, *pair, *spare});
      for (int64_t step = 1; step <= further; ++step)
        trainer.executor->step(trainer.batch(kStep + step));
      // A device makes progress while somebody looks at it.
      c10::Event end(kDeviceType);
      end.record(current_stream(rank));
      comms::poll(2 * kTimeout, 1, [&] {
        end.query();
        return world.failures().failed();
      });
      trainer.executor->confirm();
    } catch (const HangError& error) {
      std::istringstream lines(error.what());
      for (std::string line; std::getline(lines, line);) {
        if (line.starts_with("  culprit: ")) found[static_cast<size_t>(rank)] += line + "\n";
      }
    }
  });
  EXPECT_EQ(errors, "");
  return found;
}

// Each rank's error names one culprit, in these words.
void expect(const std::vector<std::string>& culprits, const std::vector<std::string>& parts) {
  for (const std::string& found : culprits) {
    EXPECT_EQ(std::ranges::count(found, '\n'), 1) << found;
    for (const std::string& part : parts)
      EXPECT_NE(found.find(part), std::string::npos) << part << " in " << found;
  }
}

// In place of a kernel that never ends, the current stream waits for a tensor that nobody sends.
void compute_forever(const Rank& own) {
  std::vector<at::Tensor> nothing = {at::zeros({1}, tests::here())};
  own.spare.recv(nothing, 1 - own.rank, 0)->wait();
}

bool is_second_forward(const Rank& own, const ir::Action& forward) {
  return own.step == kStep && forward.parts()[0].microbatch() == 1;
}

TEST(GroupHang, ACollectiveThatOneRankSkips) {
  const auto skip = [](const Rank& own, const ir::Action&) {
    if (own.rank != 1 || own.step != kStep) allreduce(own);
  };
  expect(culprits(skip), {"culprit: rank 1 (", "left out allreduce",
                          "rank 0 waits for at step 1, action", "`0F0`"});
}

// After a step, when devices end what hosts have queued: clipping, say.
TEST(GroupHang, ACollectiveAfterTheStepThatOneRankSkips) {
  const auto nothing = [](const Rank&, const ir::Action&) {};
  const auto skip = [](const Rank& own) {
    if (own.rank != 1) allreduce(own);
  };
  for (const int64_t further : {0, 1}) {
    expect(culprits(nothing, skip, further),
           {"culprit: rank 1 (", "left out allreduce 1 of group `pair[0,1]#0`"});
  }
}

TEST(GroupHang, ARankWhoseDeviceDoesNotReachTheCollective) {
  const auto compute = [](const Rank& own, const ir::Action& forward) {
    if (own.rank == 1 && is_second_forward(own, forward)) compute_forever(own);
    allreduce(own);
  };
  expect(culprits(compute), {"culprit: rank 1 (", "`0F1` has not ended"});
}

// A stream beside the one that computes waits too, but holds up nothing.
TEST(GroupHang, ARankWhoseSideStreamWaits) {
  const auto compute = [](const Rank& own, const ir::Action& forward) {
    if (own.rank != 0 || !is_second_forward(own, forward)) return;
    {
      const c10::StreamGuard side(new_stream(own.rank));
      allreduce(own);
    }
    compute_forever(own);
  };
  expect(culprits(compute), {"culprit: rank 0 (", "`0F1` has not ended"});
}

}  // namespace
}  // namespace pipewright::testdevice
