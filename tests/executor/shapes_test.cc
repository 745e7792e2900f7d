// Shapes of transfers: learned with few requests to the store.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <mutex>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "pipewright/comms/threads.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/schedules/registry.h"
#include "tests/executor/models.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::executor {
namespace {

ir::Program named(const char* name, int ranks, int microbatches) {
  const schedules::ScheduleSpec& spec = *schedules::find_schedule(name);
  return make_program(spec, {ranks, schedules::default_stages(spec, ranks), microbatches});
}

using Body = std::function<void(int rank, comms::World& world)>;
std::string run(int ranks, const Body& body, const comms::ThreadOptions& options = {}) {
  at::set_num_threads(1);
  std::vector<comms::World> worlds = comms::thread_worlds(ranks, options);
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
                  Executor executor(
                      program, stages, world,
                      {.loss = [](const Tensors& out, const Tensors&) { return out[0].sum(); }});
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
  EXPECT_LE(store->requests(), 32 * transfers);
  std::printf("%.2f requests per transfer\n",
              static_cast<double>(store->requests()) / static_cast<double>(transfers));
}

}  // namespace
}  // namespace pipewright::executor
