// Shapes of transfers: learned with few requests to the store, or sent along with the tensors.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "tests/executor/small_pipelines.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/recording/recording_backend.h"

namespace pipewright::executor {
namespace {

std::string run(int ranks, const Body& body, const comms::ThreadOptions& options = {}) {
  at::set_num_threads(1);
  std::vector<comms::World> worlds = tests::make_worlds(ranks, options);
  return tests::run_ranks(ranks, [&](int rank) { body(rank, worlds[static_cast<size_t>(rank)]); });
}

// A store in memory that counts the requests for shapes.
class CountingStore final : public c10d::HashStore {
 public:
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(this);
  }
  using HashStore::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    count(key);
    HashStore::set(key, value);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    count(key);
    return HashStore::get(key);
  }
  bool check(const std::vector<std::string>& keys) override {
    count(keys[0]);
    return HashStore::check(keys);
  }
  using HashStore::wait;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    count(keys[0]);
    HashStore::wait(keys, timeout);
  }
  int64_t requests() const { return requests_; }

 private:
  void count(const std::string& key) { requests_ += key.find("/shapes/") != std::string::npos; }
  std::atomic<int64_t> requests_ = 0;
};

TEST(LearnedShapes, TheFirstStepCostsAHandfulOfRequestsPerTransfer) {
  constexpr int kRanks = 64, kMicrobatches = 4;
  const ir::Program program = named("GPipe", kRanks, kMicrobatches);
  const auto store = c10::make_intrusive<CountingStore>();
  EXPECT_EQ(run(kRanks,
                [&](int rank, comms::World& world) {
                  const at::Tensor weight = at::ones({1}).set_requires_grad(true);
                  std::map<int, LocalStage> stages;
                  stages[rank].stage = std::make_shared<ModuleStage>(
                      [&](const Tensors& in) { return Tensors{in[0] * weight}; });
                  Executor executor(program, stages, world,
                                    {.loss = [](const Tensors& out) { return out[0].sum(); }});
                  const Batch batch = {.inputs = {at::ones({kMicrobatches})}};
                  executor.step(batch);
                  executor.confirm();
                  const int64_t first = store->requests();
                  executor.confirm();
                  executor.step(batch);
                  executor.confirm();
                  EXPECT_EQ(store->requests(), first);
                },
                {.timeout = std::chrono::minutes(5), .store = store}),
            "");
  const int64_t transfers = int64_t{2} * (kRanks - 1) * kMicrobatches;
  // Written once, looked for a few times without waiting, waited for and read once.
  EXPECT_LE(store->requests(), 8 * transfers);
  std::printf("%.2f requests per transfer\n",
              static_cast<double>(store->requests()) / static_cast<double>(transfers));
}

// ------------------------------------------------------------------------------------------
// dynamic

// Batches of different sizes, uneven microbatches, an evaluation and many dimensions.
TEST(DynamicShapes, EveryStepAndMicrobatchMayHaveItsOwn) {
  for (const char* schedule : {"1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "DualPipeV"}) {
    const int microbatches = 4;
    const ir::Program program = named(schedule, 2, microbatches);
    const int stages = program.placement.num_stages();
    EXPECT_EQ(run(2,
                  [&](int rank, comms::World& world) {
                    std::vector<at::Tensor> weights, own;
                    for (int stage = 0; stage < stages; ++stage)
                      weights.push_back(at::full({1}, 1.0 + 0.1 * stage, tests::here(at::kDouble))
                                            .set_requires_grad(true));
                    std::map<int, LocalStage> local;
                    for (const int stage : program.placement.stages_of(rank)) {
                      const at::Tensor weight = weights[static_cast<size_t>(stage)];
                      own.push_back(weight);
                      local[stage].stage = std::make_shared<ModuleStage>(
                          [weight](const Tensors& in) { return Tensors{in[0] * weight}; });
                    }
                    Executor executor(program, local, world,
                                      {.loss = [](const Tensors& out) { return out[0].sum(); },
                                       .device = tests::here(),
                                       .dynamic_shapes = true});
                    const auto reference = [&](const std::vector<Tensors>& inputs) {
                      double sum = 0;
                      for (const Tensors& input : inputs) sum += input[0].sum().item<double>();
                      return sum / microbatches;
                    };
                    const std::vector<std::vector<std::vector<int64_t>>> steps = {
                        {{2, 3}, {2, 3}, {2, 3}, {2, 3}},
                        {{2, 3}, {2, 3}, {2, 3}, {2, 3}},
                        {{5}, {1}, {7, 2}, {1, 2, 3}},
                        {std::vector<int64_t>(40, 1), {3}, {0, 4}, {2}},
                        {{2, 3}, {2, 3}, {2, 3}, {2, 3}}};
                    double expected = 0;
                    for (const auto& sizes : steps) {
                      Microbatches batch;
                      for (const auto& size : sizes)
                        batch.inputs.push_back({at::rand(size, tests::here(at::kDouble))});
                      // The same data on both ranks.
                      for (size_t m = 0; m < sizes.size(); ++m)
                        batch.inputs[m][0].fill_(0.5 + 0.25 * m);
                      expected += reference(batch.inputs);
                      const double before = expected;
                      executor.step(batch);
                      Microbatches evaluated;
                      for (size_t m = 0; m < sizes.size(); ++m)
                        evaluated.inputs.push_back(
                            {at::ones({1 + static_cast<int64_t>(m)}, tests::here(at::kDouble))});
                      executor.eval(evaluated);
                      EXPECT_EQ(before, expected);
                    }
                    for (const int stage : program.placement.stages_of(rank)) {
                      double others = 1;
                      for (int other = 0; other < stages; ++other)
                        others *= other == stage ? 1 : 1.0 + 0.1 * other;
                      EXPECT_NEAR(weights[static_cast<size_t>(stage)].grad().item<double>(),
                                  others * expected, 1e-9);
                    }
                  }),
              "")
        << schedule;
  }
}

// Metadata is sent in full only when it has changed: a header says so, and one more message per
// transfer is all there is.
TEST(DynamicShapes, OneHeaderPerTransferAndNothingElse) {
  const ir::Program program = named("1F1B", 2, 4);
  const auto log = std::make_shared<comms::CallLog>();
  EXPECT_EQ(run(2,
                [&](int rank, comms::World& plain) {
                  comms::World world = plain.wrapped([&](const comms::BackendPtr& backend) {
                    return comms::record(backend, log);
                  });
                  std::map<int, LocalStage> stages;
                  const at::Tensor weight = at::ones({1}, tests::here()).set_requires_grad(true);
                  stages[rank].stage = std::make_shared<ModuleStage>(
                      [&](const Tensors& in) { return Tensors{in[0] * weight}; });
                  Executor executor(program, stages, world,
                                    {.loss = [](const Tensors& out) { return out[0].sum(); },
                                     .device = tests::here(),
                                     .dynamic_shapes = true});
                  executor.confirm();
                  if (rank == 0) log->clear();
                  executor.confirm();
                  executor.step({.inputs = {at::ones({8}, tests::here())}});
                  executor.step({.inputs = {at::ones({12}, tests::here())}});
                }),
            "");
  EXPECT_EQ(log->count("send"), 2 * 2 * 8);
  EXPECT_EQ(log->count("recv"), 2 * 2 * 8);
}

TEST(DynamicShapes, NeedTheEdgeModel) {
  ir::Program program = named("1F1B", 1, 1);
  program.lowering.channels = ir::ChannelModel::kPeer;
  const std::string errors = run(1, [&](int, comms::World& world) {
    std::map<int, LocalStage> stages;
    stages[0].stage = std::make_shared<ModuleStage>([](const Tensors& in) { return in; });
    Executor executor(
        program, stages, world,
        {.loss = [](const Tensors& out) { return out[0].sum(); }, .dynamic_shapes = true});
  });
  EXPECT_EQ(errors, "rank 0: dynamic_shapes: expected the channel model `edge`, got `peer`\n");
}

}  // namespace
}  // namespace pipewright::executor
