// Schedules that the search found train like the model without a pipeline: a V and a wave in tight
// memory, uneven stages, whole backwards, compounds, and stages that are no multiple of the ranks.
// They keep as many activations alive as their certificate says.
#include "pipewright/schedule/search/search.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "pipewright/comms/threads/threads.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/schedule/compile/compile.h"
#include "tests/executor/models.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::executor {
namespace {

using schedule::search::SearchRequest;

// How many tensors that track() made are alive, and the most that ever were.
class Live {
 public:
  // A tensor of one element that counts until it is freed.
  at::Tensor track() {
    most_ = std::max(most_, ++now_);
    return at::from_blob(
        new double(1), {1}, [this](void* data) { --now_, delete static_cast<double*>(data); },
        at::kDouble);
  }
  int now() const { return now_; }
  int most() const { return most_; }

 private:
  int now_ = 0, most_ = 0;
};

// Every F saves one tensor for the gradient of its weight, which autograd frees after B or W. The
// most that are alive on a rank are what the certificate says.
void expect_certified_activations(const schedule::CompileResult& compiled) {
  const ir::Program& program = compiled.program();
  const int ranks = program.placement.num_ranks();
  std::vector<comms::World> worlds = comms::thread_worlds(ranks);
  std::vector<Live> live(static_cast<size_t>(ranks));
  const auto train = [&](int rank) {
    const auto index = static_cast<size_t>(rank);
    std::map<int, LocalStage> stages;
    for (const int stage : program.placement.stages_of(rank)) {
      const at::Tensor weight = at::ones({1}, at::kDouble).set_requires_grad(true);
      stages[stage].stage =
          std::make_shared<ModuleStage>([weight, own = &live[index]](const Tensors& in) {
            return Tensors{in[0] + own->track() * weight};
          });
    }
    Executor executor(program, stages, worlds[index],
                      {.loss = [](const Tensors& out) { return out[0].sum(); }});
    executor.step({.inputs = {at::ones({program.num_microbatches}, at::kDouble)}});
  };
  ASSERT_EQ(tests::run_ranks(ranks, train), "");
  for (size_t rank = 0; rank < live.size(); ++rank) {
    EXPECT_EQ(live[rank].most(), compiled.certificate[rank].activations.amount) << rank;
    EXPECT_EQ(live[rank].now(), 0) << rank;
  }
}

void expect_parity(SearchRequest request) {
  request.evaluations = 300'000;
  const schedule::search::SearchResult found = schedule::search::search_schedule(request);
  EXPECT_EQ(found.found_by, "search");  // otherwise parity_test has trained it
  const auto has_compound = [](const ir::Row& row) {
    return std::ranges::any_of(row, &ir::Action::is_compound);
  };
  EXPECT_EQ(std::ranges::any_of(found.order.rows, has_compound), request.costs.overlap > 0);
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
  expect_certified_activations(compiled);
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

TEST(FoundSchedules, Compounds) {
  schedule::Costs costs = kCosts;
  costs.overlap = 0.75;
  const SearchRequest request = {
      .placement = ir::Placement::v(2, 4), .num_microbatches = 6, .costs = costs};
  expect_parity(request);
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
