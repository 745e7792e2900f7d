// A batch that is wrong on one tensor-parallel rank alone: all ranks of the pipelines get one
// error, and none waits in a collective for a rank that does not come.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <regex>

#include "pipewright/comms/group_collectives.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/comms/threads/threads.h"
#include "pipewright/ddp/replicate.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/fsdp/fully_shard.h"
#include "pipewright/modules/distribution.h"
#include "pipewright/modules/forward.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedules/registry.h"
#include "pipewright/tp/parallelize.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/on_ranks.h"

namespace pipewright::tp {
namespace {

constexpr int kRanks = 8, kMicrobatches = 4;
constexpr int64_t kDim = 6;

ir::Program program_of(const char* name) {
  const schedules::ScheduleSpec& spec = *schedules::find_schedule(name);
  ir::Diagnostics diagnostics;
  return schedule::lower(
             schedules::make_order(spec, {2, schedules::default_stages(spec, 2), kMicrobatches}),
             {}, &diagnostics)
      .value();
}

// A step of rank `rank` on a batch of its own number of rows.
using Step = std::function<void(int64_t rows)>;

// Two stages, two copies, tp 2.
void on_pipelines(const executor::ExecutorOptions& base,
                  const std::function<void(comms::Mesh&, comms::World&, const Step&)>& body) {
  at::set_num_threads(1);
  const ir::Program program = program_of("1F1B");
  std::vector<comms::World> worlds = comms::thread_worlds(kRanks);
  const auto run_rank = [&](int rank) {
    comms::World& world = worlds[static_cast<size_t>(rank)];
    comms::Mesh mesh(world, {{"dp", 2}, {"pp", 2}, {"tp", 2}});
    const int stage = mesh.coordinate("pp");
    const auto module = tests::make_mlp(kDim, 2, static_cast<uint64_t>(stage));
    const auto split = parallelize(
        *module, {{"in_proj", colwise_parallel()}, {"out_proj", rowwise_parallel()}}, mesh, "tp");
    const auto sharded = fsdp::fully_shard(*module, mesh, {"dp"});
    executor::ExecutorOptions options = base;
    options.loss = [](const executor::Tensors& outputs) { return outputs[0].sum(); };
    options.ranks = mesh.ranks({"pp"});
    options.same_batch = mesh.group({"tp"});
    std::map<int, executor::LocalStage> stages;
    stages[stage] = {executor::make_stage(module), sharded->data_parallel()};
    executor::Executor executor(program, std::move(stages), world, options);
    body(mesh, world, [&](int64_t rows) {
      executor.step({.inputs = {tests::random_input({rows, kDim}, 1)}});
    });
  };
  EXPECT_EQ(tests::run_ranks(kRanks, run_rank), "");
}

// Of a step that must fail, the same on all ranks.
class Errors {
 public:
  void expect(comms::World& world, const std::string& pattern, const std::function<void()>& step) {
    std::string& mine = by_rank_.at(static_cast<size_t>(world.rank()));
    try {
      step();
      mine = "no error";
    } catch (const executor::BatchError& error) {
      mine = error.what();
    }
    EXPECT_TRUE(std::regex_match(mine, std::regex(pattern))) << mine;
  }
  void expect_same() const { EXPECT_EQ(by_rank_, std::vector(kRanks, by_rank_[0])); }

 private:
  std::vector<std::string> by_rank_ = std::vector<std::string>(kRanks);
};

// Ranks 0 and 1 are the tp ranks of the first stage of copy 0.
TEST(WrongBatch, OfOneTensorParallelRankInTheFirstStep) {
  Errors errors, indivisible;
  on_pipelines({}, [&](comms::Mesh& mesh, comms::World& world, const Step& step) {
    errors.expect(world,
                  "rank [01], step 0: expected input 0 of microbatch 0, Double \\[[23], 6\\] as on "
                  "rank [01], got input 0 of microbatch 0, Double \\[[23], 6\\]",
                  [&] { step(world.rank() == 1 ? 12 : 8); });
    indivisible.expect(world,
                       "rank 1, step 0: input 0: expected size at least 4 along dimension 0, one "
                       "per microbatch, got 3",
                       [&] { step(world.rank() == 1 ? 3 : 8); });
    // Copies may have batches of different sizes.
    for (int i = 0; i < 3; ++i) step(mesh.coordinate("dp") == 0 ? 8 : 16);
  });
  errors.expect_same();
  indivisible.expect_same();
}

TEST(WrongBatch, OfOneTensorParallelRankLater) {
  Errors errors;
  on_pipelines({}, [&](comms::Mesh&, comms::World& world, const Step& step) {
    step(8);
    errors.expect(world,
                  "rank 0, step 1: input 0 of microbatch 0: expected Double \\[2, 6\\] as in the "
                  "first step, got Double \\[3, 6\\]; before other shapes, .*",
                  [&] { step(world.rank() == 0 ? 12 : 8); });
    step(8);
  });
  errors.expect_same();
}

// Every step is compared if shapes may change.
TEST(WrongBatch, OfOneTensorParallelRankWithDynamicShapes) {
  Errors errors;
  on_pipelines({.dynamic_shapes = true}, [&](comms::Mesh&, comms::World& world, const Step& step) {
    for (const int64_t rows : {8, 12, 4}) step(rows);
    errors.expect(world, "rank [45], step 3: expected input 0 .*",
                  [&] { step(world.rank() == 5 ? 12 : 8); });
    for (const int64_t rows : {8, 12, 4}) step(rows);
  });
  errors.expect_same();
}

// Without a pipeline, and so without same_batch: a shape that differs makes collectives differ, and
// the world fails. With check_inputs nothing has failed yet, and training can go on. Also over
// Gloo, where messages of different sizes would end the process (gloo_test.cc).
TEST(WrongBatch, WithoutAPipeline) {
  for (const bool is_checked : {true, false}) {
    tests::on_ranks(2, [&](tests::Rank& self) {
      comms::Mesh mesh(*self.world, {{"tp", 2}});
      const auto module = tests::make_mlp(kDim, 2, 1);
      const auto split =
          parallelize(*module, {{"in_proj", colwise_parallel()}, {"out_proj", rowwise_parallel()}},
                      mesh, "tp", {.check_inputs = is_checked});
      const auto step = [&](int64_t rows) {
        modules::forward(module, tests::random_input({rows, kDim}, 1)).sum().backward();
      };
      const auto error_of_step = [&](int64_t rows) -> std::string {
        try {
          step(rows);
        } catch (const std::exception& error) {
          return error.what();
        }
        return "no error";
      };
      step(4);
      const std::string error = error_of_step(self.rank == 1 ? 6 : 4);
      std::string expected = "ALLREDUCE, .* x Double does not match .*";
      if (is_checked) {
        expected =
            "ranks disagree: expected input 0 .*, Double \\[4, 6\\] with hash [0-9]+ as on rank "
            "0, got input 0 .*, Double \\[6, 6\\] with hash [0-9]+ on rank 1";
      } else if (tests::ranks_are_processes()) {
        expected =
            "rank [01]: collective [0-9]+ of group `mesh\\.tp.*`: expected allreduce of Double "
            "\\[[46], 6\\] as on rank [01], got allreduce of Double \\[[46], 6\\]";
      }
      EXPECT_TRUE(std::regex_search(error, std::regex(expected))) << error;
      if (is_checked) step(6);
    });
  }
}

// Copies of the module have inputs of their own. One rank of one copy is wrong, and the ranks of
// the other copy throw too, before they wait in a collective of fully_shard or replicate.
TEST(WrongBatch, WithoutAPipelineOfOneCopy) {
  for (const bool is_sharded : {true, false}) {
    for (const int wrong : {1, 2}) {
      tests::on_ranks(4, [&](tests::Rank& self) {
        comms::Mesh mesh(*self.world, {{"dp", 2}, {"tp", 2}});
        const auto plain = tests::make_mlp(kDim, 2, 1), module = tests::make_mlp(kDim, 2, 1);
        const auto split = parallelize(
            *module, {{"in_proj", colwise_parallel()}, {"out_proj", rowwise_parallel()}}, mesh,
            "tp", {.check_inputs = true, .copies = {"dp"}});
        const std::shared_ptr<void> wrapper =
            is_sharded ? std::shared_ptr<void>(fsdp::fully_shard(*module, mesh.group({"dp"})))
                       : ddp::replicate(*module, mesh.group({"dp"}));
        const auto input = [](int64_t rows, int copy) {
          return tests::random_input({rows, kDim}, static_cast<uint64_t>(copy));
        };
        std::string error = "no error";
        try {
          const int64_t rows = self.rank == wrong ? 6 : 4;
          modules::forward(module, input(rows, mesh.coordinate("dp"))).sum().backward();
        } catch (const std::invalid_argument& caught) {
          error = caught.what();
        }
        const std::regex expected(
            "dp " + std::to_string(wrong / 2) +
            ": ranks disagree: expected input 0 .*, Double \\[[46], 6\\] with "
            "hash [0-9]+ as on rank 0, got input 0 .*, Double \\[[46], 6\\] "
            "with hash [0-9]+ on rank 1");
        EXPECT_TRUE(std::regex_match(error, expected)) << error;
        comms::compare_lines({error}, *self.by_hand, at::kCPU);  // the same on all ranks
        // Training goes on.
        for (int copy = 0; copy < 2; ++copy) (plain->forward(input(4, copy)).sum() / 2).backward();
        modules::forward(module, input(4, mesh.coordinate("dp"))).sum().backward();
        for (const auto& named : module->named_parameters()) {
          const at::Tensor& parameter = named.value();
          EXPECT_TRUE(at::allclose(plain->named_parameters()[named.key()].grad(),
                                   modules::full_tensor(parameter, parameter.grad())))
              << named.key();
        }
      });
    }
  }
}

TEST(WrongBatch, ACopyAlongNoDimension) {
  tests::on_ranks(2, [&](tests::Rank& self) {
    comms::Mesh mesh(*self.world, {{"tp", 2}});
    const auto module = tests::make_mlp(kDim, 2, 1);
    std::string error;
    try {
      static_cast<void>(parallelize(*module, {{"in_proj", colwise_parallel()}}, mesh, "tp",
                                    {.check_inputs = true, .copies = {"dq"}}));
    } catch (const std::invalid_argument& caught) {
      error = caught.what();
    }
    EXPECT_TRUE(error.starts_with("parallelize: ") && error.find("dq") != std::string::npos)
        << error;
  });
}

}  // namespace
}  // namespace pipewright::tp
