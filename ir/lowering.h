#ifndef PIPEWRIGHT_IR_LOWERING_H_
#define PIPEWRIGHT_IR_LOWERING_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pipewright/ir/channel.h"

// The lowering policies of a schedule, as recorded in a .plan or JSON file: for example `residency:
// 2` or `channels: edge`. In a program they say how it was lowered; in a compute order, how to
// lower it, except that forward-only, merge-backward and split-backward describe the rows of both.
// An unset field is unknown; a CSV file records none of them. The list of policies is the table in
// lowering.cc; each has the name of its command-line flag. What each policy does is documented in
// pipewright/schedule/lowering.

namespace pipewright::ir {

// Which stage to reshard when the residency limit is reached and another stage is needed: PyTorch's
// rule, or the stage whose next use is farthest away (Belady).
enum class Eviction : uint8_t { kPytorch, kFarthest };
// Where to post each RECV: as early as PyTorch does; as late as is still free of deadlocks; or just
// before its use, except that the lower one of two ranks posts it before a SEND to the other
// (PyTorch's `defer_pp_recv`).
enum class Receives : uint8_t { kPytorch, kLatest, kParity };

// The version of PyTorch whose rules lowering follows. 2.15 awaits each SEND and REDUCE_GRAD,
// reshards the stage first that was unsharded first, and looks as far ahead as the residency.
// Versions from 2.12 to 2.14 read programs of 2.11.
enum class Torch : uint8_t { k2_11, k2_15 };
inline constexpr Torch kNewestTorch = Torch::k2_15;  // the default

// How far ahead of their use a rank unshards its stages, in different stages in use, counted from
// the next action: PyTorch's `unshard_lookahead` (pytorch#196706). In text: `3`, `2,3,4,4`, `full`,
// `auto`.
struct Lookahead {
  enum class Kind : uint8_t {
    kDistances,  // one distance for all ranks, or one per rank
    kFull,       // the residency
    kAuto,       // min(rank + 2, residency): what fits into the rank's start-up bubble
  };

  // The same distance on all ranks; implicit, so that a number is a lookahead.
  Lookahead(int distance) : distances{distance} {}  // NOLINT(google-explicit-constructor)
  explicit Lookahead(std::vector<int> per_rank) : distances(std::move(per_rank)) {}
  explicit Lookahead(Kind of_kind) : kind(of_kind) {}

  // The distance of a rank. A list of distances must be of length 1 or have an entry for the rank.
  int of_rank(size_t rank, int residency) const;

  Kind kind = Kind::kDistances;
  std::vector<int> distances;  // each >= 1; empty for kFull and kAuto

  friend bool operator==(const Lookahead&, const Lookahead&) = default;
};

struct Lowering {
  std::optional<Torch> torch = {};
  std::optional<bool> forward_only = {};    // B, I and W are left out
  std::optional<bool> merge_backward = {};  // adjacent I and W are merged into B
  std::optional<bool> split_backward = {};  // each B is split into I and W
  std::optional<int> residency = {};        // >= 1: most stages of a rank unsharded at a time
  std::optional<Lookahead> lookahead = {};  // stages unsharded ahead of their use
  std::optional<Eviction> evict = {};
  std::optional<Receives> receives = {};
  std::optional<int> reduce_every = {};             // >= 1: microbatches per REDUCE_GRAD of a stage
  std::optional<bool> defer_reduce_grad_wait = {};  // to the next REDUCE_GRAD of the rank
  std::optional<int> max_outstanding_sends = {};    // >= 1: SENDs of a rank pending at a time
  std::optional<ChannelModel> channels = {};
  std::optional<ChannelCapacity> capacity = {};
  std::optional<bool> weight_free_w = {};  // W may run while its stage is resharded

  friend bool operator==(const Lowering&, const Lowering&) = default;
};

// What the value of a policy is.
enum class PolicyKind : uint8_t {
  kFlag,    // true or false
  kCount,   // an integer, or one of the choices
  kCounts,  // the same, or one integer per rank
  kChoice,  // one of the choices
};
struct PolicyValues {
  PolicyKind kind;
  std::span<const std::string_view> choices = {};  // words: "pytorch", "farthest"
  int least = 1;                                   // of integers
};

// The step that a policy affects.
enum class PolicyStep : uint8_t {
  kTransform,  // a pass on compute orders
  kLower,      // a pass from compute orders to programs
  kChannels,   // verification and simulation of programs
};

// The text form of one field of Lowering, for files, flags and help.
struct LoweringPolicy {
  std::string_view name;  // "reduce-every"
  PolicyStep step;
  PolicyValues values;
  std::string_view meaning;  // one line, for help
  // Returns the value as text, or nullopt if it is unset.
  std::optional<std::string> (*get)(const Lowering&);
  // Sets the value from text. Returns false and sets nothing if the text is not one of `values`.
  bool (*set)(Lowering&, std::string_view);
};

// The policies of `first`, completed by those of `second` that `first` leaves unset.
Lowering overlay(Lowering first, const Lowering& second);

// All policies, in the order in which files list them. Constant data; any thread.
std::span<const LoweringPolicy> lowering_policies();
// The policy of that name, or null.
const LoweringPolicy* find_lowering_policy(std::string_view name);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_LOWERING_H_
