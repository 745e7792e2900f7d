#include "pipewright/schedule/model/config_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "pipewright/ir/diagnostic.h"

namespace pipewright::schedule {
namespace {

using Json = nlohmann::json;

class Config {
 public:
  explicit Config(const Json& json) : json_(json) {}

  std::optional<int64_t> find(const char* key) const {
    const auto entry = json_.find(key);
    if (entry == json_.end() || entry->is_null()) return std::nullopt;
    if (!entry->is_number_integer() || entry->get<int64_t>() < 0 ||
        entry->get<int64_t>() > 1'000'000'000)
      throw std::invalid_argument(
          fmt::format("`{}`: expected a whole number, got {}", key, ir::backticked(entry->dump())));
    return entry->get<int64_t>();
  }
  int64_t get(const char* key, int64_t otherwise) const { return find(key).value_or(otherwise); }
  int64_t required(const char* key) const {
    const std::optional<int64_t> value = find(key);
    if (!value) throw std::invalid_argument(fmt::format("expected the field `{}`, got none", key));
    if (*value == 0)
      throw std::invalid_argument(fmt::format("`{}`: expected a whole number from 1, got 0", key));
    return *value;
  }
  bool flag(const char* key, bool otherwise) const {
    const auto entry = json_.find(key);
    if (entry == json_.end() || entry->is_null()) return otherwise;
    if (!entry->is_boolean())
      throw std::invalid_argument(
          fmt::format("`{}`: expected true or false, got {}", key, ir::backticked(entry->dump())));
    return entry->get<bool>();
  }

 private:
  const Json& json_;
};

ModelShape gpt2(const Config& config) {
  ModelShape model;
  model.layers = static_cast<int>(config.required("n_layer"));
  model.hidden = config.required("n_embd");
  model.heads = model.kv_heads = config.required("n_head");
  model.head_size = model.hidden / model.heads;
  model.ffn = config.get("n_inner", 4 * model.hidden);
  model.is_gated = false;
  model.has_dropout = true;
  model.vocabulary = config.required("vocab_size");
  model.positions = config.get("n_positions", config.get("n_ctx", 1024));
  model.has_tied_embeddings = config.flag("tie_word_embeddings", true);
  return model;
}

ModelShape llama(const Config& config) {
  ModelShape model;
  model.layers = static_cast<int>(config.required("num_hidden_layers"));
  model.hidden = config.required("hidden_size");
  model.heads = config.required("num_attention_heads");
  model.kv_heads = config.get("num_key_value_heads", model.heads);
  model.head_size = config.get("head_dim", model.hidden / model.heads);
  model.ffn = config.required("intermediate_size");
  model.vocabulary = config.required("vocab_size");
  model.has_tied_embeddings = config.flag("tie_word_embeddings", false);
  return model;
}

ModelShape mixtral(const Config& config) {
  ModelShape model = llama(config);
  model.experts = config.required("num_local_experts");
  model.experts_per_token = config.required("num_experts_per_tok");
  model.expert_ffn = model.ffn;
  return model;
}

ModelShape qwen_moe(const Config& config) {
  ModelShape model = llama(config);
  model.experts = config.required("num_experts");
  model.experts_per_token = config.required("num_experts_per_tok");
  model.expert_ffn = config.required("moe_intermediate_size");
  model.shared_ffn = config.get("shared_expert_intermediate_size", 0);
  return model;
}

ModelShape deepseek(const Config& config) {
  ModelShape model = llama(config);
  model.experts = config.required("n_routed_experts");
  model.experts_per_token = config.required("num_experts_per_tok");
  model.expert_ffn = config.required("moe_intermediate_size");
  model.shared_ffn = config.get("n_shared_experts", 0) * model.expert_ffn;
  model.dense_layers = static_cast<int>(config.get("first_k_dense_replace", 0));
  model.q_rank = config.get("q_lora_rank", 0);
  model.kv_rank = config.required("kv_lora_rank");
  model.rope_size = config.required("qk_rope_head_dim");
  model.head_size = model.rope_size + config.required("qk_nope_head_dim");
  model.value_size = config.required("v_head_dim");
  return model;
}

struct Architecture {
  std::string_view name;
  ModelShape (*read)(const Config&);
};
constexpr Architecture kArchitectures[] = {
    {"llama", llama},        {"mistral", llama},        {"qwen2", llama},
    {"qwen3", llama},        {"mixtral", mixtral},      {"qwen2_moe", qwen_moe},
    {"qwen3_moe", qwen_moe}, {"deepseek_v2", deepseek}, {"deepseek_v3", deepseek},
    {"gpt2", gpt2},
};

}  // namespace

std::vector<std::string_view> known_architectures() {
  std::vector<std::string_view> names;
  for (const Architecture& one : kArchitectures) names.push_back(one.name);
  return names;
}

ModelShape parse_config(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw std::invalid_argument("expected a JSON object, got something else");
  const auto type = json.find("model_type");
  if (type == json.end() || !type->is_string())
    throw std::invalid_argument("expected the field `model_type` with a name, got none");
  const auto name = type->get<std::string>();
  const auto known = std::ranges::find(kArchitectures, name, &Architecture::name);
  if (known == std::end(kArchitectures))
    throw std::invalid_argument(fmt::format("`model_type`: expected one of {}, got {}",
                                            fmt::join(known_architectures(), ", "),
                                            ir::backticked(name)));
  ModelShape model = known->read(Config(json));
  model.architecture = name;
  return model;
}

}  // namespace pipewright::schedule
