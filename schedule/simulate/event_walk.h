#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_EVENT_WALK_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_EVENT_WALK_H_

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "pipewright/ir/check.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/stage_dependencies.h"
#include "pipewright/ir/stage_microbatch_table.h"
#include "pipewright/schedule/channel_run.h"
#include "pipewright/schedule/simulate/event_graph.h"

// A walk visits the actions of a schedule in an order in which they can run, and passes each with
// its dependencies to a sink. EventGraph stores them; a simulation without a graph computes times
// from them directly. A sink has
//
//   void wait_for(const Dependency&)                a dependency of the action that is added next
//   void add(uint32_t number, const ir::Action&)    the action, after its dependencies
//
// OrderWalk runs each rank until it needs a result that does not exist yet; the rank continues when
// another rank has computed something for it. ProgramWalk follows one run of the channel model
// (channel_run.h), which reports operations in an order in which they can end; data-parallel
// actions are added just before the compute that follows them.
//
// The invariant of both: an action is added after all of its dependencies. Linear in the number of
// actions. Besides the memory of the sink, a walk needs one number per (stage, microbatch) and
// result.

namespace pipewright::schedule {

inline constexpr uint32_t kNoAction = UINT32_MAX;

// The part that both walks share: numbering, and the connection to the sink.
template <typename Sink>
class EventWalk {
 protected:
  EventWalk(const ir::Schedule& schedule, Sink* sink)
      : schedule_(schedule), sink_(*sink), dependencies_(schedule.placement) {
    uint64_t size = 0;
    for (const ir::Row& row : schedule.rows) {
      first_of_rank_.push_back(static_cast<uint32_t>(size));
      size += row.size();
      for (const ir::Action& action : row) left_ += !action.is_idle();
    }
    PW_CHECK(size < kNoAction, "actions are numbered in 32 bits");
  }

  const ir::Action& action_at(size_t rank, uint32_t step) const {
    return schedule_.rows[rank][step];
  }
  uint32_t number_of(size_t rank, uint32_t step) const { return first_of_rank_[rank] + step; }

  void wait_for(uint32_t action, Dependency::Kind kind = Dependency::kEnd, int stage = 0) {
    if (action != kNoAction) sink_.wait_for({action, kind, static_cast<uint32_t>(stage)});
  }
  uint32_t add(size_t rank, uint32_t step) {
    const uint32_t number = number_of(rank, step);
    sink_.add(number, action_at(rank, step));
    --left_;
    return number;
  }
  bool is_complete() const { return left_ == 0; }

  const ir::Schedule& schedule_;
  Sink& sink_;
  ir::StageDependencies dependencies_;

 private:
  std::vector<uint32_t> first_of_rank_;
  size_t left_ = 0;
};

template <typename Sink>
class OrderWalk : EventWalk<Sink> {
 public:
  OrderWalk(const ir::ComputeOrder& order, Sink* sink)
      : EventWalk<Sink>(order, sink),
        outputs_(order.placement, order.num_microbatches, kNoAction),
        gradients_(order.placement, order.num_microbatches, kNoAction),
        next_(order.rows.size()),
        last_(order.rows.size(), kNoAction),
        is_blocked_(order.rows.size()) {}

  // False if the order cannot run to its end.
  bool run() {
    for (size_t rank = next_.size(); rank-- > 0;) runnable_.push_back(rank);
    while (!runnable_.empty()) {
      const size_t rank = runnable_.back();
      runnable_.pop_back();
      run(rank);
    }
    return this->is_complete();
  }

 private:
  // The action that computed a result that a part needs; kNoAction if it has not run yet.
  uint32_t maker_of(const ir::StageDependencies::Need& need, ir::ActionPart part) {
    return (need.result == ir::Result::kOutput ? outputs_ : gradients_)
        .at(need.stage, part.microbatch());
  }

  bool is_ready(const ir::Action& action) {
    for (const ir::ActionPart part : action.parts()) {
      for (const ir::StageDependencies::Need& need : this->dependencies_.of(part)) {
        if (need.of_other_rank && maker_of(need, part) == kNoAction) return false;
      }
    }
    return true;
  }

  // Runs a rank until it is blocked or done.
  void run(size_t rank) {
    const ir::Row& row = this->schedule_.rows[rank];
    for (uint32_t& step = next_[rank]; step < row.size(); ++step) {
      const ir::Action& action = row[step];
      if (action.is_idle()) continue;
      if (!is_ready(action)) {
        is_blocked_[rank] = true;
        return;
      }
      this->wait_for(last_[rank]);
      for (const ir::ActionPart part : action.parts()) {
        for (const ir::StageDependencies::Need& need : this->dependencies_.of(part)) {
          if (!need.of_other_rank) continue;
          this->wait_for(
              maker_of(need, part),
              need.result == ir::Result::kOutput ? Dependency::kOutput : Dependency::kGradient,
              need.stage);
        }
      }
      const uint32_t number = last_[rank] = this->add(rank, step);
      for (const ir::ActionPart part : action.parts()) {
        if (part.kind() == ir::ActionKind::kForward)
          outputs_.at(part.stage(), part.microbatch()) = number;
        if (ir::gives_input_gradient(part.kind()))
          gradients_.at(part.stage(), part.microbatch()) = number;
        const auto& transfer = this->dependencies_.of(part).transfer;
        if (!transfer || !is_blocked_[static_cast<size_t>(transfer->to)]) continue;
        is_blocked_[static_cast<size_t>(transfer->to)] = false;
        runnable_.push_back(static_cast<size_t>(transfer->to));
      }
    }
  }

  ir::StageMicrobatchTable<uint32_t> outputs_, gradients_;  // the action that computed each
  std::vector<uint32_t> next_;                              // by rank
  std::vector<uint32_t> last_;                              // by rank: the compute before
  std::vector<bool> is_blocked_;
  std::vector<size_t> runnable_;
};

template <typename Sink>
class ProgramWalk : EventWalk<Sink> {
 public:
  ProgramWalk(const ir::Program& program, ir::ChannelModel channels, ir::ChannelCapacity capacity,
              Sink* sink)
      : EventWalk<Sink>(program, sink),
        capacity_(capacity),
        run_(program, channels, capacity),
        outputs_(program.placement, program.num_microbatches, kNoAction),
        gradients_(program.placement, program.num_microbatches, kNoAction),
        next_(program.rows.size()),
        last_compute_(program.rows.size(), kNoAction),
        last_data_parallel_(program.rows.size(), kNoAction),
        unsharded_by_(static_cast<size_t>(program.placement.num_stages()), kNoAction),
        last_of_queue_(run_.num_queues(), kNoAction),
        pairs_(run_.num_pairs()) {}

  // False if the program deadlocks.
  bool run() {
    run_.run([&](int of_rank, uint32_t step, uint32_t queue) {
      const auto rank = static_cast<size_t>(of_rank);
      if (queue == ChannelRun::kNoQueue) {
        add_compute(rank, step);
      } else if (ir::is_send(this->action_at(rank, step).kind())) {
        add_send(rank, step, queue);
      } else {
        add_receive(rank, step, queue);
      }
    });
    if (!run_.finished()) return false;
    for (size_t rank = 0; rank < next_.size(); ++rank)
      add_data_parallel(rank, static_cast<uint32_t>(this->schedule_.rows[rank].size()));
    return this->is_complete();
  }

 private:
  // The transfers of an ordered pair of ranks.
  struct InFlight {
    std::deque<uint32_t> sends;     // SENDs whose RECVs have not ended
    std::deque<uint32_t> receives;  // ended RECVs whose buffer slot no SEND has taken yet
    uint32_t sent = 0;
  };

  // A dependency on the compute that posted the operation at the head of a queue.
  void wait_for_poster(uint32_t queue) {
    const ChannelRun::Head head = run_.head_of(queue);
    if (head.poster != ChannelRun::kNoPoster)
      this->wait_for(this->number_of(static_cast<size_t>(head.rank), head.poster));
  }

  // Adds the data-parallel actions of a rank that are posted before `step`.
  void add_data_parallel(size_t rank, uint32_t step) {
    for (; next_[rank] < step; ++next_[rank]) {
      const ir::Action& action = this->action_at(rank, next_[rank]);
      if (action.is_idle() || ir::is_compute(action.kind()) || ir::is_transfer(action.kind()))
        continue;
      this->wait_for(last_compute_[rank]);
      this->wait_for(last_data_parallel_[rank]);
      last_data_parallel_[rank] = this->add(rank, next_[rank]);
      if (action.kind() == ir::ActionKind::kUnshard)
        unsharded_by_[static_cast<size_t>(action.parts()[0].stage())] = last_data_parallel_[rank];
    }
  }

  void add_compute(size_t rank, uint32_t step) {
    add_data_parallel(rank, step);
    next_[rank] = step + 1;
    this->wait_for(last_compute_[rank]);
    for (const ir::ActionPart part : this->action_at(rank, step).parts()) {
      for (const ir::StageDependencies::Need& need : this->dependencies_.of(part)) {
        if (need.of_other_rank)
          this->wait_for((need.result == ir::Result::kOutput ? outputs_ : gradients_)
                             .at(part.stage(), part.microbatch()));
      }
      // Later computes of the stage depend on it through this one.
      this->wait_for(std::exchange(unsharded_by_[static_cast<size_t>(part.stage())], kNoAction));
    }
    last_compute_[rank] = this->add(rank, step);
  }

  void add_send(size_t rank, uint32_t step, uint32_t queue) {
    const uint32_t id = run_.pair_of(this->action_at(rank, step).parts()[0]);
    InFlight& pair = pairs_[id];
    wait_for_poster(queue);
    this->wait_for(last_of_queue_[queue]);
    if (capacity_ == 0) {
      // The RECV ends with the SEND, so it is at the head of its queue and has dependencies too.
      const uint32_t other = run_.receive_queue_of(id);
      wait_for_poster(other);
      this->wait_for(last_of_queue_[other]);
    } else if (pair.sent >= capacity_) {
      this->wait_for(pair.receives.front());
      pair.receives.pop_front();
    }
    ++pair.sent;
    last_of_queue_[queue] = this->add(rank, step);
    pair.sends.push_back(last_of_queue_[queue]);
  }

  void add_receive(size_t rank, uint32_t step, uint32_t queue) {
    const ir::ActionPart part = this->action_at(rank, step).parts()[0];
    InFlight& pair = pairs_[run_.pair_of(part)];
    wait_for_poster(queue);
    this->wait_for(last_of_queue_[queue]);
    this->wait_for(pair.sends.front(), Dependency::kSend);
    pair.sends.pop_front();
    const uint32_t number = last_of_queue_[queue] = this->add(rank, step);
    if (capacity_ != 0 && capacity_ != ir::kUnboundedCapacity) pair.receives.push_back(number);
    (part.kind() == ir::ActionKind::kRecvF ? outputs_ : gradients_)
        .at(part.stage(), part.microbatch()) = number;
  }

  ir::ChannelCapacity capacity_;
  ChannelRun run_;
  // The RECVs of a stage's inputs, and of its output's gradients.
  ir::StageMicrobatchTable<uint32_t> outputs_, gradients_;
  std::vector<uint32_t> next_;  // by rank: first step whose data-parallel actions are not added
  std::vector<uint32_t> last_compute_, last_data_parallel_;  // by rank
  std::vector<uint32_t> unsharded_by_;  // by stage: an UNSHARD that no compute depends on yet
  std::vector<uint32_t> last_of_queue_;
  std::vector<InFlight> pairs_;
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_EVENT_WALK_H_
