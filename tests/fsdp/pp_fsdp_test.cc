// Pipelines of sharded stages: test_pp_fsdp and test_pp_fsdp_unshard_reshard_runtime of PyTorch's
// test_composability.py, for every schedule of the catalogue, including those with split backwards.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "pipewright/comms/mesh.h"
#include "pipewright/executor/executor.h"
#include "pipewright/executor/module_stage.h"
#include "pipewright/fsdp/fully_shard.h"
#include "tests/channel_model/programs.h"
#include "tests/support/catalogue/catalogue.h"
#include "tests/support/meter/meter.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/training/modules.h"
#include "tests/support/training/pipeline.h"

namespace pipewright::fsdp {
namespace {

using tests::Layer;
using tests::Layers;
using tests::PipelineCase;
using tests::Trained;

constexpr const char* kGather = "allgather_into_tensor_coalesced";
constexpr const char* kReduce = "reduce_scatter_tensor_coalesced";
constexpr int64_t kLayerNumel = 2 * (10 * 10 + 10);
// In memory, each parameter begins at a multiple of 16 elements: 64 bytes in the shards' dtype,
// fp32.
constexpr int64_t kPaddedLayerNumel = 2 * (112 + 16);

at::Tensor call_layer(const std::shared_ptr<Layer>& layer, const at::Tensor& x) {
  return forward(layer, x);
}

// One unit per layer, and one for the stage. The latter has parameters only if the stage has an
// unused one.
tests::Wrap wrap(ReshardAfterForward reshard_after_forward,
                 const modules::MixedPrecisionPolicy& policy = {}) {
  return [=](const std::shared_ptr<Layers>& stage, const comms::BackendPtr& group) {
    const Options options = {.reshard_after_forward = reshard_after_forward,
                             .mixed_precision = policy};
    std::vector<std::shared_ptr<Sharded>> units;
    for (const auto& layer : stage->layers()) units.push_back(fully_shard(*layer, group, options));
    return fully_shard(*stage, group, options)->data_parallel();
  };
}

at::Tensor part_of(const at::Tensor& whole, int copy, int copies) {
  const auto chunks = whole.chunk(copies, 0);
  return copy < static_cast<int>(chunks.size()) ? chunks[static_cast<size_t>(copy)]
                                                : whole.narrow(0, 0, 0);
}

class PpFsdpSchedules : public testing::TestWithParam<const schedules::ScheduleSpec*> {};

// Three copies have uneven shards. In fp32 with PyTorch's tolerance and one step, and in fp64,
// where the order of sums hides no error.
TEST_P(PpFsdpSchedules, test_pp_fsdp) {
  struct Case {
    ReshardAfterForward reshard_after_forward;
    int copies, reduce_every;
    bool delays, checkpointed, unused;
    at::ScalarType dtype = at::kDouble;
    bool partial = false;
  };
  for (const Case& the :
       {Case{false, 2, 8, false, false, false, at::kFloat}, Case{false, 2, 8, false, false, false},
        Case{true, 2, 8, true, false, true}, Case{{}, 3, 2, false, false, false},
        Case{true, 2, 2, true, true, true, at::kDouble, true}}) {
    const bool is_float = the.dtype == at::kFloat;
    const PipelineCase pipeline{.schedule = GetParam(),
                                .reduce_every = the.reduce_every,
                                .copies = the.copies,
                                .steps = is_float ? 1 : 3,
                                .delays = the.delays,
                                .layers = {.dtype = the.dtype,
                                           .checkpointed = the.checkpointed,
                                           .unused = the.unused,
                                           .partial = the.partial,
                                           .call = call_layer}};
    const auto trained = train_pipeline(pipeline, wrap(the.reshard_after_forward));
    const tests::Tolerance tolerance = is_float ? tests::Tolerance{2e-2, 5e-5} : tests::Tolerance{};
    expect_trained(
        train_reference(pipeline), trained,
        [&](const at::Tensor& whole, int copy) { return part_of(whole, copy, the.copies); },
        tolerance);
    // One all-gather per UNSHARD and unit, one reduction per REDUCE_GRAD and unit, and no other
    // collective, whatever reshard_after_forward is.
    const ir::Program program = tests::program_of(pipeline);
    for (size_t rank = 0; rank < trained.size(); ++rank) {
      const auto count = [&](ir::ActionKind kind) {
        int64_t groups = 0;
        for (const ir::Action& action : program.rows[rank % 2]) {
          if (action.is_compound() || action.kind() != kind) continue;
          groups += tests::kPipelineLayers / program.placement.num_stages() + (the.unused ? 1 : 0);
        }
        return groups;
      };
      const auto called = [&](const char* op) {
        return std::ranges::count(trained[rank].calls, op, &comms::CallRecord::op);
      };
      EXPECT_EQ(called(kGather), count(ir::ActionKind::kUnshard));
      EXPECT_EQ(called(kReduce), count(ir::ActionKind::kReduceGrad));
      EXPECT_EQ(trained[rank].calls.size(), static_cast<size_t>(called(kGather) + called(kReduce)));
    }
  }
}

// Notes the bytes of memory that each RESHARD of a stage frees.
class Metered final : public modules::DataParallel {
 public:
  Metered(std::shared_ptr<modules::DataParallel> stage, std::vector<int64_t>& freed)
      : stage_(std::move(stage)), freed_(freed) {}

  c10d::Backend* group() const override { return stage_->group(); }
  void step_begins() override { stage_->step_begins(); }
  void unshard() override {
    const tests::Meter meter(
        tests::device_type());  // knows the size of memory only if it was there at the allocation
    stage_->unshard();
  }
  void wait_unshard() override { stage_->wait_unshard(); }
  bool frees_parameters() const override { return stage_->frees_parameters(); }
  void reshard() override {
    const tests::Meter meter(tests::device_type());
    stage_->reshard();
    if (meter.bytes() != 0) freed_.push_back(-meter.bytes());
  }
  void before_backward(int microbatch, bool last) override {
    stage_->before_backward(microbatch, last);
  }
  void after_last_backward() override { stage_->after_last_backward(); }
  void reduce_grad() override { stage_->reduce_grad(); }
  void wait_reduce() override { stage_->wait_reduce(); }
  void abort() override { stage_->abort(); }

 private:
  const std::shared_ptr<modules::DataParallel> stage_;
  std::vector<int64_t>& freed_;
};

// What Metered notes in one step, by the program: `bytes` for each RESHARD of `stage`. A stage that
// is unsharded at the program's end, or throughout because its rank has neither UNSHARD nor
// RESHARD, is freed by the end of the step.
std::vector<int64_t> freed_by(const ir::Program& program, int stage, int64_t bytes) {
  std::vector<int64_t> freed;
  bool whole_step = true, unsharded = false;
  const auto rank = static_cast<size_t>(program.placement.rank_of(stage));
  for (const ir::Action& action : program.rows[rank]) {
    for (const ir::ActionPart part : action.parts()) {
      const bool unshards = part.kind() == ir::ActionKind::kUnshard;
      if (!unshards && part.kind() != ir::ActionKind::kReshard) continue;
      whole_step = false;
      if (part.stage() != stage) continue;
      unsharded = unshards;
      if (!unshards) freed.push_back(bytes);
    }
  }
  if (whole_step || unsharded) freed.push_back(bytes);
  return freed;
}

// FSDP_MP: parameters are gathered, and forward and backward run, in bf16; gradients accumulate
// over microbatches and are reduced in fp32, also those of a split backward. Unsharded parameters
// take memory in bf16, from UNSHARD to RESHARD. One step: after it, a difference of one bit in a
// parameter may round to another bf16 value.
TEST_P(PpFsdpSchedules, test_pp_fsdp_mixed_precision) {
  for (const bool checkpointed : {false, true}) {
    const PipelineCase pipeline{
        .schedule = GetParam(),
        .reduce_every = checkpointed ? 2 : 8,
        .steps = 1,
        .compute = at::kBFloat16,
        .layers = {.dtype = at::kFloat, .checkpointed = checkpointed, .call = call_layer}};
    const ir::Program program = tests::program_of(pipeline);
    const int layers = tests::kPipelineLayers / program.placement.num_stages();
    std::vector<std::vector<int64_t>> freed(2 * static_cast<size_t>(tests::kPipelineLayers));
    const auto metered = [&](const std::shared_ptr<Layers>& stage, const comms::BackendPtr& group) {
      const int number = stage->layers()[0]->number() / layers;
      return std::make_shared<Metered>(
          wrap(true, {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat})(stage, group),
          freed[static_cast<size_t>(2 * number + group->getRank())]);
    };
    const auto trained = train_pipeline(pipeline, metered);
    for (int stage = 0; stage < program.placement.num_stages(); ++stage) {
      for (const int copy : {0, 1}) {
        EXPECT_EQ(freed[static_cast<size_t>(2 * stage + copy)],
                  freed_by(program, stage, layers * kPaddedLayerNumel * 2))
            << "stage " << stage << ", copy " << copy;
      }
    }
    expect_trained(train_reference(pipeline), trained,
                   [](const at::Tensor& whole, int copy) { return part_of(whole, copy, 2); },
                   {1e-5, 1e-7});
    for (const Trained& rank : trained) {
      for (const comms::CallRecord& call : rank.calls) {
        if (call.op == kGather) {
          EXPECT_EQ(call.bytes, kLayerNumel * 2) << "bf16";
        } else if (call.op == kReduce) {
          // A shard in fp32, and a flag for each of the four parameters.
          EXPECT_EQ(call.bytes, (kLayerNumel / 2 + 4) * 4);
        }
      }
    }
  }
}

// Collectives of two stages next to each other. Copies use different parameters of a layer, so one
// rank can start a reduction while backward runs, and another one only after it.
TEST(PpFsdp, CopiesWithDifferentGradients) {
  const std::vector<std::string> rows = {
      "0UNSHARD 2UNSHARD 0F0 0SEND_F0 2RECV_F0 2F0 2SEND_F0 2RECV_B0 2B0 2SEND_B0 0RECV_B0 0B0 "
      "2REDUCE_GRAD 0REDUCE_GRAD 2RESHARD 0RESHARD",
      "1UNSHARD 3UNSHARD 1RECV_F0 1F0 1RESHARD 1SEND_F0 3RECV_F0 3F0 3I0 3SEND_B0 3W0 1UNSHARD "
      "1RECV_B0 1I0 1SEND_B0 1W0 1REDUCE_GRAD 3REDUCE_GRAD 1RESHARD 3RESHARD"};
  const PipelineCase pipeline{
      .program = channel_model::program_of(ir::Placement::loop(2, 4), 1, rows),
      .layers = {.partial = true, .call = call_layer}};
  expect_trained(train_reference(pipeline), train_pipeline(pipeline, wrap(true)),
                 [](const at::Tensor& whole, int copy) { return part_of(whole, copy, 2); });
}

// Four layers in one stage: the registered parameters after each of two steps of a program.
void run_on_one_stage(int ranks, const modules::MixedPrecisionPolicy& policy,
                      const std::string& row, bool whole_afterwards) {
  std::vector<comms::World> worlds = tests::make_worlds(ranks);
  EXPECT_EQ(tests::run_ranks(
                ranks,
                [&](int rank) {
                  comms::World& world = worlds[static_cast<size_t>(rank)];
                  comms::Mesh mesh(world, {{"dp", ranks}, {"pp", 1}});
                  const tests::LayersArgs args{.call = call_layer};
                  const Layers plain(0, 4, args);
                  const auto module = std::make_shared<Layers>(0, 4, args);
                  const auto stage = wrap(false, policy)(module, mesh.group({"dp"}));
                  const auto expect = [&](bool whole) {
                    const auto want = plain.parameters(), got = module->parameters();
                    ASSERT_EQ(got.size(), 16u);
                    for (size_t i = 0; i < got.size(); ++i) {
                      EXPECT_TRUE(at::equal(
                          got[i], whole ? want[i].to(policy.param_dtype.value_or(at::kDouble))
                                        : part_of(want[i], rank, ranks)));
                    }
                  };
                  expect(false);
                  const ir::Program program =
                      channel_model::program_of(ir::Placement::loop(1, 1), 1, {row});
                  executor::Executor executor(program, {{0, {executor::make_stage(module), stage}}},
                                              world,
                                              {.scale_grads = false,
                                               .allow_unverified = true,
                                               .device = tests::here(),
                                               .ranks = mesh.ranks({"pp"})});
                  for (int step = 0; step < 2; ++step) {
                    executor.step({{at::ones({1, 10}, tests::here(at::kDouble))}, {}, {}});
                    expect(whole_afterwards);
                    stage->reshard();
                    expect(false);
                  }
                }),
            "");
}

TEST(PpFsdp, test_pp_fsdp_unshard_reshard_runtime) {
  const modules::MixedPrecisionPolicy mixed = {.param_dtype = at::kBFloat16,
                                               .reduce_dtype = at::kFloat};
  for (const int ranks : {2, 4}) {
    for (const modules::MixedPrecisionPolicy& policy : {modules::MixedPrecisionPolicy{}, mixed}) {
      run_on_one_stage(ranks, policy, "0UNSHARD 0F0 0RESHARD", false);
      run_on_one_stage(ranks, policy, "0UNSHARD 0F0 0REDUCE_GRAD", false);
      run_on_one_stage(ranks, policy, "0UNSHARD 0F0", true);
      // Without UNSHARD and RESHARD, unsharded for the step.
      run_on_one_stage(ranks, policy, "0F0", false);
    }
  }
}

// What a test adds to the output of each layer, from the layer's weights; null adds nothing.
using Extra = std::function<at::Tensor(const at::Tensor&, const std::vector<at::Tensor>&)>;

// Runs a W of stage 1 while the stage is resharded.
std::string train_weight_free(const Extra& extra, const std::string& row0,
                              const std::string& row1) {
  ir::Program program = channel_model::program_of(ir::Placement::loop(2, 2), 1, {row0, row1});
  program.lowering.weight_free_w = true;
  std::vector<comms::World> worlds = tests::make_worlds(4);
  return tests::run_ranks(4, [&](int rank) {
    comms::World& world = worlds[static_cast<size_t>(rank)];
    comms::Mesh mesh(world, {{"dp", 2}, {"pp", 2}});
    const int stage = mesh.coordinate("pp"), copy = mesh.coordinate("dp");
    const auto call = [&](const std::shared_ptr<Layer>& layer, const at::Tensor& x) {
      const at::Tensor y = forward(layer, x);
      if (!extra) return y;
      const auto with_extra = [&](const std::vector<at::Tensor>& in) {
        return std::vector{extra(in[0], layer->parameters())};
      };
      return modules::call(*layer, with_extra, {y})[0];
    };
    const auto module =
        std::make_shared<Layers>(4 * stage, 4 * stage + 4, tests::LayersArgs{.call = call});
    const auto sharded = wrap(true)(module, mesh.group({"dp"}));
    executor::Executor executor(program, {{stage, {executor::make_stage(module), sharded}}}, world,
                                {.loss = [](const executor::Tensors& out) { return out[0].sum(); },
                                 .device = tests::here(),
                                 .ranks = mesh.ranks({"pp"})});
    const auto input = [](int of) {
      return tests::random_input({2, 10}, static_cast<uint64_t>(of));
    };
    executor.step({{input(copy)}, {}, {}});
    executor.confirm();  // the others may have ended the step before a W fails
    Layers plain(0, 8, {});
    for (const int each : {0, 1}) (plain.forward(input(each)).sum() / 2).backward();
    for (const auto& [name, weight] : module->named_parameters().pairs()) {
      EXPECT_TRUE(at::allclose(
          weight.grad(), part_of(plain.named_parameters()[name].grad(), copy, 2), 1e-10, 1e-12))
          << name;
    }
  });
}

TEST(PpFsdp, WeightFreeW) {
  const std::string row0 = "0UNSHARD 0F0 0SEND_F0 0RECV_B0 0I0 0W0 0REDUCE_GRAD 0RESHARD";
  const std::string row1 = "1UNSHARD 1RECV_F0 1F0 1I0 1SEND_B0 1RESHARD 1W0 1REDUCE_GRAD";
  EXPECT_EQ(train_weight_free(nullptr, row0, row1), "");
  const auto expect = [](const std::string& errors, const std::string& what) {
    EXPECT_NE(errors.find(what), std::string::npos) << errors;
  };
  const auto norm = [](const at::Tensor& x, const std::vector<at::Tensor>& weights) {
    return at::layer_norm(x, {10}, weights[1]);
  };
  expect(train_weight_free(norm, row0, row1),
         "`1W0`: W may read a weight in `NativeLayerNormBackward0`, but the stage is resharded");
  // No gradient leads to the detached factor, but that of the other one is computed from it.
  const auto detached = [](const at::Tensor& x, const std::vector<at::Tensor>& weights) {
    return x.mm(weights[0].detach() * weights[2]);
  };
  expect(train_weight_free(detached, row0, row1),
         "`1W0`: W may read a weight in `MulBackward0`, but the stage is resharded");
  const auto product = [](const at::Tensor& x, const std::vector<at::Tensor>& weights) {
    return x.mm(weights[0].detach().mm(weights[2]));
  };
  expect(train_weight_free(product, row0, row1), "W may read a weight in `MmBackward0`");
  expect(train_weight_free(nullptr, "0UNSHARD 0F0 0SEND_F0 0RECV_B0 0I0 0RESHARD 0W0 0REDUCE_GRAD",
                           row1),
         "`0W0`: W of stage 0 may read its weights, which are resharded");
}

INSTANTIATE_TEST_SUITE_P(Schedules, PpFsdpSchedules,
                         testing::ValuesIn(tests::schedules_of_one_replica()),
                         [](const auto& of) { return tests::name_of_schedule(*of.param); });

}  // namespace
}  // namespace pipewright::fsdp
