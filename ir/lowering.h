#ifndef PIPEWRIGHT_IR_LOWERING_H_
#define PIPEWRIGHT_IR_LOWERING_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "pipewright/ir/channel.h"

// The policies that a schedule was lowered with, as a .plan or JSON file records them. What is not
// set is not known: a CSV, for one, records nothing. The list of policies is the table in
// lowering.cc; names are those of the flags.

namespace pipewright::ir {

// Which stage's parameters go when another stage's are needed.
enum class Eviction : uint8_t { kPytorch, kFarthest };
// Where a RECV is posted.
enum class Receives : uint8_t { kPytorch, kLatest };

struct Lowering {
  std::optional<bool> forward_only = {};    // B, I and W left out
  std::optional<bool> merge_backward = {};  // adjacent I and W made one B
  std::optional<bool> split_backward = {};  // each B made an I and a W
  std::optional<int> residency = {};        // stages unsharded at a time, from 1
  std::optional<int> lookahead = {};        // stages unsharded ahead of their use, from 1
  std::optional<Eviction> evict = {};
  std::optional<Receives> receives = {};
  std::optional<int> reduce_every = {};  // microbatches between two REDUCE_GRADs of a stage, from 1
  std::optional<ChannelModel> channels = {};
  std::optional<ChannelCapacity> capacity = {};
  std::optional<bool> weight_free_w = {};  // W may stand on a resharded stage

  friend bool operator==(const Lowering&, const Lowering&) = default;
};

struct LoweringPolicy {
  std::string_view name;     // "reduce-every"
  std::string_view values;   // "K", "pytorch|farthest", "true|false"
  std::string_view meaning;  // one line for people
  // The value as text; none where it is not set.
  std::optional<std::string> (*get)(const Lowering&);
  // Sets the value from text. False, with nothing set, for text that is not one of `values`.
  bool (*set)(Lowering&, std::string_view);
};

// All policies, in the order in which files list them.
std::span<const LoweringPolicy> lowering_policies();
// None if there is no policy of that name.
const LoweringPolicy* find_lowering_policy(std::string_view name);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_LOWERING_H_
