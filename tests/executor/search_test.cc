// Schedules that the search found train like the model without a pipeline: a V and a wave in tight
// memory, uneven stages, whole backwards, and stages that are no multiple of the ranks.
#include "pipewright/schedule/search/search.h"

#include <gtest/gtest.h>

#include "pipewright/comms/threads.h"
#include "pipewright/schedule/compile.h"
#include "tests/executor/models.h"

namespace pipewright::executor {
namespace {

using schedule::search::SearchRequest;

void expect_parity(SearchRequest request) {
  request.evaluations = 300'000;
  const schedule::search::SearchResult found = schedule::search::search_schedule(request);
  EXPECT_EQ(found.found_by, "search");  // otherwise parity_test has trained it
  const schedule::CompileResult compiled =
      schedule::compile({.source = ir::AnySchedule(found.order)});
  ASSERT_TRUE(compiled.ok());
  const ir::Program& program = compiled.program();
  const int microbatches = request.num_microbatches;
  const int64_t batch = 2 * microbatches;
  const Trained reference = train_reference(
      make_model(ModelKind::kMlp, request.placement.num_stages(), batch), microbatches);
  std::vector<comms::World> worlds = comms::thread_worlds(request.placement.num_ranks());
  Trained trained;
  ASSERT_EQ(train_threads(program, ModelKind::kMlp, batch, worlds, &trained), "");
  EXPECT_EQ(compare(reference, trained, program, all_stages(program)), "");
}

const schedule::Costs kCosts = {.forward = 11.347,
                                .backward_input = 11.248,
                                .backward_weight = 8.132,
                                .link = {.latency = 0.377}};

TEST(FoundSchedules, VInTightMemory) {
  expect_parity({.placement = ir::Placement::v(3, 6),
                 .num_microbatches = 7,
                 .costs = kCosts,
                 .memory = {.activations = 2}});
}

TEST(FoundSchedules, Wave) {
  expect_parity({.placement = ir::Placement::v(2, 8),
                 .num_microbatches = 6,
                 .costs = kCosts,
                 .memory = {.activations = 1.5}});
}

TEST(FoundSchedules, HeterogeneousStages) {
  schedule::Costs costs = kCosts;
  costs.forward = schedule::PerStage({9, 14, 11, 8});
  costs.rank_scale = {1, 1.2, 0.9, 1};
  expect_parity({.placement = ir::Placement::loop(4, 4),
                 .num_microbatches = 8,
                 .costs = costs,
                 .memory = {.activations = 5}});
}

TEST(FoundSchedules, WholeBackwards) {
  expect_parity({.placement = ir::Placement::v(3, 6),
                 .num_microbatches = 6,
                 .costs = kCosts,
                 .memory = {.activations = 2.5},
                 .splits_backward = false});
}

TEST(FoundSchedules, UnevenNumbersOfStages) {
  expect_parity({.placement = ir::Placement::loop(3, 5),
                 .num_microbatches = 5,
                 .costs = kCosts,
                 .memory = {.activations = 2}});
}

}  // namespace
}  // namespace pipewright::executor
