// Predictions against published measurements. The part of the peak that products reach and the
// moves of an activation are from one row, the 6.2B model of the Zero Bubble paper; all others are
// predicted. A test fails where an error is larger than it was.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "pipewright/schedule/model/machine.h"
#include "pipewright/schedule/model/model_costs.h"
#include "pipewright/schedule/problem/layers.h"
#include "pipewright/schedule/simulate/report.h"
#include "pipewright/schedule/simulate/simulate.h"
#include "pipewright/schedules/registry.h"
#include "tests/schedule/model/shapes.h"

namespace pipewright::schedule {
namespace {

using tests::gpt;

Machine a100() {
  Machine machine = *find_gpu("a100");
  machine.achieved = 0.796;
  return machine;
}

// What was measured, and how far the prediction is from it, in percent.
struct Published {
  double value, error;
};

// Prints a row; fails if the prediction is farther from what was published than it was.
void compare(const std::string& what, double predicted, Published published) {
  const double error = 100 * (predicted / published.value - 1);
  fmt::print("{:<32} published {:>9.3f}  predicted {:>9.3f}  error {:>+6.1f}%\n", what,
             published.value, predicted, error);
  EXPECT_LE(std::abs(error), std::abs(published.error) + 0.05) << what;
}

// The embedding is part of the first stage's blocks, and the head of the last one's.
Cut cut_of(int layers, int stages) {
  Cut cut = even_cut(layers, stages);
  ++cut.front();
  ++cut.back();
  return cut;
}

Report simulated(const Costs& costs, const char* schedule, int ranks, int stages, int microbatches,
                 const Cut& cut) {
  const auto order =
      schedules::make_order(*schedules::find_schedule(schedule),
                            {.ranks = ranks, .stages = stages, .microbatches = microbatches});
  const Costs of_stages = offloading(cut_layers(costs, cut), {}, stages);
  return report_on(order, of_stages, simulate(order, of_stages));
}

// arXiv 2401.10241, tables 3, 4 and 9: GPT on A100s, sequences of 1024. Their backward is the I of
// here, in ms per stage; the last column is GB of 1F1B's fullest rank. The first and the last stage
// have a block less.
struct ZeroBubbleRow {
  const char* name;
  int layers;
  int64_t hidden, heads;
  int ranks, microbatch_size;
  Published forward, input, weight, gigabytes;
};
constexpr ZeroBubbleRow kZeroBubble[] = {
    {"1.5B", 22, 2304, 24, 8, 6, {18.522, 3}, {18.086, 9.3}, {9.337, 1.3}, {30, -8.7}},
    {"6.2B", 30, 4096, 32, 8, 3, {29.718, 0}, {29.444, 3.7}, {19.927, 0}, {39, -3.1}},
    {"14.6B", 46, 5120, 40, 16, 1, {11.347, -4.5}, {11.248, -1.3}, {8.132, -4.3}, {32, 0.3}},
    {"28.3B", 62, 6144, 48, 32, 1, {10.419, -4.8}, {10.207, -0.8}, {7.715, -3.2}, {43, -2.2}},
};

TEST(AgainstPublishedTest, ZeroBubblesStages) {
  for (const ZeroBubbleRow& row : kZeroBubble) {
    TrainingShape training = {.sequence = 1024, .microbatch_size = row.microbatch_size};
    training.attention = Attention::kMaterialized;
    const Costs costs = model_costs(gpt(row.layers, row.hidden, row.heads), training, a100());
    const LayerRun& block = costs.layers[1];
    const int per_stage = (row.layers + 2) / row.ranks;
    const std::string name = row.name;
    compare(name + " F, ms", per_stage * block[&Costs::forward], row.forward);
    compare(name + " I, ms", per_stage * block[&Costs::backward_input], row.input);
    compare(name + " W, ms", per_stage * block[&Costs::backward_weight], row.weight);
    const Report report = simulated(costs, "1F1B", row.ranks, row.ranks, 3 * row.ranks,
                                    even_cut(row.layers + 2, row.ranks));
    double bytes = 0;
    for (const RankReport& rank : report.ranks) bytes = std::max(bytes, rank.peak_bytes.amount);
    // Their GB are 2^30.
    compare(name + " 1F1B, GiB", bytes / (1 << 30), row.gigabytes);
  }
}

// arXiv 2205.05198, table 5: seconds per iteration on A100s, sequences of 2048, 8 tensor-parallel
// ranks; with all blocks recomputed, and with sequence parallelism and selective recomputation.
struct IterationRow {
  const char* name;
  int layers;
  int64_t hidden, heads;
  int pp, chunks, batch, microbatch_size;
  Published recomputing, selective;
};
constexpr IterationRow kIterations[] = {
    {"22B", 48, 6144, 64, 1, 1, 4, 4, {1.42, -1.7}, {1.10, -8}},
    {"175B", 96, 12288, 96, 8, 3, 64, 1, {18.13, -4.3}, {13.75, -8.4}},
    {"530B", 105, 20480, 128, 35, 3, 280, 1, {49.05, -2.9}, {37.83, -7.9}},
    {"1T", 128, 25600, 160, 64, 1, 512, 1, {94.42, -0.6}, {71.49, -2.7}},
};

TEST(AgainstPublishedTest, MegatronsIterations) {
  for (const IterationRow& row : kIterations) {
    for (const bool recomputes : {true, false}) {
      TrainingShape training = {.sequence = 2048, .microbatch_size = row.microbatch_size};
      training.tp = 8;
      training.sequence_parallel = !recomputes;
      training.attention = recomputes ? Attention::kMaterialized : Attention::kSelective;
      training.recomputes = recomputes;
      const Costs costs = model_costs(gpt(row.layers, row.hidden, row.heads), training, a100());
      const int stages = row.pp * row.chunks;
      const Report report =
          simulated(costs, row.chunks > 1 ? "Interleaved1F1B" : "1F1B", row.pp, stages,
                    row.batch / row.microbatch_size, cut_of(row.layers, stages));
      compare(std::string(row.name) + (recomputes ? " all recomputed, s" : " selective, s"),
              report.makespan / 1e3, recomputes ? row.recomputing : row.selective);
    }
  }
}

// The same, table 4: a block of the 22B model with 8 tensor-parallel ranks, in ms.
TEST(AgainstPublishedTest, MegatronsBlock) {
  TrainingShape training = {.sequence = 2048, .microbatch_size = 4};
  training.tp = 8;
  for (const bool parallel : {false, true}) {
    training.sequence_parallel = parallel;
    training.attention = Attention::kMaterialized;
    const LayerRun block = model_costs(gpt(48, 6144, 64), training, a100()).layers[1];
    compare(parallel ? "22B F, sequence parallel" : "22B F", block[&Costs::forward],
            parallel ? Published{7.2, 0.9} : Published{7.7, 8.1});
    compare(parallel ? "22B B, sequence parallel" : "22B B",
            block[&Costs::backward_input] + block[&Costs::backward_weight],
            parallel ? Published{11.8, 0} : Published{11.9, 3.1});
  }
}

// arXiv 2407.21783, table 4: Llama 3 405B on H100s, TFLOP/s per GPU, with sequences of 8192, a
// batch of 16M tokens, 8 tensor-parallel and 16 pipeline ranks. The part of the peak that products
// reach is from the first row. Data-parallel communication is left out: most of it is hidden. The
// paper does not say how many stages a rank has; this test assumes one stage per block.
TEST(AgainstPublishedTest, Llama3) {
  const ModelShape model = {.architecture = "llama",
                            .layers = 126,
                            .hidden = 16384,
                            .heads = 128,
                            .kv_heads = 8,
                            .head_size = 128,
                            .ffn = 53248,
                            .vocabulary = 128256};
  EXPECT_NEAR(static_cast<double>(model.parameters()), 405e9, 1e9);
  constexpr int kTp = 8, kPp = 16, kBatch = 2048;
  Machine h100 = *find_gpu("h100");
  h100.achieved = 0.5505;
  for (const auto& [gpus, published] :
       {std::pair(8192, Published{430, 0}), {16384, Published{400, 1.3}}}) {
    TrainingShape training = {.sequence = 8192, .tp = kTp};
    training.dp = gpus / kTp / kPp;
    training.shard = Shard::kAll;
    const Report report =
        simulated(model_costs(model, training, h100), "Interleaved1F1B", kPp, 8 * kPp,
                  kBatch / training.dp, even_cut(model.layers + 2, 8 * kPp));
    const double flops = kBatch * model_flops(model, training.sequence);
    compare(fmt::format("Llama 3 405B, {} GPUs", gpus),
            flops / gpus / (report.makespan / 1e3) / 1e12, published);
  }
}

}  // namespace
}  // namespace pipewright::schedule
