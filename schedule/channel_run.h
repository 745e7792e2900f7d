#ifndef PIPEWRIGHT_SCHEDULE_CHANNEL_RUN_H_
#define PIPEWRIGHT_SCHEDULE_CHANNEL_RUN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/channel.h"
#include "ir/dependencies.h"
#include "ir/schedule.h"
#include "schedule/rank_pairs.h"

namespace pipewright::schedule {

// Runs a program by the channel model of ir/channel.h, without time, as far as it gets. What can
// finish stays so until it does, so that every order of events ends in the same state: one run
// tells whether there is a deadlock. Linear in the number of actions.
//
// The program must be such that SENDs and RECVs are one to one, and a compute's RECVs stand before
// it in its row.
class ChannelRun {
 public:
  ChannelRun(const ir::Program& program, ir::ChannelModel model, ir::ChannelCapacity capacity);

  // Whether every action of every rank finished.
  bool finished() const;

  // A SEND or RECV, or a compute, that is left.
  struct Node {
    int rank;
    int step;
    friend auto operator<=>(const Node&, const Node&) = default;
  };
  // Computes that are next on their ranks and cannot start, and operations at the heads of their
  // queues.
  std::vector<Node> blocked() const;

  // What a blocked node waits for: the blocked nodes that must go first, each with the action by
  // way of which. For a compute, its RECV, and what is ahead of that in its queue; for an
  // operation, its other end, and what is ahead of that or keeps it from being posted.
  struct Wait {
    Node by_way_of;  // the RECV, or the other end
    Node blocked_by;
  };
  std::vector<Wait> waits_of(const Node& node) const;

 private:
  // Operations of one queue of a rank, in the order of posting; the steps are linked through next_.
  struct Queue {
    int rank;
    int head;  // step of the first unfinished operation; kNone behind the last
  };
  // The SENDs of one rank to another, which meet the RECVs there in order.
  struct Pair {
    uint32_t send_queue, receive_queue;
    uint32_t sent = 0, received = 0;
  };
  static constexpr int kNone = -1;

  void link_rows();
  void advance(int rank);
  void try_queue(uint32_t queue);
  bool can_finish(uint32_t queue) const;
  void finish_head(uint32_t queue);
  bool is_posted(const Queue& queue) const {
    return queue.head != kNone && queue.head < next_compute_[static_cast<size_t>(queue.rank)];
  }
  bool has_inputs(int rank, int step) const;
  std::vector<int> receives_of(int rank, int step) const;
  uint32_t queue_of(ir::ActionPart part) const;
  // The step of the RECV number `index` of a pair, or of its SEND.
  int nth_step(uint32_t pair, bool send, uint32_t index) const;

  const ir::Program& program_;
  ir::ChannelCapacity capacity_;
  RankPairs pair_ids_;
  std::vector<Queue> queues_;
  std::vector<Pair> pairs_;
  std::vector<std::vector<int>> next_;  // by rank and step: the next operation of the same queue
  std::vector<int> next_compute_;       // by rank: step of the first compute that has not ended
  std::vector<bool> received_forward_, received_backward_;  // by stage and microbatch of the RECV
  std::vector<uint32_t> work_;  // queues that may have something to finish
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_CHANNEL_RUN_H_
