#ifndef PIPEWRIGHT_SCHEDULE_CHANNEL_RUN_H_
#define PIPEWRIGHT_SCHEDULE_CHANNEL_RUN_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "pipewright/ir/channel.h"
#include "pipewright/ir/rank_pairs.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/stage_dependencies.h"
#include "pipewright/ir/stage_microbatch_table.h"

namespace pipewright::schedule {

// Runs a program under the channel model of ir/channel.h, without time, until it ends or deadlocks.
//
// An operation that can finish stays enabled until it does, whatever else happens. Therefore every
// order of events leads to the same final state, and one run decides whether the program deadlocks.
// Linear in the number of actions.
//
// SENDs and RECVs must match one to one, and the RECVs of a compute must come before it in its row;
// check_data_flow() ensures both. Not thread-safe.
class ChannelRun {
 public:
  // The program must outlive it.
  ChannelRun(const ir::Program& program, ir::ChannelModel model, ir::ChannelCapacity capacity);

  // Runs the program; call it once. Calls `ended(rank, step, queue)` for each compute, SEND and
  // RECV in an order in which they can end: each one after everything that it waits for. If a SEND
  // and its RECV end together, the SEND comes first. `queue` is kNoQueue for a compute.
  static constexpr uint32_t kNoQueue = UINT32_MAX;
  template <typename Ended>
  void run(const Ended& ended);
  // Ordered pairs of ranks are numbered as in ir::RankPairs.
  uint32_t num_pairs() const { return pair_ids_.size(); }
  uint32_t pair_of(ir::ActionPart send_or_receive) const { return pair_ids_.of(send_or_receive); }
  uint32_t receive_queue_of(uint32_t pair) const { return pairs_[pair].receive_queue; }
  // The operation at the head of a queue, which must not be empty. While `ended` is called for an
  // operation, it is still at the head.
  struct Head {
    int rank;
    uint32_t poster;  // step of the compute whose end posts it; kNoPoster if posted at the start
  };
  static constexpr uint32_t kNoPoster = UINT32_MAX;
  Head head_of(uint32_t queue) const {
    return {queues_[queue].rank, operations_[queues_[queue].head].poster};
  }
  uint32_t num_queues() const { return static_cast<uint32_t>(queues_.size()); }

  // ---- after run()

  // Whether every compute, SEND and RECV finished.
  bool finished() const;

  // A compute, SEND or RECV that did not finish.
  struct Node {
    int rank;
    int step;
    friend auto operator<=>(const Node&, const Node&) = default;
  };
  // The unfinished computes that are next on their ranks, and the posted operations at the heads of
  // their queues.
  std::vector<Node> blocked() const;

  // Wait-for edges, each with the intermediate operation. A compute waits for its RECVs, a SEND or
  // RECV for its partner on the other rank; that operation is blocked by the head of its queue, or
  // by the compute that has yet to post it.
  struct Wait {
    Node waits_for;   // the RECV, or the partner
    Node blocked_by;  // one of blocked(); equal to waits_for if that is at the head of its queue
  };
  std::vector<Wait> waits_of(const Node& node) const;

 private:
  // A SEND or RECV.
  struct Operation {
    uint32_t step;
    uint32_t pair;
    uint32_t next;  // of the same queue; kNone after the last
    // The result that it sends or receives: the index of a cell in received_, and whether it is the
    // gradient or the output.
    uint32_t cell : 30;
    bool is_gradient : 1;
    bool is_send : 1;
    uint32_t poster;
  };
  // The operations of one queue of a rank, in posting order.
  struct Queue {
    int rank;
    uint32_t head;  // the first unfinished operation; kNone after the last
  };
  // An ordered pair of ranks: its k-th SEND meets its k-th RECV.
  struct Pair {
    uint32_t send_queue, receive_queue;
    uint32_t sent = 0, received = 0;
  };
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kMaxCells = (1u << 30) - 1;

  void link_rows();
  template <typename Ended>
  void advance(int rank, const Ended& ended);
  template <typename Ended>
  void try_queue(uint32_t queue, const Ended& ended);
  template <typename Ended>
  void finish_head(uint32_t queue, const Ended& ended);
  bool can_finish(const Queue& queue) const;
  bool is_posted(const Queue& queue) const {
    return queue.head != kNone &&
           operations_[queue.head].step < next_compute_[static_cast<size_t>(queue.rank)];
  }
  uint32_t queue_of(const Operation& operation) const {
    const Pair& pair = pairs_[operation.pair];
    return operation.is_send ? pair.send_queue : pair.receive_queue;
  }
  bool received(const Operation& receive) const {
    return received_[receive.cell][receive.is_gradient];
  }
  bool has_inputs(int rank, uint32_t step) const;
  std::vector<uint32_t> receives_of(int rank, uint32_t step) const;
  // The operation at a step of a rank.
  const Operation& operation_at(int rank, uint32_t step) const;
  // The SEND, or the RECV, number `index` of a pair; nullptr if there is no such operation.
  const Operation* nth_operation(uint32_t pair, bool send, uint32_t index) const;

  const ir::Program& program_;
  ir::ChannelCapacity capacity_;
  ir::RankPairs pair_ids_;
  ir::StageDependencies dependencies_;
  std::vector<Queue> queues_;
  std::vector<Pair> pairs_;
  std::vector<Operation> operations_;     // row by row
  std::vector<uint32_t> first_of_rank_;   // index in operations_ by rank, then their number
  std::vector<uint32_t> next_compute_;    // by rank: step of the first compute that has not ended
  std::vector<uint32_t> next_operation_;  // by rank: the first operation that is not posted
  std::vector<uint32_t> work_;            // queues whose head may be able to finish
  // Whether a stage's RECV_F and RECV_B of a microbatch have finished.
  ir::StageMicrobatchTable<std::array<bool, 2>> received_;
};

// Ends the next computes of a rank as long as their inputs have arrived. The end of each one posts
// the operations between it and the next compute.
template <typename Ended>
void ChannelRun::advance(int rank, const Ended& ended) {
  const ir::Row& row = program_.rows[static_cast<size_t>(rank)];
  uint32_t& next = next_compute_[static_cast<size_t>(rank)];
  uint32_t& posted = next_operation_[static_cast<size_t>(rank)];
  const uint32_t end = first_of_rank_[static_cast<size_t>(rank) + 1];
  while (next == kNone || (next < row.size() && has_inputs(rank, next))) {
    if (next != kNone) ended(rank, next, kNoQueue);
    next = next == kNone ? 0 : next + 1;
    while (next < row.size() && !ir::is_compute(row[next].kind())) ++next;
    for (; posted < end && operations_[posted].step < next; ++posted) {
      const uint32_t queue = queue_of(operations_[posted]);
      if (queues_[queue].head == posted) work_.push_back(queue);
    }
  }
}

template <typename Ended>
void ChannelRun::finish_head(uint32_t id, const Ended& ended) {
  Queue& queue = queues_[id];
  const Operation& operation = operations_[queue.head];
  Pair& pair = pairs_[operation.pair];
  ended(queue.rank, operation.step, id);
  queue.head = operation.next;
  if (is_posted(queue)) work_.push_back(id);
  if (operation.is_send) {
    ++pair.sent;
    return;
  }
  ++pair.received;
  received_[operation.cell][operation.is_gradient] = true;
  advance(queue.rank, ended);
}

template <typename Ended>
void ChannelRun::try_queue(uint32_t id, const Ended& ended) {
  if (!can_finish(queues_[id])) return;
  const Operation& operation = operations_[queues_[id].head];
  const Pair& pair = pairs_[operation.pair];
  const bool sends = operation.is_send;
  const bool together = pair.sent == pair.received && (!sends || capacity_ == 0);
  const uint32_t other = sends ? pair.receive_queue : pair.send_queue;
  if (together) {
    finish_head(sends ? id : other, ended);
    finish_head(sends ? other : id, ended);
  } else {
    finish_head(id, ended);
    work_.push_back(other);  // a SEND lets its RECV finish, a RECV makes room for a SEND
  }
}

template <typename Ended>
void ChannelRun::run(const Ended& ended) {
  for (size_t rank = 0; rank < program_.rows.size(); ++rank) advance(static_cast<int>(rank), ended);
  while (!work_.empty()) {
    const uint32_t queue = work_.back();
    work_.pop_back();
    try_queue(queue, ended);
  }
}

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_CHANNEL_RUN_H_
