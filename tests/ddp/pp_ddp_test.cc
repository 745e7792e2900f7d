// Pipelines of replicated stages: test_pp_ddp from PyTorch's test_composability.py and
// test_replicate_pp from its test_pp_composability.py, for every schedule of the catalogue,
// including those with split backwards.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "pipewright/ddp/replicate.h"
#include "tests/channel_model/programs.h"
#include "tests/support/catalogue/catalogue.h"
#include "tests/support/ranks/ground.h"
#include "tests/support/training/pipeline.h"

namespace pipewright::ddp {
namespace {

using tests::PipelineCase;
using tests::Trained;

class PpDdp : public testing::TestWithParam<const schedules::ScheduleSpec*> {};

at::Tensor whole(const at::Tensor& tensor, int /*copy*/) { return tensor; }

int64_t count(const Trained& trained, const std::string& op) {
  return std::ranges::count(trained.calls, op, &comms::CallRecord::op);
}

std::shared_ptr<modules::DataParallel> replicate_whole(const std::shared_ptr<tests::Layers>& stage,
                                                       const comms::BackendPtr& group) {
  return replicate(*stage, group)->data_parallel();
}

TEST_P(PpDdp, test_pp_ddp) {
  for (const int reduce_every : {tests::kPipelineMicrobatches, 2}) {
    const PipelineCase pipeline{.schedule = GetParam(), .reduce_every = reduce_every};
    const auto trained = train_pipeline(pipeline, replicate_whole);
    expect_trained(train_reference(pipeline), trained, whole);
    const auto program = tests::program_of(pipeline);
    for (size_t rank = 0; rank < trained.size(); ++rank) {
      // One bucket per stage and REDUCE_GRAD, and no other collective.
      const size_t stages = program.placement.stages_of(static_cast<int>(rank % 2)).size();
      EXPECT_EQ(count(trained[rank], "allreduce"),
                static_cast<int64_t>(stages) * tests::kPipelineMicrobatches / reduce_every);
      EXPECT_EQ(trained[rank].calls.size(), static_cast<size_t>(count(trained[rank], "allreduce")));
    }
  }
}

// One call per layer, one gradient per bucket.
std::shared_ptr<modules::DataParallel> replicate_with(const std::shared_ptr<tests::Layers>& stage,
                                                      const comms::BackendPtr& group,
                                                      const modules::MixedPrecisionPolicy& policy) {
  const Options options = {.bucket_cap_mb = 0,
                           .first_bucket_cap_mb = 0,
                           .find_unused_parameters = true,
                           .mixed_precision = policy};
  std::vector<std::shared_ptr<Replicated>> calls;
  for (const auto& layer : stage->layers()) calls.push_back(replicate(*layer, group, options));
  return replicate(*stage, group, options)->data_parallel();
}

std::shared_ptr<modules::DataParallel> replicate_layers(const std::shared_ptr<tests::Layers>& stage,
                                                        const comms::BackendPtr& group) {
  return replicate_with(stage, group, {});
}

// Checkpointed layers, parameters that no rank or only one uses, and several reductions per step.
TEST_P(PpDdp, NestedCallsAndUnusedParameters) {
  for (const bool checkpointed : {false, true}) {
    // Without an unused parameter the outermost call has no parameters of its own.
    const bool unused = !checkpointed;
    const PipelineCase pipeline{
        .schedule = GetParam(),
        .reduce_every = 2,
        .delays = true,
        .layers = {.checkpointed = checkpointed, .unused = unused, .partial = true}};
    expect_trained(train_reference(pipeline), train_pipeline(pipeline, replicate_layers), whole);
  }
}

// Forward and backward run in bf16; gradients accumulate over microbatches and are reduced in fp32,
// also those of a split backward, and over several reductions per step. One step: after it, a
// difference of one bit in a parameter may round to another bf16 value.
TEST_P(PpDdp, MixedPrecision) {
  for (const bool checkpointed : {false, true}) {
    const PipelineCase pipeline{
        .schedule = GetParam(),
        .reduce_every = checkpointed ? 2 : 8,
        .steps = 1,
        .delays = checkpointed,
        .compute = at::kBFloat16,
        .layers = {.dtype = at::kFloat, .checkpointed = checkpointed, .unused = !checkpointed}};
    const auto trained =
        train_pipeline(pipeline, [](const auto& stage, const comms::BackendPtr& group) {
          return replicate_with(stage, group,
                                {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat});
        });
    expect_trained(train_reference(pipeline), trained, whole, {1e-5, 1e-7});
    for (const Trained& rank : trained) {
      for (const auto& [name, weight] : rank.parameters.pairs())
        EXPECT_EQ(weight.scalar_type(), at::kFloat) << name;
    }
  }
}

// Reductions of two stages next to each other. Copies use different parameters, so one rank can
// start a reduction while backward runs, and another one only after it.
TEST(PpDdpOrder, CopiesWithDifferentGradients) {
  const std::vector<std::string> rows = {
      "0F0 0SEND_F0 2RECV_F0 2F0 2SEND_F0 2RECV_B0 2B0 2SEND_B0 0RECV_B0 0B0 2REDUCE_GRAD "
      "0REDUCE_GRAD",
      "1RECV_F0 1F0 1SEND_F0 3RECV_F0 3F0 3I0 3SEND_B0 3W0 1RECV_B0 1I0 1SEND_B0 1W0 "
      "1REDUCE_GRAD 3REDUCE_GRAD"};
  const PipelineCase pipeline{
      .program = channel_model::program_of(ir::Placement::loop(2, 4), 1, rows),
      .layers = {.partial = true}};
  expect_trained(train_reference(pipeline), train_pipeline(pipeline, replicate_layers), whole);
}

// A replicated pipeline whose copies train on the same data equals the pipeline without copies:
// losses, gradients and parameters over five steps.
TEST_P(PpDdp, test_replicate_pp) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat, at::kDouble}) {
    PipelineCase pipeline{.schedule = GetParam(),
                          .copies = 1,
                          .same_data = true,
                          .steps = 5,
                          .layers = {.dtype = dtype}};
    const std::vector<Trained> alone = train_pipeline(pipeline, nullptr);
    for (const int copies : {2, 4}) {
      if (tests::is_on_device() && copies > 2) continue;
      pipeline.copies = copies;
      const std::vector<Trained> copied = train_pipeline(pipeline, replicate_whole);
      ASSERT_EQ(copied.size(), 2 * static_cast<size_t>(copies));
      size_t num_losses = 0;
      for (size_t rank = 0; rank < copied.size(); ++rank) {
        const Trained &want = alone[rank % 2], &got = copied[rank];
        ASSERT_EQ(want.losses.size(), got.losses.size());
        num_losses += got.losses.size();
        // The mean of two or four equal numbers is that number, to the last bit.
        for (size_t i = 0; i < want.losses.size(); ++i)
          EXPECT_TRUE(at::equal(want.losses[i], got.losses[i]));
        for (const auto& [name, grad] : want.grads.pairs()) {
          EXPECT_TRUE(at::equal(grad, got.grads[name])) << name;
          EXPECT_TRUE(at::equal(want.parameters[name], got.parameters[name])) << name;
        }
      }
      EXPECT_EQ(num_losses, static_cast<size_t>(copies) * 5 * tests::kPipelineMicrobatches);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, PpDdp, testing::ValuesIn(tests::schedules_of_one_replica()),
                         [](const auto& of) { return tests::name_of_schedule(*of.param); });

}  // namespace
}  // namespace pipewright::ddp
