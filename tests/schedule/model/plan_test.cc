#include "pipewright/schedule/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "pipewright/schedule/model/config_json.h"

namespace pipewright::schedule {
namespace {

PlanRequest request_of(int gpus, int64_t batch) {
  PlanRequest request;
  request.model = parse_config(R"({"model_type": "llama", "num_hidden_layers": 32,
    "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256})");
  request.training = {.sequence = 8192};
  request.machine = *find_gpu("h100");
  request.gpus = gpus;
  request.batch = batch;
  return request;
}

TEST(PlanTest, RowsUseAllGpusAndFit) {
  const PlanRequest request = request_of(16, 64);
  const std::vector<PlanRow> rows = plan_rows(request);
  ASSERT_FALSE(rows.empty());
  EXPECT_TRUE(std::ranges::is_sorted(rows, {}, &PlanRow::step));
  for (const PlanRow& row : rows) {
    EXPECT_EQ(row.pp * row.training.tp * row.training.dp, 16);
    EXPECT_EQ(row.training.microbatch_size * row.microbatches * row.training.dp, 64);
    EXPECT_LE(row.memory, kUsableMemory * request.machine.memory);
    EXPECT_EQ(std::accumulate(row.cut.begin(), row.cut.end(), 0), 34);
    EXPECT_EQ(row.order.cut, row.cut);
    // No row is faster than the machine's peak.
    EXPECT_GT(row.step, 64 * model_flops(request.model, 8192) / (16 * request.machine.peak) * 1e3);
  }
  for (const PlanRow& row : {rows.front(), rows.back()}) {
    const double bound = plan_bound(row, request.machine);
    EXPECT_GT(bound, 0);
    EXPECT_LE(bound, row.step);
  }
}

TEST(PlanTest, LessMemoryLeavesFewerRows) {
  PlanRequest request = request_of(8, 32);
  const size_t all = plan_rows(request).size();
  request.machine.memory = 30e9;
  const size_t some = plan_rows(request).size();
  EXPECT_LT(some, all);
  EXPECT_GT(some, 0U);
  request.machine.memory = 5e9;  // 8e9 parameters at 6 bytes over 8
  EXPECT_TRUE(plan_rows(request).empty());
}

}  // namespace
}  // namespace pipewright::schedule
