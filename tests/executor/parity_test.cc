// Every schedule of the catalogue trains like the model without a pipeline: equal losses, outputs,
// gradients, and weights after three steps of AdamW.
#include <gtest/gtest.h>

#include <random>

#include "pipewright/schedules/registry.h"
#include "tests/executor/models.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/recording/recording_backend.h"

namespace pipewright::executor {
namespace {

using schedules::ScheduleSpec;
using schedules::Shape;

std::string name_of(const ScheduleSpec& spec) {
  std::string name(spec.name);
  std::erase_if(name, [](char c) { return c == '-'; });
  return name;
}

class Parity : public testing::TestWithParam<std::tuple<const ScheduleSpec*, ModelKind>> {};

TEST_P(Parity, EqualsTheModelWithoutAPipeline) {
  const auto [spec, kind] = GetParam();
  int shapes = 0;
  std::map<std::pair<int, int>, Trained> references;  // by stages and microbatches
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (int stages_per_rank = 1; stages_per_rank <= 3; ++stages_per_rank) {
      for (int microbatches = 1; microbatches <= 8; ++microbatches) {
        const Shape shape{ranks, ranks * stages_per_rank, microbatches};
        if (schedules::shape_error(*spec, shape)) continue;
        // On the test device an operator takes about 20 times as long. Transformers differ from
        // the other model in what their stages pass on, which is the same for all shapes.
        const bool is_slow = tests::is_on_device() || kind == ModelKind::kTransformer;
        if (is_slow && (ranks % 2 != 0 || microbatches % 4 != 0)) continue;
        ++shapes;
        const ir::Program program = make_program(*spec, shape);
        const int64_t batch = 2 * microbatches + microbatches / 2;  // uneven microbatches too
        auto [reference, is_new] = references.try_emplace({shape.stages, microbatches});
        if (is_new)
          reference->second = train_reference(make_model(kind, shape.stages, batch), microbatches);
        std::vector<comms::World> worlds = tests::make_worlds(ranks);
        Trained trained;
        ASSERT_EQ(train_threads(program, kind, batch, worlds, &trained), "");
        ASSERT_EQ(compare(reference->second, trained, program, all_stages(program)), "")
            << spec->name << " P " << ranks << " V " << stages_per_rank << " M " << microbatches;
      }
    }
  }
  EXPECT_GT(shapes, 0);
}

INSTANTIATE_TEST_SUITE_P(Schedules, Parity,
                         testing::Combine(testing::ValuesIn(schedules::all_schedules().begin(),
                                                            schedules::all_schedules().end()),
                                          testing::Values(ModelKind::kMlp,
                                                          ModelKind::kTransformer)),
                         [](const auto& of) {
                           return name_of(*std::get<0>(of.param)) +
                                  (std::get<1>(of.param) == ModelKind::kMlp ? "Mlp"
                                                                            : "Transformer");
                         });

struct Policy {
  std::string name;
  ir::Lowering lowering;
};

std::vector<Policy> policies() {
  std::vector<Policy> list(14);
  auto with = [&, i = size_t{0}](const char* name) mutable -> ir::Lowering& {
    list[i].name = name;
    return list[i++].lowering;
  };
  with("MergeBackward").merge_backward = true;
  with("SplitBackward").split_backward = true;
  with("ResidencyOne").residency = 1;
  ir::Lowering& farthest = with("EvictFarthest");
  farthest.evict = ir::Eviction::kFarthest;
  farthest.residency = 2;
  with("LookaheadOne").lookahead = 1;
  with("ReduceEveryTwo").reduce_every = 2;
  with("ReceivesLatest").receives = ir::Receives::kLatest;
  ir::Lowering& peer = with("ReceivesLatestPeer");
  peer.receives = ir::Receives::kLatest;
  peer.channels = ir::ChannelModel::kPeer;
  ir::Lowering& rank = with("ReceivesLatestRank");
  rank.receives = ir::Receives::kLatest;
  rank.channels = ir::ChannelModel::kRank;
  with("Torch211").torch = ir::Torch::k2_11;
  with("ReduceWaitsDeferred") = {.reduce_every = 2, .defer_reduce_grad_wait = true};
  with("FewSends") = {.receives = ir::Receives::kLatest, .max_outstanding_sends = 3};
  with("Capacity3").capacity = 3;
  with("WeightFreeW").weight_free_w = true;
  return list;
}

class Policies : public testing::TestWithParam<std::tuple<const ScheduleSpec*, size_t>> {};

TEST_P(Policies, ChangeNothing) {
  const auto [spec, index] = GetParam();
  const Policy policy = policies()[index];
  const Shape shape{2, schedules::default_stages(*spec, 2), 4};
  ASSERT_FALSE(schedules::shape_error(*spec, shape));
  const ir::Program program = make_program(*spec, shape, policy.lowering);
  std::vector<comms::World> worlds =
      tests::make_worlds(2, {.capacity = policy.lowering.capacity.value_or(ir::kDefaultCapacity)});
  Trained trained;
  ASSERT_EQ(train_threads(program, ModelKind::kMlp, 8, worlds, &trained), "");
  EXPECT_EQ(compare(train_reference(make_model(ModelKind::kMlp, shape.stages, 8), 4), trained,
                    program, all_stages(program)),
            "");
}

INSTANTIATE_TEST_SUITE_P(Schedules, Policies,
                         testing::Combine(testing::ValuesIn(schedules::all_schedules().begin(),
                                                            schedules::all_schedules().end()),
                                          testing::Range<size_t>(0, policies().size())),
                         [](const auto& of) {
                           return name_of(*std::get<0>(of.param)) +
                                  policies()[std::get<1>(of.param)].name;
                         });

class Delays : public testing::TestWithParam<const ScheduleSpec*> {};

// Each call and each completion is delayed at random.
TEST_P(Delays, ChangeNothing) {
  const ScheduleSpec& spec = *GetParam();
  const Shape shape{4, schedules::default_stages(spec, 4), 8};
  ASSERT_FALSE(schedules::shape_error(spec, shape));
  const ir::Program program = make_program(spec, shape);
  const Trained reference =
      train_reference(make_model(ModelKind::kMlp, shape.stages, 16), shape.microbatches);
  for (unsigned seed = 0; seed < 3; ++seed) {
    std::vector<comms::World> worlds;
    unsigned next = 10 * seed;
    for (const comms::World& world : tests::make_worlds(4)) {
      const auto random = std::make_shared<std::mt19937>(++next);
      worlds.push_back(world.wrapped([random](const comms::BackendPtr& inner) {
        return comms::record(
            inner, std::make_shared<comms::CallLog>(), [random](const comms::CallRecord&) {
              const auto some = [&] {
                return std::chrono::microseconds((*random)() % 4 == 0 ? (*random)() % 2000 : 0);
              };
              comms::Fault fault;
              fault.delay = some();
              fault.work_delay = some();
              return fault;
            });
      }));
    }
    Trained trained;
    ASSERT_EQ(train_threads(program, ModelKind::kMlp, 16, worlds, &trained), "");
    EXPECT_EQ(compare(reference, trained, program, all_stages(program)), "") << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, Delays,
                         testing::ValuesIn(schedules::all_schedules().begin(),
                                           schedules::all_schedules().end()),
                         [](const auto& of) { return name_of(*of.param); });

}  // namespace
}  // namespace pipewright::executor
