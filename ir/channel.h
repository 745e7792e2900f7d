#ifndef PIPEWRIGHT_IR_CHANNEL_H_
#define PIPEWRIGHT_IR_CHANNEL_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

// The channel model: what a SEND and a RECV may wait for. Verifier, simulator and communicators
// mean the same by it.
//
//  * An action is posted when every compute action before it in its rank's list has ended, so
//    that a proof holds for hosts that run compute themselves. Posting holds nothing; a compute
//    waits for its own RECVs only.
//  * A queue serves its operations in the order of posting. A transfer needs its SEND and its
//    RECV at the head of their queues (capacity 0: rendezvous). With capacity n, per ordered pair
//    of ranks, up to n SENDs may finish before their RECVs. Every SEND and RECV must finish.
//  * There are no tags (NCCL has none): the k-th SEND of an ordered pair of ranks meets its k-th
//    RECV, whatever their names. A pair with different names is a swap, an error of its own.
//
// Which operations share a queue is the model, from the strictest to the freest:
//
//   rank   one queue a rank: all peers, both directions
//   peer   at each rank one queue a peer, both directions
//   edge   at each rank one queue a peer and direction
//
// In V shapes, and in looped ones on 2 ranks, an edge carries F and B mixed.

namespace pipewright::ir {

enum class ChannelModel : uint8_t { kRank, kPeer, kEdge };

struct ChannelModelInfo {
  ChannelModel model;
  std::string_view name;
  std::string_view meaning;
};

// All models, strictest first.
std::span<const ChannelModelInfo> channel_models();
std::string_view name(ChannelModel model);

// How many SENDs of an ordered pair of ranks may finish before their RECVs: a count from 0, or
// kUnboundedCapacity.
using ChannelCapacity = uint32_t;
inline constexpr ChannelCapacity kUnboundedCapacity = UINT32_MAX;

// What holds where nobody says otherwise.
inline constexpr ChannelModel kDefaultChannels = ChannelModel::kEdge;
inline constexpr ChannelCapacity kDefaultCapacity = 0;

// "0", "7", "inf".
std::string to_string_capacity(ChannelCapacity capacity);
// The inverse; none for anything else.
std::optional<ChannelCapacity> parse_capacity(std::string_view text);
// "channels edge, capacity 0": how messages name the model that a result holds for.
std::string describe_channels(ChannelModel model, ChannelCapacity capacity);

// Which of its rank's queues a SEND to `peer` or a RECV from it goes to. Two operations of one rank
// share a queue if and only if the indices are equal. Below queues_per_rank().
uint32_t queue_index(ChannelModel model, uint32_t peer, bool is_send);
uint32_t queues_per_rank(ChannelModel model, uint32_t num_ranks);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_CHANNEL_H_
