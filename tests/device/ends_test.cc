// How communication ends on a device: in order after a clean end, by an abort after a failure, and
// by the time limit if nothing else would end it.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <latch>
#include <thread>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/nccl/nccl_settings.h"
#include "tests/device/backend.h"
#include "tests/device/current.h"
#include "tests/device/device.h"
#include "tests/device/two_stages.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::testdevice {
namespace {

using executor::HangError;
using executor::StepError;

// Both weights are 3.
struct Trainer : TwoStages {
  Trainer(int rank, comms::World& world,
          std::chrono::milliseconds timeout = std::chrono::minutes(1))
      : TwoStages(rank, world, 3.0,
                  {.scale_grads = false, .timeout = timeout, .device = device(rank)}),
        batch{{at::ones({kMicrobatches, 2}, device(rank))}, {}, {}} {}

  executor::Batch batch;
};

// Each rank destroys its executor as soon as step() has returned, when nothing of the step may have
// run on its device yet. NCCL's backend aborts when it is destroyed, unless it was shut down.
TEST(CleanEnd, DestroyingTheExecutorLosesNothing) {
  for (uint64_t of = 0; of < 20; ++of) {
    seed(of);
    std::vector<comms::World> worlds = device_worlds(2);
    EXPECT_EQ(tests::run_ranks(2,
                               [&](int rank) {
                                 Trainer trainer(rank, worlds[static_cast<size_t>(rank)]);
                                 trainer.executor->step(trainer.batch);
                                 trainer.executor->step(trainer.batch);
                                 trainer.executor.reset();  // the world lives on
                                 // Two steps, 8 elements each, times the other weight.
                                 EXPECT_EQ(trainer.weight.grad().cpu().item<float>(), 2 * 8 * 3.f);
                               }),
              "")
        << "seed " << of;
    drain();
    EXPECT_EQ(races(), std::vector<std::string>());
    EXPECT_EQ(errors(), std::vector<std::string>());
  }
}

// The same for a group of the trainer's, and the world.
TEST(CleanEnd, DestroyingTheWorldLosesNothing) {
  for (uint64_t of = 0; of < 20; ++of) {
    seed(of);
    std::vector<std::optional<comms::World>> worlds;
    for (comms::World& world : device_worlds(2)) worlds.emplace_back(world);
    EXPECT_EQ(
        tests::run_ranks(2,
                         [&](int rank) {
                           std::vector<at::Tensor> sum = {at::full({4}, rank + 1.0, device(rank))};
                           {
                             auto& world = worlds[static_cast<size_t>(rank)];
                             const std::vector<int> all = {0, 1};
                             world->make_group("all", all)->allreduce(sum)->wait();
                             world.reset();
                           }
                           EXPECT_TRUE(at::equal(sum[0].cpu(), at::full({4}, 3.0)));
                         }),
        "")
        << "seed " << of;
    drain();
    EXPECT_EQ(errors(), std::vector<std::string>());
  }
}

// Runs steps, waits for a failure without waiting for the device, and returns the error of the next
// step. A device only makes progress while somebody looks at it.
std::string error_of(Trainer& trainer, const comms::World& world, int64_t steps) {
  try {
    for (int64_t step = 0; step < steps; ++step) trainer.executor->step(trainer.batch);
    c10::Event end(kDeviceType);
    end.record(current_stream(current_device()));
    while (!world.failures().failed()) {
      end.query();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    trainer.executor->step(trainer.batch);
  } catch (const StepError& error) {
    EXPECT_EQ(dynamic_cast<const HangError*>(&error) != nullptr, world.failures().hung());
    return error.what();
  }
  return "no error";
}

// Runs `steps` steps on two ranks, where rank 1 calls `last_send` instead of the last SEND_B, and
// then `further` steps.
std::vector<std::string> errors_of(int64_t steps, std::chrono::milliseconds timeout,
                                   const std::function<void()>& last_send, int64_t further = 0) {
  seed(3);
  std::vector<comms::World> worlds = device_worlds(2);
  std::vector<std::string> errors(2);
  EXPECT_EQ(tests::run_ranks(
                2,
                [&](int rank) {
                  comms::World& world = worlds[static_cast<size_t>(rank)];
                  Trainer trainer(rank, world, timeout);
                  int64_t sends = 0;
                  if (rank == 1) {
                    trainer.executor->set_function(ir::ActionKind::kSendB,
                                                   [&](const executor::ActionContext& context) {
                                                     if (++sends == steps * Trainer::kMicrobatches)
                                                       last_send();
                                                     else
                                                       context.run_default();
                                                   });
                  }
                  errors[static_cast<size_t>(rank)] = error_of(trainer, world, steps + further);
                }),
            "");
  return errors;
}

// When rank 1 fails, rank 0 has returned from the step, and its device waits for a gradient.
TEST(Failure, EndsWhatADeviceWaitsFor) {
  for (const std::string& error :
       errors_of(2, std::chrono::minutes(1), [] { throw std::runtime_error("out of luck"); })) {
    EXPECT_TRUE(error.starts_with("rank 1, step 1, action ")) << error;
    EXPECT_NE(error.find("`1SEND_B3`: out of luck"), std::string::npos) << error;
  }
}

// Rank 0's device waits for rank 1 in many groups. An abort of one blocks until the device is idle,
// so until all others have been aborted.
TEST(Failure, AbortsAllGroupsAtOnce) {
  constexpr int kGroups = 40;  // one after the other, each takes the second that an abort may take
  seed(3);
  std::vector<comms::World> worlds = device_worlds(2);
  std::latch waiting(2);
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(tests::run_ranks(2,
                             [&](int rank) {
                               comms::World& world = worlds[static_cast<size_t>(rank)];
                               std::vector<comms::BackendPtr> groups;
                               for (int i = 0; i < kGroups; ++i)
                                 groups.push_back(world.make_group("group " + std::to_string(i),
                                                                   std::vector<int>{0, 1}));
                               std::vector<at::Tensor> sum = {at::ones({4}, device(rank))};
                               if (rank == 1) {
                                 waiting.arrive_and_wait();
                                 world.failures().fail("out of luck");
                               } else {
                                 for (const auto& group : groups) group->allreduce(sum)->wait();
                                 waiting.arrive_and_wait();
                                 c10::Event end(kDeviceType);
                                 end.record(current_stream(rank));
                                 while (!end.query())
                                   std::this_thread::sleep_for(std::chrono::milliseconds(1));
                               }
                               EXPECT_EQ(world.failures().cause(), "rank 1: out of luck");
                             }),
            "");
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30));
}

// Rank 1 aborts a group on which rank 0 waits. The world fails, is reset and trains on. Returns
// what has gone wrong on the device some time later.
std::vector<std::string> errors_after_a_reset() {
  constexpr std::chrono::milliseconds kEndsProcessAfter{200};
  seed(3);
  std::vector<comms::World> worlds = device_worlds(2, {.ends_process_after = kEndsProcessAfter});
  EXPECT_EQ(tests::run_ranks(2,
                             [&](int rank) {
                               comms::World& world = worlds[static_cast<size_t>(rank)];
                               const auto group = world.make_group("all", std::vector<int>{0, 1});
                               std::vector<at::Tensor> sum = {at::ones({4}, device(rank))};
                               if (rank == 0) {
                                 group->allreduce(sum);
                                 // Longer than the watchdog needs to notice rank 1's abort.
                                 std::this_thread::sleep_for(kEndsProcessAfter);
                                 world.failures().fail("out of luck");
                               } else {
                                 group->abort();
                               }
                               world.reset();
                               group->allreduce(sum)->wait();
                               synchronize(rank);
                               std::this_thread::sleep_for(2 * kEndsProcessAfter);
                             }),
            "");
  return errors();
}

// PyTorch's watchdog would end the process after the world has recovered. What nccl_world sets in
// the environment prevents that.
TEST(Failure, PyTorchsWatchdogDoesNotEndAProcessThatWasReset) {
  EXPECT_EQ(errors_after_a_reset(),
            std::vector<std::string>{"watchdog of communicator all[0,1]#0: ends the process, "
                                     "because a peer of rank 0 has aborted"});
  for (const auto& [name, value] : comms::nccl_environment(comms::variables_of_process()))
    setenv(name.c_str(), value.c_str(), 1);
  EXPECT_EQ(errors_after_a_reset(), std::vector<std::string>());
  unsetenv("TORCH_NCCL_ASYNC_ERROR_HANDLING");
}

// Rank 1 leaves a SEND out: nothing fails, and nothing would ever end.
TEST(TimeLimit, AHangOfADeviceNamesItsCulprit) {
  for (const std::string& error : errors_of(3, std::chrono::seconds(2), [] {})) {
    // What notices it: the action that waits.
    EXPECT_TRUE(error.starts_with("rank 0: step 2, action ")) << error;
    EXPECT_NE(error.find("`0B3` did not end on its device within 2000 ms"), std::string::npos)
        << error;
    EXPECT_NE(error.find("`1SEND_B3` was left out; rank 0 waits for it in `0RECV_B3`"),
              std::string::npos)
        << error;
    EXPECT_NE(error.find("\n  culprit: rank 1 ("), std::string::npos) << error;
    EXPECT_EQ(error.find("culprit: rank 0"), std::string::npos) << error;
  }
}

// The hosts have gone on to the next step, the devices have not.
TEST(TimeLimit, AHangOfADeviceNamesItsStep) {
  for (const std::string& error : errors_of(
           2, std::chrono::seconds(2), [] {}, 1)) {
    EXPECT_TRUE(error.starts_with("rank 0: step 1, action ")) << error;
    EXPECT_NE(error.find("is past step 1, in which rank 0 waits for its `1SEND_B3`"),
              std::string::npos)
        << error;
    EXPECT_NE(error.find("\n  culprit: rank 1 ("), std::string::npos) << error;
    EXPECT_EQ(error.find("culprit: rank 0"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace pipewright::testdevice
