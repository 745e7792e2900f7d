// Shapes of published models, and the costs of their layers against formulas of papers.
#include "pipewright/schedule/model/model_costs.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "pipewright/schedule/model/config_json.h"
#include "pipewright/schedule/problem/layers.h"
#include "tests/schedule/model/shapes.h"

namespace pipewright::schedule {
namespace {

using tests::gpt;

constexpr const char* kLlama8B = R"({"model_type": "llama", "num_hidden_layers": 32,
 "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
 "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": false})";
constexpr const char* kMixtral = R"({"model_type": "mixtral", "num_hidden_layers": 32,
 "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
 "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8,
 "num_experts_per_tok": 2})";
constexpr const char* kQwen3Moe = R"({"model_type": "qwen3_moe", "num_hidden_layers": 48,
 "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
 "intermediate_size": 6144, "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8,
 "moe_intermediate_size": 768})";
constexpr const char* kDeepSeekV3 = R"({"model_type": "deepseek_v3", "num_hidden_layers": 61,
 "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128,
 "intermediate_size": 18432, "vocab_size": 129280, "n_routed_experts": 256,
 "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1,
 "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
 "qk_nope_head_dim": 128, "v_head_dim": 128})";
constexpr const char* kGpt2 = R"({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12,
 "vocab_size": 50257, "n_positions": 1024})";

// What the models' authors say, in 1e9 parameters.
TEST(ModelCostsTest, ParametersOfPublishedModels) {
  const auto billions = [](const char* text) {
    return static_cast<double>(parse_config(text).parameters()) / 1e9;
  };
  EXPECT_NEAR(billions(kLlama8B), 8.03, 0.005);
  EXPECT_NEAR(billions(kMixtral), 46.7, 0.05);
  EXPECT_NEAR(billions(kQwen3Moe), 30.5, 0.05);
  EXPECT_NEAR(billions(kDeepSeekV3), 671, 0.5);
  EXPECT_NEAR(billions(kGpt2), 0.124, 0.0005);
  // 37e9 of DeepSeek-V3's, with both embeddings, are active.
  const ModelShape deepseek = parse_config(kDeepSeekV3);
  double active = 2.0 * static_cast<double>(deepseek.vocabulary * deepseek.hidden);
  for (int layer = 0; layer < deepseek.layers; ++layer)
    active += static_cast<double>(deepseek.active_parameters(layer));
  EXPECT_NEAR(active / 1e9, 37.5, 0.5);
}

// Equations 1 to 4 of Korthikanti et al. (arXiv 2205.05198).
TEST(ModelCostsTest, ActivationsOfGptBlocks) {
  const ModelShape model = gpt(96, 12288, 96);
  const Machine machine = *find_gpu("a100");
  const double s = 2048, b = 2, h = 12288, a = 96;
  for (const double t : {1.0, 8.0}) {
    TrainingShape training = {.sequence = 2048, .microbatch_size = 2};
    training.tp = static_cast<int>(t);
    const auto saved = [&](bool parallel, Attention attention) {
      training.sequence_parallel = parallel;
      training.attention = attention;
      return model_costs(model, training, machine).layers[1][&Costs::activation_bytes];
    };
    EXPECT_DOUBLE_EQ(saved(false, Attention::kMaterialized),
                     s * b * h * (10 + 24 / t + 5 * a * s / (h * t)));
    EXPECT_DOUBLE_EQ(saved(true, Attention::kMaterialized), s * b * h / t * (34 + 5 * a * s / h));
    EXPECT_DOUBLE_EQ(saved(false, Attention::kFlash), s * b * h * (10 + 24 / t));
    EXPECT_DOUBLE_EQ(saved(true, Attention::kFlash), s * b * h * 34 / t);
  }
}

// Appendix A of the same: 72 b s l h^2 (1 + s / 6h + V / 12hl) per step.
TEST(ModelCostsTest, FlopsOfAStep) {
  const ModelShape model = gpt(96, 12288, 96);
  const double s = 2048, h = 12288, l = 96, v = 51200;
  const double expected = 72 * s * l * h * h * (1 + s / (6 * h) + v / (12 * h * l));
  EXPECT_NEAR(model_flops(model, 2048), expected, 1e-9 * expected);
}

// Of GPT's blocks the scores are s/(6h) of all else, by the same formula. Slice k attends to half
// of itself and to k others.
TEST(ModelCostsTest, LaterSlicesAttendToMore) {
  const double s = 2048, h = 12288, share = s / (6 * h) / (1 + s / (6 * h));
  const Costs costs =
      model_costs(gpt(96, 12288, 96), {.sequence = 2048, .slices = 4}, *find_gpu("h100"));
  ASSERT_EQ(costs.slice_scale.size(), 4U);
  const double parts[] = {1, 3, 5, 7};  // of 16
  for (size_t k = 0; k < 4; ++k)
    EXPECT_NEAR(costs.slice_scale[k], 1 - share + 4 * share * parts[k] / 16, 1e-12);
}

TEST(ModelCostsTest, LayersOfAModel) {
  const Machine machine = *find_gpu("h100");
  const Costs dense = model_costs(parse_config(kLlama8B), {.sequence = 8192}, machine);
  ASSERT_EQ(dense.layers.size(), 3U);
  EXPECT_EQ(dense.layers[1].count, 32);
  EXPECT_EQ(num_layers(dense), 34);
  EXPECT_EQ(dense.layers[0][&Costs::forward], 0);
  EXPECT_EQ(dense.layers[0][&Costs::parameter_bytes], 2.0 * 128256 * 4096);
  // 3 dense blocks, then 58 of experts.
  const Costs experts = model_costs(parse_config(kDeepSeekV3), {.sequence = 4096}, machine);
  ASSERT_EQ(experts.layers.size(), 4U);
  EXPECT_EQ(experts.layers[1].count, 3);
  EXPECT_EQ(experts.layers[2].count, 58);
  // A stage of them fits every check.
  ir::Diagnostics diagnostics;
  EXPECT_TRUE(check_costs(experts, {}, ir::Placement::loop(8, 8), 4, &diagnostics));
}

// Over PCIe 5, and over PCIe 4 in twice the time.
TEST(ModelCostsTest, OffloadsWhatABlockSaves) {
  Machine machine = *find_gpu("h100");
  const TrainingShape training = {.sequence = 8192};
  const LayerRun fast = model_costs(parse_config(kLlama8B), training, machine).layers[1];
  EXPECT_EQ(fast[&Costs::offload_bytes], fast[&Costs::activation_bytes]);
  EXPECT_DOUBLE_EQ(fast[&Costs::offload], 1e3 * fast[&Costs::offload_bytes] / 64e9);
  machine.host_bandwidth = find_gpu("a100")->host_bandwidth;
  const LayerRun slow = model_costs(parse_config(kLlama8B), training, machine).layers[1];
  EXPECT_DOUBLE_EQ(slow[&Costs::reload], 2 * fast[&Costs::reload]);
}

TEST(ModelCostsTest, WhatParallelismDivides) {
  const ModelShape model = parse_config(kMixtral);
  const Machine machine = *find_gpu("h100");
  TrainingShape training = {.sequence = 4096};
  const LayerRun alone = model_costs(model, training, machine).layers[1];
  training.tp = 4;
  training.dp = 8;
  const LayerRun shared = model_costs(model, training, machine).layers[1];
  EXPECT_DOUBLE_EQ(shared[&Costs::parameter_bytes], alone[&Costs::parameter_bytes] / 4);
  EXPECT_DOUBLE_EQ(shared[&Costs::optimizer_bytes], alone[&Costs::optimizer_bytes] / 32);
  EXPECT_DOUBLE_EQ(shared[&Costs::activation_bytes], alone[&Costs::activation_bytes] / 4);
  EXPECT_GT(shared[&Costs::reduce_grad], 0);
  EXPECT_EQ(shared[&Costs::unshard], 0);
  training.shard = Shard::kAll;
  training.ep = 8;
  const LayerRun split = model_costs(model, training, machine).layers[1];
  EXPECT_GT(split[&Costs::unshard], 0);
  // 8 experts of 3 matrices; one of them is left.
  const double experts = 3.0 * 4096 * 14336 * 2 / 4;
  EXPECT_DOUBLE_EQ(alone[&Costs::parameter_bytes] / 4 - split[&Costs::parameter_bytes],
                   7 * experts);
  training.recomputes = true;
  const LayerRun again = model_costs(model, training, machine).layers[1];
  EXPECT_DOUBLE_EQ(again[&Costs::backward_input],
                   split[&Costs::backward_input] + split[&Costs::forward]);
  EXPECT_EQ(again[&Costs::activation_bytes], 2.0 * 4096 * 4096 / 4);
}

TEST(ModelCostsTest, WrongConfigs) {
  const auto error_of = [](const std::string& text) -> std::string {
    try {
      parse_config(text);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of("[1]"), "expected a JSON object, got something else");
  EXPECT_EQ(error_of("{}"), "expected the field `model_type` with a name, got none");
  EXPECT_EQ(error_of(R"({"model_type": "llama", "num_hidden_layers": 2})"),
            "expected the field `hidden_size`, got none");
  EXPECT_EQ(error_of(R"({"model_type": "llama", "num_hidden_layers": "2"})"),
            "`num_hidden_layers`: expected a whole number, got `\"2\"`");
  EXPECT_EQ(error_of(R"({"model_type": "bert"})"),
            "`model_type`: expected one of llama, mistral, qwen2, qwen3, mixtral, qwen2_moe, "
            "qwen3_moe, deepseek_v2, deepseek_v3, gpt2, got `bert`");
}

}  // namespace
}  // namespace pipewright::schedule
