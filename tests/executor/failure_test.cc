// Failures: who learns of what, what stays usable, and that reset() repairs everything, over
// threads. kill_test does the same to processes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/executor/executor.h"
#include "tests/executor/small_pipelines.h"
#include "tests/executor/trainer.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/recording/recording_backend.h"

namespace pipewright::executor {
namespace {

using std::chrono::milliseconds;

// ------------------------------------------------------------------------------ the failure domain

// In pp 2 x dp 2 one rank throws: all four report it, by its world rank and coordinates.
TEST(FailureDomain, EveryRankOfTheWorldNamesTheFirstCause) {
  for (const Parallel parallel : {Parallel::kNone, Parallel::kReplicate, Parallel::kShard}) {
    for (const int failing_step : {0, 1}) {
      const ir::Program program = named("1F1B", 2, 4);
      const std::vector<std::string> errors = errors_of(4, [&](int rank, comms::World& world) {
        int step = 0;
        Trainer trainer(program, parallel, 2, world, [&](int stage, int) {
          if (rank == 3 && stage == 1 && step == failing_step)
            throw std::runtime_error("out of luck");
        });
        for (; step < 4; ++step) trainer.train(step);
      });
      std::set<std::string> first_causes;
      for (const std::string& error : errors) {
        EXPECT_TRUE(error.starts_with("rank 3, step " + std::to_string(failing_step) + ", action "))
            << error;
        EXPECT_TRUE(contains(error, "`1F0`: out of luck\n  rank 3: pp 1, dp 1, host ")) << error;
        first_causes.insert(error.substr(0, error.find("\n  and then ")));
      }
      EXPECT_EQ(first_causes.size(), 1u);
    }
  }
}

// A rank of the other pipeline, which exchanges nothing with the one that fails, learns of it from
// its process's watcher.
TEST(FailureDomain, ARankThatExchangesNothingWithTheFailingOneLearnsToo) {
  const ir::Program program = named("1F1B", 1, 1);
  const std::vector<std::string> errors = errors_of(3, [&](int rank, comms::World& world) {
    // Ranks 0 and 1 are a group; rank 1 never comes.
    if (rank == 2) {
      world.make_group("watched", std::vector{1, 2});
      world.failures().fail("alone");
      return;
    }
    const comms::BackendPtr group =
        rank == 0 ? world.make_group("pair", std::vector{0, 1}) : nullptr;
    if (rank == 1) return;
    std::vector<at::Tensor> tensors = {at::zeros({1})};
    EXPECT_THROW(group->recv(tensors, 1, 0)->wait(), std::runtime_error);
    throw std::runtime_error(world.failures().cause());
  });
  EXPECT_EQ(errors[0], "rank 2: alone");
}

// What the watcher's thread holds of a rank while it looks at it may be all that is left of the
// rank's world by then. Leaving the world is not the watcher's: it would wait for itself.
TEST(FailureDomain, AWorldThatEndsWhileItIsWatched) {
  std::vector<comms::World> worlds = tests::make_worlds(2, {});
  std::promise<void> watched, released;
  std::promise<void> let_go;
  std::atomic<bool> once = false;
  worlds[1].failures().set_check([&, domain = worlds[1].failures().weak_from_this()](c10d::Store&) {
    if (once.exchange(true)) return std::string();
    auto held = domain.lock();
    watched.set_value();
    let_go.get_future().wait();
    held.reset();
    released.set_value();
    return std::string();
  });
  watched.get_future().wait();
  std::thread end([&] { worlds.pop_back(); });
  std::this_thread::sleep_for(milliseconds(100));
  let_go.set_value();
  EXPECT_EQ(released.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  end.join();
}

// The abort of a world's groups does not reach a group that is made after it.
// Between two steps, where no executor does it: each rank passes on its own error.
TEST(FailureDomain, AnErrorOutsideOfAStepIsExplained) {
  std::vector<std::string> texts(3);
  std::mutex mutex;
  expect_no_errors(3, [&](int rank, comms::World& world) {
    const comms::BackendPtr group = world.make_group("all", std::vector{0, 1, 2});
    std::string text;
    try {
      if (rank == 2) throw std::runtime_error("out of luck");
      std::vector<at::Tensor> sum = {at::ones({2})};
      group->allreduce(sum)->wait();
    } catch (const std::exception& error) {
      text = world.failures().explain(world.failures().fail(error.what()));
    }
    const std::lock_guard lock(mutex);
    texts[static_cast<size_t>(rank)] = text;
  });
  for (int rank = 0; rank < 3; ++rank) {
    const std::string& text = texts[static_cast<size_t>(rank)];
    EXPECT_TRUE(text.starts_with("rank 2: out of luck\n  rank 2: host ")) << text;
    // Nothing follows on rank 2, and elsewhere nothing that only repeats the cause.
    EXPECT_FALSE(contains(text, "rank 2: rank 2: ")) << text;
    EXPECT_EQ(contains(text, "and then rank 2"), false) << text;
  }
  EXPECT_FALSE(contains(texts[2], "and then")) << texts[2];
}

TEST(FailureDomain, AGroupOfAFailedWorldFailsAtOnce) {
  const std::vector<std::string> errors = errors_of(
      2,
      [&](int rank, comms::World& world) {
        if (rank == 1) return;
        world.failures().fail("out of luck");
        const std::vector<int> ranks = {0, 1};
        std::vector<at::Tensor> tensors = {at::zeros({1})};
        world.make_group("late", ranks)->recv(tensors, 1, 0)->wait();
      },
      milliseconds(500));
  EXPECT_TRUE(contains(errors[0], "rank 0 aborted the group")) << errors[0];
}

// A rank that connects the channels of its pipeline meanwhile reports the first cause too.
TEST(FailureDomain, ARankThatConnectsNamesTheFirstCause) {
  const ir::Program program = named("1F1B", 2, 4);
  for (int round = 0; round < 5; ++round) {
    const std::vector<std::string> errors = errors_of(4, [&](int rank, comms::World& world) {
      const bool connects = rank % 2 == 0;  // the other pipeline: ranks 1 and 3
      do {
        Trainer trainer(program, Parallel::kNone, 2, world, [&](int stage, int) {
          if (stage == 1) throw std::runtime_error("out of luck");
        });
        if (!connects) trainer.train(0);
      } while (true);
    });
    for (const std::string& error : errors)
      EXPECT_TRUE(contains(error, "`1F0`: out of luck\n  rank 3: pp 1, dp 1, host ")) << error;
  }
}

// --------------------------------------------------------------------------------- wrong batch

TEST(WrongBatch, LeavesEverythingUsable) {
  for (const Parallel parallel : {Parallel::kReplicate, Parallel::kShard}) {
    const ir::Program program = named("1F1B", 2, 4);
    expect_no_errors(4, [&](int rank, comms::World& world) {
      Trainer trainer(program, parallel, 2, world);
      Trainer undisturbed(program, parallel, 2, world);
      const auto expect_batch_error = [&](const std::function<void()>& body,
                                          const std::string& message) {
        try {
          body();
          ADD_FAILURE() << "expected " << message;
        } catch (const BatchError& error) {
          EXPECT_EQ(error.what(), message);
        }
      };
      trainer.train(0);
      undisturbed.train(0);
      // The last batch of an epoch, smaller on world rank 0 alone.
      expect_batch_error(
          [&] { trainer.executor->step(trainer.batch(1, rank == 0 ? 6 : 8)); },
          "rank 0, step 1: input 0 of microbatch 2: expected Float [2, 6] as in the first step, "
          "got Float [1, 6]; before other shapes, call forget_shapes() on all ranks, or set "
          "dynamic_shapes");
      expect_batch_error(
          [&] { trainer.executor->step(trainer.batch(1, rank == 0 ? 3 : 8)); },
          "rank 0, step 1: input 0: expected size at least 4 along dimension 0, one per "
          "microbatch, got 3");
      // World rank 3 has the last stage of the second pipeline.
      expect_batch_error(
          [&] {
            Batch batch = trainer.batch(1);
            if (rank == 3) batch.targets.clear();
            trainer.executor->step(batch);
          },
          "rank 3, step 1: targets: expected microbatches on the rank of the last stage, got none");
      trainer.executor->eval(trainer.batch(0));
      // An evaluation may have other rows than the last one, but the same on all ranks.
      expect_batch_error(
          [&] { trainer.executor->eval(trainer.batch(1, rank == 1 ? 6 : 8)); },
          "rank 3, step 2: target 0: expected size 6 along dimension 0, the rows of "
          "input 0 on rank 1, got 8; for one tensor for all microbatches set nullopt "
          "in target_dims, for one per microbatch use Batch::per_microbatch");
      for (int step = 1; step < 3; ++step) {
        trainer.train(step);
        undisturbed.train(step);
      }
      for (size_t i = 0; i < trainer.weights.size(); ++i)
        EXPECT_TRUE(at::equal(trainer.weights[i], undisturbed.weights[i]));
    });
  }
}

// In the first step too, before anything is sent: nothing needs a reset(). An evaluation may lack
// targets.
TEST(WrongBatch, ALossWithoutItsTargetsIsABatchError) {
  const auto log = std::make_shared<comms::CallLog>();
  expect_no_errors(2, [&](int rank, comms::World& plain) {
    comms::World world = plain.wrapped(
        [&](const comms::BackendPtr& backend) { return comms::record(backend, log); });
    Trainer trainer(named("1F1B", 2, 2), Parallel::kNone, 1, world);
    trainer.executor->confirm();
    const int64_t before = log->count("send");
    trainer.executor->confirm();
    try {
      trainer.executor->step({.inputs = {at::ones({2, kWidth})}});
      ADD_FAILURE() << "expected an error on rank " << rank;
    } catch (const BatchError& error) {
      EXPECT_STREQ(
          error.what(),
          "rank 1, step 0: targets: expected microbatches on the rank of the last stage, got none");
    }
    EXPECT_EQ(log->count("send"), before);
    trainer.executor->confirm();
    trainer.executor->eval({.inputs = {at::ones({2, kWidth})}});
    trainer.executor->step(trainer.batch(0, 2));
  });
}

// What a loss takes decides what a step and an evaluation need.
TEST(WrongBatch, ALossOfTheOutputsAloneNeedsNoTargets) {
  expect_no_errors(2, [&](int rank, comms::World& world) {
    std::map<int, LocalStage> stages;
    const at::Tensor weight = at::full({1}, 2.0).set_requires_grad(true);
    stages[rank].stage = std::make_shared<ModuleStage>(
        [weight](const Tensors& in) { return Tensors{in[0] * weight}; });
    Executor executor(named("1F1B", 2, 2), stages, world,
                      {.loss = [](const Tensors& out) { return out[0].sum(); }});
    const Batch batch = {.inputs = {at::ones({2})}};
    const StepResult trained = executor.step(batch), evaluated = executor.eval(batch);
    if (rank == 0) return;
    for (const StepResult& result : {trained, evaluated}) {
      EXPECT_EQ(result.losses.at(0).item<double>(), 4);
      EXPECT_EQ(result.losses.at(1).item<double>(), 4);
    }
  });
}

// Wrong ranks on one rank are reported by all.
TEST(WrongArguments, RanksOfTheProgram) {
  for (const std::vector<int>& given : {std::vector{0, 0}, std::vector{0, 2}, std::vector{1, 0}}) {
    const std::vector<std::string> errors = errors_of(
        2,
        [&](int rank, comms::World& world) {
          std::map<int, LocalStage> stages;
          stages[rank].stage = std::make_shared<ModuleStage>([](const Tensors& in) { return in; });
          Executor executor(named("1F1B", 2, 2), stages, world,
                            {.loss = mse, .ranks = rank == 1 ? given : std::vector{0, 1}});
        },
        milliseconds(3000));
    if (given == std::vector{1, 0}) {
      // Two correct lists that differ: the ranks never meet.
      EXPECT_TRUE(contains(errors[0], "did not create its Executor within 3000 ms")) << errors[0];
      continue;
    }
    const std::string text = "ranks of the program: expected 2 ranks of a world of 2, got [0, " +
                             std::to_string(given[1]) + "]";
    EXPECT_EQ(errors[0], "world rank 1: " + text);
    EXPECT_EQ(errors[1], text);
  }
}

// --------------------------------------------------------------------------------------- reset

// Trains `steps` steps with failures injected at random actions of random ranks.
std::vector<at::Tensor> train_with_failures(const char* schedule, Parallel parallel, int copies,
                                            int64_t steps, double rate, comms::World& world,
                                            int* failures) {
  const ir::Program program = named(schedule, 2, 4);
  Trainer trainer(program, parallel, copies, world);
  // The same on all ranks, and different in each attempt.
  int64_t attempt = 0, counter = 0, fails_at = -1;
  for (const ir::ActionKind kind :
       {ir::ActionKind::kForward, ir::ActionKind::kBackward, ir::ActionKind::kBackwardInput,
        ir::ActionKind::kBackwardWeight, ir::ActionKind::kSendF, ir::ActionKind::kRecvF,
        ir::ActionKind::kSendB, ir::ActionKind::kRecvB, ir::ActionKind::kUnshard,
        ir::ActionKind::kReshard, ir::ActionKind::kReduceGrad}) {
    trainer.executor->set_function(kind, [&](const ActionContext& context) {
      if (counter++ == fails_at) throw std::runtime_error("injected");
      context.run_default();
    });
  }
  for (int64_t step = 0; step < steps;) {
    std::mt19937_64 random(static_cast<uint64_t>(++attempt) * 977 + 13);
    const auto draw = [&](double below) {
      return static_cast<int64_t>(below * static_cast<double>(random() >> 11) / (1ull << 53));
    };
    const bool fails = draw(1e6) < 1e6 * rate;
    const bool mine = draw(world.size()) == world.rank();
    const int64_t length = 40;  // some are beyond the end: then the step does not fail
    counter = 0;
    fails_at = fails && mine ? draw(length) : -1;
    try {
      trainer.train(step);
      ++step;
    } catch (const StepError& error) {
      EXPECT_TRUE(contains(error.what(), "`: injected\n")) << error.what();
      ++*failures;
      const int64_t next = trainer.executor->reset();
      EXPECT_EQ(next, step);
      step = next;
    }
  }
  return trainer.weights;
}

void expect_equal_to_undisturbed(const char* schedule, Parallel parallel, int copies, int64_t steps,
                                 double rate) {
  const int ranks = 2 * copies;
  std::mutex mutex;
  int total = 0;
  expect_no_errors(ranks, [&](int, comms::World& world) {
    int failures = 0, none = 0;
    const auto disturbed =
        train_with_failures(schedule, parallel, copies, steps, rate, world, &failures);
    const auto undisturbed =
        train_with_failures(schedule, parallel, copies, steps, 0, world, &none);
    EXPECT_EQ(none, 0);
    for (size_t i = 0; i < disturbed.size(); ++i)
      EXPECT_TRUE(at::equal(disturbed[i], undisturbed[i])) << i;
    const std::lock_guard lock(mutex);
    total += failures;
  });
  // Every rank counts a failure. Many of those that are drawn lie beyond the end of their step.
  EXPECT_GE(total, ranks * rate * static_cast<double>(steps) / 4);
}

TEST(Reset, TrainingGoesOnAsIfNothingHadHappened) {
  expect_equal_to_undisturbed("1F1B", Parallel::kNone, 1, 40, 0.3);
  expect_equal_to_undisturbed("1F1B", Parallel::kReplicate, 2, 40, 0.3);
  expect_equal_to_undisturbed("1F1B", Parallel::kShard, 2, 40, 0.3);
  expect_equal_to_undisturbed("InterleavedZeroBubble", Parallel::kReplicate, 2, 20, 0.3);
  expect_equal_to_undisturbed("InterleavedZeroBubble", Parallel::kShard, 2, 20, 0.3);
}

// The same for 10,000 steps: --gtest_also_run_disabled_tests, target failure_test_large.
TEST(Reset, DISABLED_TenThousandSteps) {
  expect_equal_to_undisturbed("1F1B", Parallel::kReplicate, 2, 5000, 0.1);
  expect_equal_to_undisturbed("InterleavedZeroBubble", Parallel::kShard, 2, 5000, 0.1);
}

TEST(Reset, NamesARankThatDoesNotCallIt) {
  const std::vector<std::string> errors = errors_of(
      2,
      [&](int rank, comms::World& world) {
        if (rank == 0) world.reset();
      },
      milliseconds(300));
  EXPECT_EQ(errors[0], "reset: rank 1 did not call it within 300 ms");
}

}  // namespace
}  // namespace pipewright::executor
