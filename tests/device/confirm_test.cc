// Executor::confirm() on a device: a step counts as complete when the devices of all ranks have
// ended it, so no rank updates its weights after a step that fails on the device of another.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <string>
#include <vector>

#include "tests/device/device.h"
#include "tests/device/two_stages.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::testdevice {
namespace {

using executor::ActionContext;
using executor::StepError;

constexpr int64_t kSteps = 4, kFailingStep = 2;
constexpr std::chrono::seconds kTimeout{2};

// Both weights matter in the loss.
struct Trainer : TwoStages {
  Trainer(int rank, comms::World& world)
      : TwoStages(rank, world, 3.0 + rank,
                  {.timeout = kTimeout,
                   .first_timeout = std::chrono::minutes(1),
                   .device = tests::here()}),
        optimizer({weight}, torch::optim::SGDOptions(1e-2)) {}
  executor::Batch batch(int64_t step) const {
    return {{at::ones({kMicrobatches, 2}, tests::here()) * (1 + step)}, {}, {}};
  }

  torch::optim::SGD optimizer;
};

struct Result {
  std::vector<std::string> errors;  // by rank
  std::vector<at::Tensor> weights;  // by rank, at the end
};

// Trains two ranks. In its first attempt at kFailingStep, rank 1 leaves out its last SEND_B if
// `disturbed`: both hosts return from step(), and rank 0's device waits for a gradient.
Result train(bool disturbed) {
  Result result{std::vector<std::string>(2), std::vector<at::Tensor>(2)};
  std::vector<comms::World> worlds = tests::make_worlds(2);
  const std::string errors = tests::run_ranks(2, [&](int rank) {
    Trainer trainer(rank, worlds[static_cast<size_t>(rank)]);
    int64_t sends = 0;
    trainer.executor->set_function(ir::ActionKind::kSendB, [&](const ActionContext& context) {
      ++sends;
      if (!disturbed || sends != (kFailingStep + 1) * Trainer::kMicrobatches) context.run_default();
    });
    for (int64_t step = 0; step < kSteps;) {
      trainer.optimizer.zero_grad();
      const at::Tensor before = trainer.weight.detach().clone();
      try {
        trainer.executor->step(trainer.batch(step));
        trainer.executor->confirm();
        trainer.optimizer.step();
        ++step;
      } catch (const StepError& error) {
        result.errors[static_cast<size_t>(rank)] += error.what();
        EXPECT_TRUE(at::equal(trainer.weight.detach().cpu(), before.cpu())) << "rank " << rank;
        EXPECT_EQ(trainer.executor->reset(), step);
      }
    }
    result.weights[static_cast<size_t>(rank)] = trainer.weight.detach().cpu();
  });
  EXPECT_EQ(errors, "");
  return result;
}

TEST(Confirm, NoRankUpdatesItsWeightsAfterAStepThatADeviceDoesNotEnd) {
  for (uint64_t of = 0; of < 5; ++of) {
    seed(of);
    const Result undisturbed = train(false);
    EXPECT_EQ(undisturbed.errors, (std::vector<std::string>(2))) << "seed " << of;
    const Result disturbed = train(true);
    ASSERT_FALSE(HasFailure()) << "seed " << of;
    for (const std::string& error : disturbed.errors) {
      // Either rank may be the first to notice; both name the one that left something out.
      EXPECT_TRUE(error.find("\n  culprit: rank 1 (") != std::string::npos &&
                  error.find("): step 2, action 16 `1SEND_B3` was left out") != std::string::npos)
          << "seed " << of << ": " << error;
    }
    for (size_t rank = 0; rank < 2; ++rank)
      EXPECT_TRUE(at::equal(disturbed.weights[rank], undisturbed.weights[rank]))
          << "seed " << of << ", rank " << rank;
  }
}

}  // namespace
}  // namespace pipewright::testdevice
