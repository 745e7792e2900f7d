#include "pipewright/ir/lowering.h"

#include <algorithm>
#include <limits>

#include "pipewright/ir/parse_number.h"

namespace pipewright::ir {
namespace {

// The text form of each type of value; from_text is the inverse of to_text.
std::string to_text(bool value) { return value ? "true" : "false"; }
std::string to_text(int value) { return std::to_string(value); }
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
std::string to_text(Torch value) { return value == Torch::k2_11 ? "2.11" : "2.15"; }
std::string to_text(Eviction value) { return value == Eviction::kPytorch ? "pytorch" : "farthest"; }
std::string to_text(Receives value) {
  return value == Receives::kPytorch ? "pytorch" : value == Receives::kLatest ? "latest" : "parity";
}
std::string to_text(ChannelModel value) { return std::string(name(value)); }
std::string to_text(ChannelCapacity value) { return to_string_capacity(value); }

void from_text(std::string_view text, std::optional<bool>* value) {
  if (text == "true") *value = true;
  if (text == "false") *value = false;
}
void from_text(std::string_view text, std::optional<int>* value) {
  *value = parse_positive(text, std::numeric_limits<int>::max());
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
void from_text(std::string_view text, std::optional<Torch>* value) {
  for (const Torch one : {Torch::k2_11, Torch::k2_15}) {
    if (text == to_text(one)) *value = one;
  }
}
void from_text(std::string_view text, std::optional<Eviction>* value) {
  for (const Eviction one : {Eviction::kPytorch, Eviction::kFarthest}) {
    if (text == to_text(one)) *value = one;
  }
}
void from_text(std::string_view text, std::optional<Receives>* value) {
  for (const Receives one : {Receives::kPytorch, Receives::kLatest, Receives::kParity}) {
    if (text == to_text(one)) *value = one;
  }
}
void from_text(std::string_view text, std::optional<ChannelModel>* value) {
  for (const ChannelModelInfo& row : channel_models()) {
    if (text == row.name) *value = row.model;
  }
}
void from_text(std::string_view text, std::optional<ChannelCapacity>* value) {
  *value = parse_capacity(text);
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

template <auto member>
constexpr LoweringPolicy policy(std::string_view name, std::string_view values,
                                std::string_view meaning) {
  return {name, values, meaning, get<member>, set<member>};
}

constexpr LoweringPolicy kPolicies[] = {
    policy<&Lowering::torch>("torch", "2.11|2.15", "the PyTorch whose rules the program follows"),
    policy<&Lowering::forward_only>("forward-only", "true|false", "leave out B, I and W"),
    policy<&Lowering::merge_backward>("merge-backward", "true|false",
                                      "merge each adjacent I and W into a B"),
    policy<&Lowering::split_backward>("split-backward", "true|false",
                                      "split each B into an I and a W"),
    policy<&Lowering::residency>("residency", "K",
                                 "most stages of a rank that are unsharded at a time"),
    policy<&Lowering::lookahead>("lookahead", "K|full|auto|one integer per rank",
                                 "stages to unshard ahead of their use"),
    policy<&Lowering::evict>("evict", "pytorch|farthest", "which stage to reshard to make room"),
    policy<&Lowering::receives>("receives", "pytorch|latest|parity", "where to post each RECV"),
    policy<&Lowering::reduce_every>("reduce-every", "K", "microbatches per REDUCE_GRAD of a stage"),
    policy<&Lowering::defer_reduce_grad_wait>(
        "defer-reduce-grad-wait", "true|false",
        "await a REDUCE_GRAD before the next one, not at once (torch 2.15)"),
    policy<&Lowering::max_outstanding_sends>("max-outstanding-sends", "K",
                                             "most SENDs of a rank that are pending at a time "
                                             "(torch 2.15)"),
    policy<&Lowering::channels>("channels", "rank|peer|edge",
                                "which SENDs and RECVs share a queue"),
    policy<&Lowering::capacity>("capacity", "N|inf", "SENDs that may complete before their RECVs"),
    policy<&Lowering::weight_free_w>("weight-free-w", "true|false",
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
  for (const LoweringPolicy& policy : lowering_policies()) {
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
