// A search is never worse than any schedule of the catalogue that fits in its memory: on shapes,
// costs and limits drawn at random. What the named schedules cost and need is said by compile() and
// simulate(), which know nothing of the search.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "pipewright/schedule/bounds/schedule_bound.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/search/search.h"
#include "pipewright/schedules/registry.h"
#include "tests/support/catalogue/catalogue.h"

namespace pipewright::schedule::search {
namespace {

class Draw {
 public:
  explicit Draw(unsigned seed) : engine_(seed) {}
  int below(int n) { return static_cast<int>(engine_() % static_cast<unsigned>(n)); }
  // In steps of 1/1000.
  double between(double least, double most) { return least + (most - least) * below(1001) / 1000; }
  template <typename Value>
  Value of(std::initializer_list<Value> values) {
    return values.begin()[below(static_cast<int>(values.size()))];
  }

 private:
  std::mt19937 engine_;
};

ir::Placement random_placement(Draw* draw) {
  const int ranks = draw->of({1, 2, 3, 4, 4, 5, 6, 8, 8});
  const int per_rank = draw->of({1, 1, 2, 2, 2, 3, 4});
  return per_rank > 1 && draw->below(2) == 0 ? ir::Placement::v(ranks, ranks * per_rank)
                                             : ir::Placement::loop(ranks, ranks * per_rank);
}

PerStage per_stage(Draw* draw, int stages, double least, double most) {
  if (draw->below(2) == 0) return draw->between(least, most);
  std::vector<double> values;  // uneven stages; the first and the last may be far from the others
  for (int stage = 0; stage < stages; ++stage) values.push_back(draw->between(least, most));
  if (draw->below(3) == 0) values.back() *= 3;
  if (draw->below(3) == 0) values.front() /= 3;
  return PerStage(values);
}

Costs random_costs(Draw* draw, const ir::Placement& placement, int microbatches) {
  const int stages = placement.num_stages(), ranks = placement.num_ranks();
  Costs costs;
  costs.forward = per_stage(draw, stages, 1, 20);
  costs.backward_input = per_stage(draw, stages, 1, 20);
  costs.backward_weight = per_stage(draw, stages, draw->of({0.0, 1.0}), 20);
  costs.link.latency = draw->of({0.0, 0.5, 3.0, 20.0});
  if (draw->below(3) == 0) {
    costs.link.bandwidth = draw->between(1, 10);
    costs.output_bytes = per_stage(draw, stages, 0, 10);
    costs.input_gradient_bytes = per_stage(draw, stages, 0, 10);
  }
  if (draw->below(3) == 0 && ranks > 1)
    costs.links[{draw->below(ranks - 1), ranks - 1}] = {.latency = draw->between(0, 30)};
  if (draw->below(3) == 0) {
    for (int rank = 0; rank < ranks; ++rank) costs.rank_scale.push_back(draw->between(0.8, 1.3));
  }
  if (draw->below(4) == 0) {
    for (int microbatch = 0; microbatch < microbatches; ++microbatch)
      costs.microbatch_scale.push_back(draw->between(0.5, 2));
  }
  if (draw->below(3) == 0) {
    costs.activation_bytes = per_stage(draw, stages, 50, 100);
    costs.weight_input_bytes = per_stage(draw, stages, 10, 50);
  }
  return costs;
}

// Every shape that the catalogue takes for a placement, options included.
std::vector<schedules::Shape> shapes_of(const ir::Placement& placement, int microbatches) {
  const schedules::Shape plain = {placement.num_ranks(), placement.num_stages(), microbatches};
  std::vector<schedules::Shape> shapes = {plain};
  schedules::Shape other = plain;
  for (const int rounds : {1, 2}) {
    other.group_size = rounds * plain.ranks;
    other.extra_warmup = false;
    shapes.push_back(other);
    other.extra_warmup = true;
    shapes.push_back(other);
  }
  for (int live = 2; live <= 4 * (plain.ranks + 2); live += live < 2 * plain.ranks ? 1 : 3) {
    other = plain;
    other.memory = live / 2.0;
    shapes.push_back(other);
  }
  return shapes;
}

TEST(CatalogueGrid, NoNamedScheduleThatFitsIsBetter) {
  Draw draw(1);
  int compared = 0, optimal = 0;
  std::set<std::string> names;
  for (int run = 0; run < 500; ++run) {
    const ir::Placement placement = random_placement(&draw);
    const int ranks = placement.num_ranks();
    const int microbatches = draw.of({1, ranks, 2 * ranks, 3 * ranks, 1 + draw.below(4 * ranks)});
    const Costs costs = random_costs(&draw, placement, microbatches);
    const MemoryBudget memory = {.activations =
                                     draw.of({1.0, draw.between(1, 3), ranks / 2.0, 1.0 * ranks,
                                              1.5 * ranks, 2.0 * ranks, 1.0 * microbatches + 1})};
    const SearchRequest request = {.placement = placement,
                                   .num_microbatches = microbatches,
                                   .costs = costs,
                                   .memory = memory,
                                   .evaluations = draw.of({1, 3'000, 100'000}),
                                   .seed = static_cast<uint64_t>(run)};
    if (shortage_of(problem_of(request))) continue;
    // As a file counts it, whether the backward of a stage is split or not.
    const Problem problem = make_problem(placement, microbatches, costs, memory);
    const SearchResult found = search_schedule(request);
    SCOPED_TRACE(fmt::format("run {}: {}, {} microbatches, {} activations, {} evaluations", run,
                             placement.to_string(), microbatches, memory.activations->at(0),
                             request.evaluations));
    // What was found is valid, costs what it says, and needs no more memory than there is.
    const CompileResult own = compile({.source = ir::AnySchedule(found.order),
                                       .level = ir::Level::kComputeOnly,
                                       .depth = Depth::kVerify});
    ASSERT_TRUE(own.ok());
    const SimulateResult simulated = simulate(own, {.costs = costs, .memory = memory});
    ASSERT_TRUE(simulated.ok());
    EXPECT_NEAR(simulated.simulation->report.cost, found.cost, 1e-9 * found.cost);
    optimal += found.gap() == 0;
    for (const schedules::ScheduleSpec* spec : tests::schedules_of_one_replica()) {
      for (const schedules::Shape& shape : shapes_of(placement, microbatches)) {
        if (schedules::shape_error(*spec, shape)) continue;
        if (schedules::placement_of(*spec, shape) != placement) continue;
        const CompileResult named = compile({.source = std::string(spec->name),
                                             .shape = shape,
                                             .costs = costs,
                                             .level = ir::Level::kComputeOnly,
                                             .depth = Depth::kVerify});
        ASSERT_TRUE(named.ok()) << spec->name;
        bool fits = true;
        const auto peaks = memory_peaks(ir::schedule_of(*named.schedule), problem);
        for (int rank = 0; rank < ranks; ++rank)
          fits = fits && peaks[static_cast<size_t>(rank)].amount <= problem.memory_limit(rank);
        if (!fits) continue;
        const SimulateResult run_named = simulate(named, {.costs = costs});
        ASSERT_TRUE(run_named.ok());
        EXPECT_LE(found.cost, run_named.simulation->report.cost * (1 + 1e-9))
            << spec->name << ", group size " << shape.group_size << ", memory " << shape.memory;
        names.insert(std::string(spec->name));
        ++compared;
      }
    }
  }
  EXPECT_EQ(names.size(), tests::schedules_of_one_replica().size())
      << "not every schedule was compared";
  EXPECT_GT(compared, 3000);
  RecordProperty("compared", compared);
  RecordProperty("optimal", optimal);
}

}  // namespace
}  // namespace pipewright::schedule::search
