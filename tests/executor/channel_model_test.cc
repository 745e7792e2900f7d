// The executor behaves as the channel model says. A program that passes the verifier runs to its
// end. A program that the verifier reports as a deadlock hangs over channels of that capacity, and
// the timeout ends it with an error that names the cycle.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "pipewright/comms/threads/threads.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/schedule/verify/verify.h"
#include "tests/channel_model/programs.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::executor {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

struct Run {
  std::vector<std::string> errors;  // of each rank
  Clock::duration took{};           // from the start of the first step on the rank that was longest
};

// Runs one step, or two: the first one learns the shapes.
Run run(ir::Program program, ir::ChannelModel model, ir::ChannelCapacity capacity,
        milliseconds timeout, int steps) {
  program.lowering.channels = model;
  program.lowering.capacity = capacity;
  const int num_ranks = program.placement.num_ranks();
  std::vector<comms::World> worlds = comms::thread_worlds(num_ranks, {capacity, timeout});
  std::vector<Clock::duration> took(worlds.size());
  Run result;
  result.errors = tests::errors_of_ranks(num_ranks, [&](int rank) {
    std::map<int, LocalStage> stages;
    for (const int stage : program.placement.stages_of(rank)) {
      const at::Tensor weight = at::full({1}, 2.0).set_requires_grad(true);
      const auto scale = std::make_shared<ModuleStage>(
          [weight](const Tensors& in) { return Tensors{in[0] * weight}; });
      scale->set_slice_cache(nullptr);
      stages[stage].stage = scale;
    }
    // Of two replicas of the model, no parameters are tied: gradients are not looked at.
    comms::World& world = worlds[static_cast<size_t>(rank)];
    Executor executor(program, stages, world,
                      {.loss = [](const Tensors& out) { return out[0].sum(); },
                       .allow_unverified = true,
                       .tied = std::make_shared<modules::TiedParameters>(world)});
    const executor::Batch batch = {
        .inputs = {at::ones({program.num_microbatches / program.slices, program.slices})}};
    const Clock::time_point start = Clock::now();
    try {
      for (int step = 0; step < steps; ++step) executor.step(batch);
    } catch (...) {
      took[static_cast<size_t>(rank)] = Clock::now() - start;
      throw;
    }
  });
  result.took = *std::ranges::max_element(took);
  return result;
}

struct Verdict {
  bool deadlock = false;
  bool swap = false;
  bool incomplete = false;  // errors that are not about channels
};

Verdict verdict_of(const ir::Program& program, ir::ChannelModel model,
                   ir::ChannelCapacity capacity) {
  ir::Diagnostics diagnostics;
  schedule::verify(program, {model, capacity, false}, &diagnostics);
  Verdict verdict;
  for (const ir::Diagnostic& diagnostic : diagnostics.kept()) {
    verdict.deadlock = verdict.deadlock || diagnostic.rule == ir::Rule::kDeadlock;
    verdict.swap = verdict.swap || diagnostic.rule == ir::Rule::kSwap;
    verdict.incomplete = verdict.incomplete || (diagnostic.rule != ir::Rule::kDeadlock &&
                                                diagnostic.rule != ir::Rule::kSwap);
  }
  return verdict;
}

struct Counts {
  int valid = 0, deadlocks = 0, swaps = 0, incomplete = 0;
};

void expect_verdict(const ir::Program& program, ir::ChannelModel model,
                    ir::ChannelCapacity capacity, Counts* counts) {
  const Verdict verdict = verdict_of(program, model, capacity);
  SCOPED_TRACE(std::string(ir::name(model)) + " " + ir::to_string_capacity(capacity));
  if (verdict.incomplete) {
    ++counts->incomplete;
    return;
  }
  if (!verdict.deadlock && !verdict.swap) {
    ++counts->valid;
    EXPECT_EQ(run(program, model, capacity, std::chrono::seconds(30), 2).errors,
              std::vector<std::string>(program.rows.size()));
    return;
  }
  if (verdict.deadlock && counts->deadlocks >= 40) return;  // each runs into its timeout
  ++(verdict.deadlock ? counts->deadlocks : counts->swaps);
  const milliseconds timeout(verdict.deadlock && !verdict.swap ? 150 : 5000);
  const auto [errors, took] = run(program, model, capacity, timeout, 1);
  for (const std::string& error : errors) EXPECT_NE(error, "");
  if (verdict.swap) return;
  // It hung, for no less than the limit, and the error names the cycle.
  EXPECT_GE(took, timeout);
  for (const std::string& error : errors) {
    const size_t verdict_at = error.find("\nthe program was not verified");
    const std::string happened = error.substr(0, verdict_at);
    EXPECT_TRUE(happened.find("timed out after 150 ms") != std::string::npos ||
                happened.find("not posted within 150 ms") != std::string::npos)
        << error;
    EXPECT_NE(error.find("error[PW042]", happened.size()), std::string::npos) << error;
    EXPECT_NE(error.find(" waits for `", happened.size()), std::string::npos) << error;
  }
}

TEST(ExecutorChannelModel, TableOfTinyPrograms) {
  at::set_num_threads(1);
  Counts counts;
  for (const channel_model::Case& test : channel_model::cases()) {
    SCOPED_TRACE(test.name);
    const ir::Program program = channel_model::program_of(test.placement, 2, test.rows);
    for (const ir::ChannelModelInfo& model : ir::channel_models()) {
      for (const ir::ChannelCapacity capacity : {0u, 1u, ir::kUnboundedCapacity})
        expect_verdict(program, model.model, capacity, &counts);
    }
  }
  EXPECT_GT(counts.valid, 5);
  EXPECT_GT(counts.deadlocks, 5);
}

TEST(ExecutorChannelModel, RandomPrograms) {
  at::set_num_threads(1);
  std::mt19937 random(4);
  Counts counts;
  for (int round = 0; round < 60; ++round) {
    const ir::Program program = channel_model::random_program(random);
    for (const ir::ChannelModelInfo& model : ir::channel_models()) {
      for (const ir::ChannelCapacity capacity : {0u, 1u})
        expect_verdict(program, model.model, capacity, &counts);
    }
    if (HasFailure()) break;
  }
  EXPECT_GT(counts.valid, 50);
  EXPECT_GT(counts.deadlocks, 20);
  EXPECT_GT(counts.swaps, 10);
  EXPECT_EQ(counts.incomplete, 0);
}

}  // namespace
}  // namespace pipewright::executor
