// Over the full range of shapes, P 1..16, V 1..4, M 1..64: every order passes the verifier, its
// lowering passes under all three channel models at capacity 0, and with latest receives under the
// model that it was lowered for.
#include <gtest/gtest.h>

#include "pipewright/ir/text/render.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/verify/verify.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::schedule {
namespace {

class VerifyBoxTest : public testing::TestWithParam<const schedules::ScheduleSpec*> {};

TEST_P(VerifyBoxTest, EveryShape) {
  int orders = 0;
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (int per_rank = 1; per_rank <= 4; ++per_rank) {
      for (int microbatches = 1; microbatches <= 64; ++microbatches) {
        const schedules::Shape shape{ranks, ranks * per_rank, microbatches};
        if (schedules::shape_error(*GetParam(), shape)) continue;
        SCOPED_TRACE(testing::Message()
                     << "P=" << ranks << " V=" << per_rank << " M=" << microbatches);
        const ir::ComputeOrder order = schedules::make_order(*GetParam(), shape);
        ir::Diagnostics diagnostics;
        ASSERT_TRUE(verify(order, &diagnostics)) << ir::render(diagnostics, nullptr, {});
        const auto program = lower(order, {}, &diagnostics);
        ASSERT_TRUE(program);
        for (const ir::ChannelModelInfo& model : ir::channel_models()) {
          ASSERT_TRUE(verify(*program, {model.model, 0, false}, &diagnostics))
              << model.name << "\n"
              << ir::render(diagnostics, nullptr, {});
          ir::Lowering latest;
          latest.receives = ir::Receives::kLatest;
          latest.channels = model.model;
          latest.capacity = microbatches % 2;
          ASSERT_TRUE(verify(*lower(order, latest, &diagnostics),
                             {model.model, *latest.capacity, false}, &diagnostics))
              << "latest receives, " << model.name << ", capacity " << *latest.capacity << "\n"
              << ir::render(diagnostics, nullptr, {});
        }
        ++orders;
      }
    }
  }
  // Two replicas need even numbers and one stage per rank; those of DualPipe, also two microbatches
  // per rank: 31 shapes of 2 ranks, 29 of 4, ..., 17 of 16.
  const bool has_replicas = GetParam()->pattern == schedules::Pattern::kBothWays;
  EXPECT_GE(orders, has_replicas ? 8 * (31 + 17) / 2 : 16 * 33);
}

INSTANTIATE_TEST_SUITE_P(AllSchedules, VerifyBoxTest,
                         testing::ValuesIn(schedules::all_schedules().begin(),
                                           schedules::all_schedules().end()),
                         [](const auto& test) {
                           std::string name(test.param->name);  // "ZB-H1"
                           std::erase_if(name, [](char c) { return c == '-'; });
                           return name;
                         });

}  // namespace
}  // namespace pipewright::schedule
