// What runs on a GPU compares with the CPU, whose sums have another order: the comparison of
// trainings must neither ask for the CPU's bits nor miss an error.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "pipewright/schedules/registry.h"
#include "tests/device/backend.h"
#include "tests/device/device.h"
#include "tests/executor/models.h"

namespace pipewright::testdevice {
namespace {

using executor::ModelKind;
using executor::Trained;

TEST(Rounding, TrainingsThatRoundOtherwiseAreEqual) {
  constexpr int kRanks = 2, kMicrobatches = 4;
  constexpr int64_t kBatch = 8;
  for (const char* name : {"1F1B", "ZBV"}) {
    for (const ModelKind kind : {ModelKind::kMlp, ModelKind::kTransformer}) {
      seed(1);
      const schedules::ScheduleSpec& spec = *schedules::find_schedule(name);
      const ir::Program program =
          executor::make_program(spec, {.ranks = kRanks,
                                        .stages = schedules::default_stages(spec, kRanks),
                                        .microbatches = kMicrobatches});
      const Trained reference = executor::train_reference(
          executor::make_model(kind, program.placement.num_stages(), kBatch), kMicrobatches);
      round_otherwise(true);
      std::vector<comms::World> worlds = device_worlds(kRanks);
      Trained trained;
      ASSERT_EQ(executor::train_threads(program, kind, kBatch, worlds, &trained), "") << name;
      const std::vector<int> stages = executor::all_stages(program);
      EXPECT_EQ(executor::compare(reference, trained, program, stages), "") << name;
      EXPECT_FALSE(at::equal(reference.weights[0][0], trained.weights[0][0])) << name;
      trained.grads[0][0] = trained.grads[0][0] * (1 + 1e-7);
      EXPECT_NE(executor::compare(reference, trained, program, stages), "") << name;
    }
  }
}

}  // namespace
}  // namespace pipewright::testdevice
