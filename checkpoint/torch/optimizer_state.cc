#include "pipewright/checkpoint/torch/optimizer_state.h"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <array>
#include <charconv>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace pipewright::checkpoint {
namespace {

constexpr std::array<std::pair<at::ScalarType, DType>, 15> kTypes = {{
    {at::kBool, DType::kBool},
    {at::kByte, DType::kU8},
    {at::kChar, DType::kI8},
    {at::kUInt16, DType::kU16},
    {at::kShort, DType::kI16},
    {at::kUInt32, DType::kU32},
    {at::kInt, DType::kI32},
    {at::kUInt64, DType::kU64},
    {at::kLong, DType::kI64},
    {at::kHalf, DType::kF16},
    {at::kBFloat16, DType::kBF16},
    {at::kFloat, DType::kF32},
    {at::kDouble, DType::kF64},
    {at::kFloat8_e4m3fn, DType::kF8E4M3},
    {at::kFloat8_e5m2, DType::kF8E5M2},
}};

}  // namespace

DType stored_dtype(const at::Tensor& tensor, const std::string& name) {
  for (const auto& [scalar, dtype] : kTypes) {
    if (tensor.scalar_type() == scalar) return dtype;
  }
  throw std::invalid_argument(
      c10::str("checkpoint: tensor `", name, "`: cannot store a tensor of ", tensor.scalar_type()));
}

namespace {

constexpr const char* kDigits = "0123456789abcdef";

}  // namespace

std::string generator_state(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  const at::Tensor state = generator.get_state();
  const auto* bytes = state.const_data_ptr<uint8_t>();
  std::string text;
  for (int64_t i = 0; i < state.numel(); ++i) {
    text += kDigits[bytes[i] / 16];
    text += kDigits[bytes[i] % 16];
  }
  return text;
}

void set_generator_state(at::Generator generator, const std::string& text) {
  const std::lock_guard lock(generator.mutex());
  const int64_t expected = generator.get_state().numel();
  if (text.size() != 2 * static_cast<size_t>(expected))
    throw std::invalid_argument("state of a generator: expected " + std::to_string(2 * expected) +
                                " hexadecimal digits, got " + std::to_string(text.size()));
  const at::Tensor state = at::empty({expected}, at::kByte);
  auto* bytes = state.data_ptr<uint8_t>();
  for (int64_t i = 0; i < expected; ++i) {
    const char* digits = text.data() + 2 * i;
    const auto [stop, error] = std::from_chars(digits, digits + 2, bytes[i], 16);
    if (error != std::errc() || stop != digits + 2)
      throw std::invalid_argument("state of a generator: expected hexadecimal digits");
  }
  generator.set_state(state);
}

namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

// The shortest text that is read back as the same number.
std::string text_of(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}
std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(const std::tuple<double, double>& values) {
  return text_of(std::get<0>(values)) + "," + text_of(std::get<1>(values));
}

bool parse(const std::string& text, double& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}
bool parse(const std::string& text, bool& value) {
  value = text == "true";
  return value || text == "false";
}
bool parse(const std::string& text, std::tuple<double, double>& values) {
  const size_t comma = std::min(text.find(','), text.size());
  return comma < text.size() && parse(text.substr(0, comma), std::get<0>(values)) &&
         parse(text.substr(comma + 1), std::get<1>(values));
}

// Visitors of options, which list them by name and value.
struct Writer {
  GroupOptions texts = {};
  template <typename Value>
  void operator()(const char* name, const Value& value) {
    texts.emplace(name, text_of(value));
  }
};
struct Reader {
  const GroupOptions& texts;
  template <typename Value>
  void operator()(const char* name, Value& value) {
    const auto found = texts.find(name);
    if (found == texts.end()) return;
    if (!parse(found->second, value))
      throw std::invalid_argument(c10::str("option `", name, "` of the optimizer: expected a ",
                                           "value like `", text_of(value), "`, got `",
                                           found->second, "`"));
  }
};

template <typename Options, typename Visitor>
void visit_adam(Options& options, Visitor& visit) {
  visit("lr", options.lr());
  visit("betas", options.betas());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("amsgrad", options.amsgrad());
}
template <typename Options, typename Visitor>
void visit_sgd(Options& options, Visitor& visit) {
  visit("lr", options.lr());
  visit("momentum", options.momentum());
  visit("dampening", options.dampening());
  visit("weight_decay", options.weight_decay());
  visit("nesterov", options.nesterov());
}

constexpr int64_t kMaxStep = int64_t{1} << 24;  // larger integers are not all floats

// Adam and AdamW, which differ in nothing here but their types.
template <typename Options, typename State>
class AdamKind final : public OptimizerKind {
 public:
  explicit AdamKind(std::string name) : name_(std::move(name)) {}
  std::string name() const override { return name_; }

  std::vector<std::string> keys(const OptimizerOptions& options) const override {
    std::vector<std::string> keys = {"exp_avg", "exp_avg_sq", "step"};
    if (static_cast<const Options&>(options).amsgrad()) keys.emplace_back("max_exp_avg_sq");
    return keys;
  }
  ParamState tensors(const OptimizerParamState& state) const override {
    const auto& adam = static_cast<const State&>(state);
    if (adam.step() > kMaxStep)
      throw std::invalid_argument(c10::str("the optimizer's count of steps: expected at most ",
                                           kMaxStep, ", which a float can store, got ",
                                           adam.step()));
    ParamState tensors = {{"exp_avg", adam.exp_avg()},
                          {"exp_avg_sq", adam.exp_avg_sq()},
                          {"step", at::full({}, static_cast<double>(adam.step()), at::kFloat)}};
    if (adam.max_exp_avg_sq().defined()) tensors.emplace("max_exp_avg_sq", adam.max_exp_avg_sq());
    return tensors;
  }
  std::unique_ptr<OptimizerParamState> state(const ParamState& tensors) const override {
    auto adam = std::make_unique<State>();
    adam->step(static_cast<int64_t>(tensors.at("step").item<double>()));
    adam->exp_avg(tensors.at("exp_avg"));
    adam->exp_avg_sq(tensors.at("exp_avg_sq"));
    if (tensors.contains("max_exp_avg_sq")) adam->max_exp_avg_sq(tensors.at("max_exp_avg_sq"));
    return adam;
  }
  GroupOptions options(const OptimizerOptions& options) const override {
    Writer writer;
    visit_adam(static_cast<const Options&>(options), writer);
    return writer.texts;
  }
  void set_options(OptimizerOptions& options, const GroupOptions& texts) const override {
    Reader reader{texts};
    visit_adam(static_cast<Options&>(options), reader);
  }

 private:
  std::string name_;
};

class SgdKind final : public OptimizerKind {
 public:
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;

  std::string name() const override { return "SGD"; }
  std::vector<std::string> keys(const OptimizerOptions& options) const override {
    if (static_cast<const Options&>(options).momentum() == 0) return {};
    return {"momentum_buffer"};
  }
  ParamState tensors(const OptimizerParamState& state) const override {
    return {{"momentum_buffer", static_cast<const State&>(state).momentum_buffer()}};
  }
  std::unique_ptr<OptimizerParamState> state(const ParamState& tensors) const override {
    auto sgd = std::make_unique<State>();
    sgd->momentum_buffer(tensors.at("momentum_buffer"));
    return sgd;
  }
  GroupOptions options(const OptimizerOptions& options) const override {
    Writer writer;
    visit_sgd(static_cast<const Options&>(options), writer);
    return writer.texts;
  }
  void set_options(OptimizerOptions& options, const GroupOptions& texts) const override {
    Reader reader{texts};
    visit_sgd(static_cast<Options&>(options), reader);
  }
};

}  // namespace

const OptimizerKind& kind_of(const torch::optim::Optimizer& optimizer) {
  static const AdamKind<torch::optim::AdamWOptions, torch::optim::AdamWParamState> adamw("AdamW");
  static const AdamKind<torch::optim::AdamOptions, torch::optim::AdamParamState> adam("Adam");
  static const SgdKind sgd;
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer)) return adamw;
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer)) return adam;
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer)) return sgd;
  throw std::invalid_argument("checkpoints of optimizers: expected AdamW, Adam or SGD");
}

}  // namespace pipewright::checkpoint
