#include "pipewright/ir/lowering.h"

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>

#include "pipewright/ir/parse_number.h"

namespace pipewright::ir {
namespace {

constexpr std::string_view kTorchNames[] = {"2.11", "2.15"};
constexpr std::string_view kEvictionNames[] = {"pytorch", "farthest"};
constexpr std::string_view kReceivesNames[] = {"pytorch", "latest", "parity"};
constexpr auto kChannelNames = [] {
  std::array<std::string_view, std::size(kChannelModels)> names;
  std::ranges::transform(kChannelModels, names.begin(), &ChannelModelInfo::name);
  return names;
}();
constexpr std::string_view kCapacityNames[] = {"inf"};
constexpr std::string_view kLookaheadNames[] = {"full", "auto"};

// The values of each type of field. The choices of an enum are in the order of its values.
template <typename Value>
using Type = std::type_identity<Value>;
constexpr PolicyValues values_of(Type<bool>) { return {PolicyKind::kFlag}; }
constexpr PolicyValues values_of(Type<int>) { return {PolicyKind::kCount}; }
constexpr PolicyValues values_of(Type<ChannelCapacity>) {
  return {PolicyKind::kCount, kCapacityNames, 0};
}
constexpr PolicyValues values_of(Type<Lookahead>) { return {PolicyKind::kCounts, kLookaheadNames}; }
constexpr PolicyValues values_of(Type<Torch>) { return {PolicyKind::kChoice, kTorchNames}; }
constexpr PolicyValues values_of(Type<Eviction>) { return {PolicyKind::kChoice, kEvictionNames}; }
constexpr PolicyValues values_of(Type<Receives>) { return {PolicyKind::kChoice, kReceivesNames}; }
constexpr PolicyValues values_of(Type<ChannelModel>) {
  return {PolicyKind::kChoice, kChannelNames};
}

// The text form of each type of value; from_text is the inverse of to_text.
std::string to_text(bool value) { return value ? "true" : "false"; }
std::string to_text(int value) { return std::to_string(value); }
std::string to_text(ChannelCapacity value) { return to_string_capacity(value); }
std::string to_text(const Lookahead& value) {
  switch (value.kind) {
    case Lookahead::Kind::kFull:
      return "full";
    case Lookahead::Kind::kAuto:
      return "auto";
    case Lookahead::Kind::kDistances:
      break;
  }
  std::string text;
  for (const int distance : value.distances)
    text += (text.empty() ? "" : ",") + std::to_string(distance);
  return text;
}
template <typename Enum>
requires std::is_enum_v<Enum> std::string to_text(Enum value) {
  return std::string(values_of(Type<Enum>()).choices[static_cast<size_t>(value)]);
}

void from_text(std::string_view text, std::optional<bool>* value) {
  if (text == "true") *value = true;
  if (text == "false") *value = false;
}
void from_text(std::string_view text, std::optional<int>* value) {
  *value = parse_positive(text, std::numeric_limits<int>::max());
}
void from_text(std::string_view text, std::optional<ChannelCapacity>* value) {
  *value = parse_capacity(text);
}
void from_text(std::string_view text, std::optional<Lookahead>* value) {
  if (text == "full" || text == "auto") {
    *value = Lookahead(text == "full" ? Lookahead::Kind::kFull : Lookahead::Kind::kAuto);
    return;
  }
  std::vector<int> distances;
  for (bool more = true; more;) {
    const size_t comma = std::min(text.find(','), text.size());
    std::optional<int> distance;
    from_text(text.substr(0, comma), &distance);
    if (!distance) return;
    distances.push_back(*distance);
    more = comma < text.size();
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  *value = Lookahead(std::move(distances));
}
template <typename Enum>
requires std::is_enum_v<Enum>
void from_text(std::string_view text, std::optional<Enum>* value) {
  const std::span<const std::string_view> choices = values_of(Type<Enum>()).choices;
  const auto found = std::ranges::find(choices, text);
  if (found != choices.end()) *value = static_cast<Enum>(found - choices.begin());
}

template <auto member>
std::optional<std::string> get(const Lowering& lowering) {
  const auto& value = lowering.*member;
  return value ? std::optional(to_text(*value)) : std::nullopt;
}

template <auto member>
bool set(Lowering& lowering, std::string_view text) {
  std::remove_reference_t<decltype(lowering.*member)> value;
  from_text(text, &value);
  if (value) lowering.*member = value;
  return value.has_value();
}

// The type of the field determines the values.
template <auto member>
constexpr LoweringPolicy policy(std::string_view name, PolicyStep step, std::string_view meaning) {
  using Value = typename std::remove_cvref_t<decltype(Lowering().*member)>::value_type;
  return {name, step, values_of(Type<Value>()), meaning, get<member>, set<member>};
}

using enum PolicyStep;
constexpr LoweringPolicy kPolicies[] = {
    policy<&Lowering::torch>("torch", kLower, "the PyTorch whose rules the program follows"),
    policy<&Lowering::forward_only>("forward-only", kTransform, "leave out B, I and W"),
    policy<&Lowering::merge_backward>("merge-backward", kTransform,
                                      "merge each adjacent I and W into a B"),
    policy<&Lowering::split_backward>("split-backward", kTransform,
                                      "split each B into an I and a W"),
    policy<&Lowering::residency>("residency", kLower,
                                 "most stages of a rank that are unsharded at a time"),
    policy<&Lowering::lookahead>("lookahead", kLower, "stages to unshard ahead of their use"),
    policy<&Lowering::evict>("evict", kLower, "which stage to reshard to make room"),
    policy<&Lowering::receives>("receives", kLower, "where to post each RECV"),
    policy<&Lowering::reduce_every>("reduce-every", kLower,
                                    "microbatches per REDUCE_GRAD of a stage"),
    policy<&Lowering::defer_reduce_grad_wait>(
        "defer-reduce-grad-wait", kLower,
        "await a REDUCE_GRAD before the next one, not at once (torch 2.15)"),
    policy<&Lowering::max_outstanding_sends>(
        "max-outstanding-sends", kLower,
        "most SENDs of a rank that are pending at a time (torch 2.15)"),
    policy<&Lowering::channels>("channels", kChannels, "which SENDs and RECVs share a queue"),
    policy<&Lowering::capacity>("capacity", kChannels,
                                "SENDs that may complete before their RECVs"),
    policy<&Lowering::weight_free_w>("weight-free-w", kChannels,
                                     "allow W while its stage is resharded"),
};

}  // namespace

int Lookahead::of_rank(size_t rank, int residency) const {
  switch (kind) {
    case Kind::kFull:
      return residency;
    case Kind::kAuto:
      return static_cast<int>(std::min(rank + 2, static_cast<size_t>(residency)));
    case Kind::kDistances:
      break;
  }
  return distances.size() == 1 ? distances[0] : distances[rank];
}

Lowering overlay(Lowering first, const Lowering& second) {
  for (const LoweringPolicy& policy : kPolicies) {
    if (policy.get(first)) continue;
    if (const auto value = policy.get(second)) policy.set(first, *value);
  }
  return first;
}

std::span<const LoweringPolicy> lowering_policies() { return kPolicies; }

const LoweringPolicy* find_lowering_policy(std::string_view name) {
  for (const LoweringPolicy& row : kPolicies) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace pipewright::ir
