#ifndef PIPEWRIGHT_TESTS_CHANNEL_MODEL_TICKING_CLOCK_H_
#define PIPEWRIGHT_TESTS_CHANNEL_MODEL_TICKING_CLOCK_H_

#include <cstdint>
#include <vector>

#include "pipewright/ir/channel.h"
#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/schedule/problem/costs.h"

// The channel model of ir/channel.h with time, written as plainly as possible, for tests: a clock
// ticks, and at each tick everything that can start does, without regard for speed. Costs are
// integers; data-parallel actions are left out. The simulator must compute the same times.

namespace pipewright::channel_model {

class TickingClock {
 public:
  // The program must run to its end.
  TickingClock(const ir::Program& program, ir::ChannelModel model, ir::ChannelCapacity capacity,
               const schedule::Costs& costs)
      : program_(program),
        model_(model),
        capacity_(capacity),
        table_(costs, program.placement),
        ends_(program.rows.size()) {
    for (size_t rank = 0; rank < ends_.size(); ++rank)
      ends_[rank].assign(program.rows[rank].size(), kOpen);
  }

  // Lets an action end `by` later than it would. What waits for a SEND's RECV waits for it too.
  void delay(size_t rank, size_t step, int by) {
    delayed_ = {rank, step};
    delay_ = by;
  }

  // When each action ends.
  std::vector<std::vector<int>> run() {
    for (now_ = 0; left() && now_ < 10000; ++now_) {
      // An action that takes no time may let others start at the same tick.
      for (bool started = true; started;) {
        started = false;
        for (size_t rank = 0; rank < ends_.size(); ++rank) {
          for (size_t step = 0; step < ends_[rank].size(); ++step)
            started = start({rank, step}) || started;
        }
      }
    }
    return ends_;
  }

 private:
  static constexpr int kOpen = -1;
  struct At {
    size_t rank, step;
  };

  const ir::Action& action(At at) const { return program_.rows[at.rank][at.step]; }
  ir::ActionKind kind(At at) const { return action(at).kind(); }
  bool transfers(At at) const { return ir::is_send(kind(at)) || ir::is_receive(kind(at)); }
  int duration(At at) const { return static_cast<int>(table_.duration(action(at), at.rank)); }
  int delay_of(At at) const {
    return at.rank == delayed_.rank && at.step == delayed_.step ? delay_ : 0;
  }
  int& end(At at) { return ends_[at.rank][at.step]; }
  bool has_ended(At at) { return end(at) != kOpen && end(at) <= now_; }

  bool left() const {
    for (const auto& row : ends_) {
      for (const int end : row) {
        if (end == kOpen) return true;
      }
    }
    return false;
  }

  // Every compute and wait before it in its row has ended.
  bool is_posted(At at) {
    for (size_t step = 0; step < at.step; ++step) {
      const bool stops =
          ir::is_compute(kind({at.rank, step})) || ir::is_wait_send(kind({at.rank, step}));
      if (stops && !has_ended({at.rank, step})) return false;
    }
    return true;
  }

  ir::Transfer transfer(At at) const {
    return *ir::partner_of(action(at).parts()[0], program_.placement);
  }
  int peer(At at) const { return ir::is_send(kind(at)) ? transfer(at).to : transfer(at).from; }

  bool is_at_head(At at) {
    if (!is_posted(at)) return false;
    for (size_t step = 0; step < at.step; ++step) {
      const At before{at.rank, step};
      if (!transfers(before) || has_ended(before)) continue;
      if (model_ == ir::ChannelModel::kRank) return false;
      if (peer(before) != peer(at)) continue;
      if (model_ == ir::ChannelModel::kPeer || ir::is_send(kind(before)) == ir::is_send(kind(at)))
        return false;
    }
    return true;
  }

  // The index of a SEND among the SENDs to its peer, or of a RECV among the RECVs from its peer.
  int number(At at) const {
    int count = 0;
    for (size_t step = 0; step < at.step; ++step) {
      const At before{at.rank, step};
      count += transfers(before) && ir::is_send(kind(before)) == ir::is_send(kind(at)) &&
               peer(before) == peer(at);
    }
    return count;
  }

  // The RECV or SEND with the same index on the other rank.
  At other_end(At at, int number_there) const {
    const auto rank = static_cast<size_t>(peer(at));
    for (size_t step = 0; step < program_.rows[rank].size(); ++step) {
      const At other{rank, step};
      if (transfers(other) && ir::is_send(kind(other)) != ir::is_send(kind(at)) &&
          peer(other) == static_cast<int>(at.rank) && number(other) == number_there)
        return other;
    }
    return {rank, program_.rows[rank].size()};
  }

  bool has_inputs(At at) {
    for (const ir::ActionPart part : action(at).parts()) {
      for (const ir::Need& need : ir::needs_of(part, program_.placement)) {
        if (need.rank == static_cast<int>(at.rank)) continue;
        const ir::Action receive(
            need.result == ir::Result::kOutput ? ir::ActionKind::kRecvF : ir::ActionKind::kRecvB,
            part.stage(), part.microbatch());
        for (size_t step = 0; step < program_.rows[at.rank].size(); ++step) {
          if (action({at.rank, step}) == receive && !has_ended({at.rank, step})) return false;
        }
      }
    }
    return true;
  }

  // The SEND that a wait is for.
  At awaited(At at) const {
    const ir::ActionPart wait = action(at).parts()[0];
    const ir::Action send(
        wait.kind() == ir::ActionKind::kWaitSendF ? ir::ActionKind::kSendF : ir::ActionKind::kSendB,
        wait.stage(), wait.microbatch());
    size_t step = 0;
    while (action({at.rank, step}) != send) ++step;
    return {at.rank, step};
  }

  // Returns whether the action started or ended at this tick.
  bool start(At at) {
    if (end(at) != kOpen) return false;
    if (ir::is_compute(kind(at))) {
      if (!is_posted(at) || !has_inputs(at)) return false;
      end(at) = now_ + duration(at) + delay_of(at);
      return true;
    }
    if (ir::is_wait_send(kind(at))) {
      if (!is_posted(at) || !has_ended(awaited(at))) return false;
      end(at) = now_ + delay_of(at);
      return true;
    }
    if (!transfers(at)) {
      end(at) = now_;
      return true;
    }
    if (!is_at_head(at)) return false;
    const At partner = other_end(at, number(at));
    if (ir::is_receive(kind(at))) {
      // In a rendezvous its SEND starts the transfer; otherwise it takes a tensor that has been
      // sent.
      if (capacity_ == 0 || !has_ended(partner)) return false;
      end(at) = now_ + delay_of(at);
      return true;
    }
    if (capacity_ == 0) {
      if (!is_at_head(partner)) return false;
      end(at) = now_ + duration(at) + delay_of(at);
      end(partner) = end(at) + delay_of(partner);
      return true;
    }
    if (capacity_ != ir::kUnboundedCapacity && number(at) >= static_cast<int>(capacity_) &&
        !has_ended(other_end(at, number(at) - static_cast<int>(capacity_))))
      return false;
    end(at) = now_ + duration(at) + delay_of(at);
    return true;
  }

  const ir::Program& program_;
  ir::ChannelModel model_;
  ir::ChannelCapacity capacity_;
  schedule::CostTable table_;
  std::vector<std::vector<int>> ends_;
  int now_ = 0;
  At delayed_{};
  int delay_ = 0;
};

}  // namespace pipewright::channel_model

#endif  // PIPEWRIGHT_TESTS_CHANNEL_MODEL_TICKING_CLOCK_H_
