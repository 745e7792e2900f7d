#ifndef PIPEWRIGHT_IR_CHANNEL_H_
#define PIPEWRIGHT_IR_CHANNEL_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

// The channel model: when a SEND or RECV can complete. The verifier, the simulator and the
// executor's communicators all implement these rules. Whether a program deadlocks depends on the
// model: the same program can run with one communicator per direction and hang with one per rank.
//
//  * Posting. An action is posted when every compute action and WAIT before it in its rank's list
//    has ended. (Hosts may run compute synchronously; a proof then holds for them as well.) Posting
//    takes no time and never blocks. A compute action waits for its own RECVs only, a WAIT for its
//    own SEND or REDUCE_GRAD.
//  * Queues. A queue serves its operations in posting order. With capacity 0 (rendezvous) a
//    transfer takes place when its SEND and its RECV are both at the head of their queues. With
//    capacity n, up to n SENDs per ordered pair of ranks may complete before their RECVs. Every
//    SEND and RECV must complete eventually.
//  * Pairing. There are no tags (NCCL has none): for each ordered pair of ranks, the k-th SEND
//    meets the k-th RECV, whatever their names. A pair whose names differ is a separate error (a
//    swap, PW041).
//
// The models differ in which operations share a queue. From strictest to most permissive:
//
//   rank   one queue per rank: all peers, both directions
//   peer   one queue per peer at each rank: both directions
//   edge   one queue per peer and direction at each rank
//
// Example, capacity 0. Rank 0 lists 0SEND_F1 before 0RECV_B0; rank 1 lists 1SEND_B0 before
// 1RECV_F1:
//
//   peer   deadlock: each rank's queue for the other has a SEND at its head, and neither RECV can
//          reach the head of its queue
//   edge   runs: the two directions have separate queues
//
// `edge` is what PyTorch's directed pairwise process groups provide (pytorch#196666). Note that in
// V placements, and in looped ones on 2 ranks, one edge carries both activations and gradients.

namespace pipewright::ir {

enum class ChannelModel : uint8_t { kRank, kPeer, kEdge };

struct ChannelModelInfo {
  ChannelModel model;
  std::string_view name;     // "edge"
  std::string_view meaning;  // one line, for help
};

// All models, strictest first.
inline constexpr ChannelModelInfo kChannelModels[] = {
    {ChannelModel::kRank, "rank", "one queue per rank: all peers, both directions"},
    {ChannelModel::kPeer, "peer", "one queue per peer at each rank: both directions"},
    {ChannelModel::kEdge, "edge", "one queue per peer and direction at each rank"},
};
constexpr std::span<const ChannelModelInfo> channel_models() { return kChannelModels; }
std::string_view name(ChannelModel model);

// How many SENDs per ordered pair of ranks may complete before their RECVs: 0 or more, or
// kUnboundedCapacity.
using ChannelCapacity = uint32_t;
inline constexpr ChannelCapacity kUnboundedCapacity = UINT32_MAX;

// The defaults of the library and of the command line.
inline constexpr ChannelModel kDefaultChannels = ChannelModel::kEdge;
inline constexpr ChannelCapacity kDefaultCapacity = 0;

// "0", "7", "inf".
std::string to_string_capacity(ChannelCapacity capacity);
// The inverse of to_string_capacity, or nullopt.
std::optional<ChannelCapacity> parse_capacity(std::string_view text);
// "channels edge, capacity 0": how messages name the model that a result holds for.
std::string describe_channels(ChannelModel model, ChannelCapacity capacity);

// The queue of a SEND to `peer` or a RECV from `peer`, as an index in [0, queues_per_rank()). Two
// operations of one rank share a queue if and only if their indices are equal.
uint32_t queue_index(ChannelModel model, uint32_t peer, bool is_send);
uint32_t queues_per_rank(ChannelModel model, uint32_t num_ranks);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_CHANNEL_H_
