#ifndef PIPEWRIGHT_SCHEDULE_GRAPH_EDGE_TRANSFERS_H_
#define PIPEWRIGHT_SCHEDULE_GRAPH_EDGE_TRANSFERS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipewright/ir/action.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/tables.h"

namespace pipewright::schedule {

// The transfers of a program whose queues are one per peer and direction (ir::ChannelModel::kEdge),
// for a walk that posts the SENDs and RECVs of each row in order. There, the k-th SEND of an
// ordered pair of ranks and the k-th RECV wait for nothing but each other and the transfer before
// theirs. So a transfer takes place once both of its ends are posted, and no ChannelGraph is needed
// to find out that a program runs, and when each action does.
//
//   EdgeTransfers transfers(program);
//   const EdgeTransfers::End& end = transfers.end_of(part.kind(), instance);
//   if (transfers.awaits(end, part)) ...        // of a compute: its RECV is posted, its SEND is
//   not if (transfers.post(end, part, number) != EdgeTransfers::kNone) ...  // its other end was
//   posted if (!transfers.all_matched()) ...           // a swap, or an end without the other
//
// No SEND or RECV may be posted twice. Numbers of actions are those of ChannelGraph. For programs
// that fit(). 8 bytes per (stage, microbatch). For one thread.
class EdgeTransfers {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Whether a schedule has fewer than 2^30 actions.
  static bool fit(const ir::Schedule& schedule);

  explicit EdgeTransfers(const ir::Program& program);

  // The transfer that a kind of SEND or RECV at an instance of a stage is part of, or that brings
  // the input of a kind of compute.
  struct End {
    uint32_t flow = 0;  // two per receiving stage: outputs and gradients
    uint32_t pair =
        kNone;  // the ordered pair of ranks; kNone if there is no transfer between ranks
    uint32_t peer = kNone;  // of a SEND or RECV: the rank of the other end
  };
  const End& end_of(ir::ActionKind kind, int instance) const { return ends_.at(kind, instance); }

  // Posts a SEND or RECV. Returns the other end if that has been posted before, otherwise kNone.
  uint32_t post(const End& end, ir::ActionPart part, uint32_t number) {
    if (end.pair == kNone) {
      all_matched_ = false;
      return kNone;
    }
    const bool sends = ir::is_send(part.kind());
    uint32_t& cell = cells_[cell_index(end, part)];
    if (cell == 0) {
      cell = number | (sends ? kSent : kReceived);
      ++num_open_;
      return kNone;
    }
    --num_open_;
    const uint32_t partner = cell & kNumber;
    const uint32_t send = sends ? number : partner, receive = sends ? partner : number;
    Pair& pair = pairs_[end.pair];
    all_matched_ &= (send >= pair.next_send) & (receive >= pair.next_receive);
    pair = {send + 1, receive + 1};
    cell = kSent | kReceived | receive;
    return partner;
  }
  // Whether a SEND has been posted, but not its RECV.
  bool is_pending(const End& end, ir::ActionPart send) const {
    return end.pair != kNone && (cell_of(end, send) & (kSent | kReceived)) == kSent;
  }
  // Whether the RECV of an input of a compute has been posted, but not its SEND.
  bool awaits(const End& end, ir::ActionPart compute) const {
    return end.pair != kNone && (cell_of(end, compute) & (kSent | kReceived)) == kReceived;
  }
  // The RECV of a compute's input; kNone if it needs none, or if one end has not been posted.
  uint32_t receive_of(const End& end, ir::ActionPart compute) const {
    if (end.pair == kNone) return kNone;
    const uint32_t cell = cell_of(end, compute);
    return (cell & kSent) && (cell & kReceived) ? cell & kNumber : kNone;
  }
  size_t num_pairs() const { return pairs_.size(); }

  // Whether each SEND and RECV so far met its own other end, in the order of their pair of ranks.
  bool all_matched() const { return all_matched_ && num_open_ == 0; }

 private:
  // The bits of a cell: which ends of its transfer have been posted, and the number of that end, or
  // of the RECV if it is both.
  static constexpr uint32_t kSent = 1u << 31, kReceived = 1u << 30, kNumber = kReceived - 1;

  // The numbers after the last ones that met.
  struct Pair {
    uint32_t next_send = 0, next_receive = 0;
  };

  uint32_t cell_of(const End& end, ir::ActionPart part) const {
    return cells_[cell_index(end, part)];
  }
  size_t cell_index(const End& end, ir::ActionPart part) const {
    return end.flow * num_microbatches_ + static_cast<size_t>(part.microbatch());
  }

  size_t num_microbatches_;
  ir::StageKindTable<End> ends_;
  std::vector<uint32_t> cells_;  // by flow and microbatch
  std::vector<Pair> pairs_;
  size_t num_open_ = 0;  // transfers of which only one end is posted
  bool all_matched_ = true;
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_GRAPH_EDGE_TRANSFERS_H_
