#include "schedule/event_graph.h"

#include <algorithm>
#include <utility>

#include "ir/check.h"
#include "schedule/channel_run.h"
#include "schedule/stage_dependencies.h"

namespace pipewright::schedule {
namespace {

using ir::Action;
using ir::ActionKind;
using ir::ActionPart;

constexpr uint32_t kNone = UINT32_MAX;

// Something about each (stage, microbatch).
class PerCell {
 public:
  PerCell(const ir::Schedule& schedule)
      : num_microbatches_(static_cast<size_t>(schedule.num_microbatches)),
        values_(static_cast<size_t>(schedule.placement.num_stages()) * num_microbatches_, kNone) {}

  uint32_t& at(int stage, int microbatch) {
    return values_[static_cast<size_t>(stage) * num_microbatches_ +
                   static_cast<size_t>(microbatch)];
  }

 private:
  size_t num_microbatches_;
  std::vector<uint32_t> values_;
};

}  // namespace

// What both kinds of graph are built with.
class EventGraphBuilder {
 public:
  explicit EventGraphBuilder(const ir::Schedule& schedule)
      : schedule_(schedule), dependencies_(schedule.placement) {
    uint64_t size = 0;
    for (const ir::Row& row : schedule.rows) {
      first_of_rank_.push_back(static_cast<uint32_t>(size));
      size += row.size();
      num_actions_ += static_cast<size_t>(
          std::ranges::count_if(row, [](const Action& action) { return !action.is_idle(); }));
    }
    PW_CHECK(size < kNone, "actions are numbered in 32 bits");
    graph_.order_.reserve(num_actions_);
    graph_.first_before_.reserve(num_actions_ + 1);
    graph_.first_before_.push_back(0);
  }

 protected:
  const Action& action_at(size_t rank, uint32_t step) const { return schedule_.rows[rank][step]; }
  uint32_t id_of(size_t rank, uint32_t step) const { return first_of_rank_[rank] + step; }

  // What the action that is added next waits for.
  void wait_for(uint32_t action, Before::Bond bond = Before::kEnd, int stage = 0) {
    if (action == kNone) return;
    graph_.before_.push_back({action, bond, static_cast<uint32_t>(stage)});
  }
  void add(uint32_t action) {
    graph_.order_.push_back(action);
    graph_.first_before_.push_back(graph_.before_.size());
  }
  // None where actions are left.
  std::optional<EventGraph> finish() {
    if (graph_.order_.size() != num_actions_) return std::nullopt;
    return std::move(graph_);
  }

  const ir::Schedule& schedule_;
  StageDependencies dependencies_;
  std::vector<uint32_t> first_of_rank_;
  size_t num_actions_ = 0;
  EventGraph graph_;
};

namespace {

class OrderGraphBuilder : EventGraphBuilder {
 public:
  explicit OrderGraphBuilder(const ir::ComputeOrder& order)
      : EventGraphBuilder(order),
        outputs_(order),
        gradients_(order),
        next_(order.rows.size()),
        last_(order.rows.size(), kNone),
        is_blocked_(order.rows.size()) {}

  std::optional<EventGraph> build() {
    for (size_t rank = next_.size(); rank-- > 0;) runnable_.push_back(rank);
    while (!runnable_.empty()) {
      const size_t rank = runnable_.back();
      runnable_.pop_back();
      run(rank);
    }
    return finish();
  }

 private:
  // The action that made what a part needs; kNone as long as there is none.
  uint32_t maker_of(const StageDependencies::Need& need, ActionPart part) {
    return (need.result == ir::Result::kOutput ? outputs_ : gradients_)
        .at(need.stage, part.microbatch());
  }

  bool is_ready(const Action& action) {
    for (const ActionPart part : action.parts()) {
      for (const StageDependencies::Need& need : dependencies_.of(part)) {
        if (need.of_other_rank && maker_of(need, part) == kNone) return false;
      }
    }
    return true;
  }

  // As far as it gets.
  void run(size_t rank) {
    const ir::Row& row = schedule_.rows[rank];
    for (uint32_t& step = next_[rank]; step < row.size(); ++step) {
      const Action& action = row[step];
      if (action.is_idle()) continue;
      if (!is_ready(action)) {
        is_blocked_[rank] = true;
        return;
      }
      const uint32_t id = id_of(rank, step);
      wait_for(last_[rank]);
      for (const ActionPart part : action.parts()) {
        for (const StageDependencies::Need& need : dependencies_.of(part)) {
          if (!need.of_other_rank) continue;
          wait_for(maker_of(need, part),
                   need.result == ir::Result::kOutput ? Before::kOutput : Before::kGradient,
                   need.stage);
        }
      }
      add(id);
      last_[rank] = id;
      for (const ActionPart part : action.parts()) {
        if (part.kind() == ActionKind::kForward) outputs_.at(part.stage(), part.microbatch()) = id;
        if (ir::gives_input_gradient(part.kind()))
          gradients_.at(part.stage(), part.microbatch()) = id;
        const auto& transfer = dependencies_.of(part).transfer;
        if (!transfer || !is_blocked_[static_cast<size_t>(transfer->to)]) continue;
        is_blocked_[static_cast<size_t>(transfer->to)] = false;
        runnable_.push_back(static_cast<size_t>(transfer->to));
      }
    }
  }

  PerCell outputs_, gradients_;
  std::vector<uint32_t> next_;  // by rank
  std::vector<uint32_t> last_;  // by rank: the compute before
  std::vector<bool> is_blocked_;
  std::vector<size_t> runnable_;
};

class ProgramGraphBuilder : EventGraphBuilder {
 public:
  ProgramGraphBuilder(const ir::Program& program, ir::ChannelModel channels,
                      ir::ChannelCapacity capacity)
      : EventGraphBuilder(program),
        capacity_(capacity),
        run_(program, channels, capacity),
        pairs_(program.placement),
        outputs_(program),
        gradients_(program),
        next_(program.rows.size()),
        last_compute_(program.rows.size(), kNone),
        last_data_parallel_(program.rows.size(), kNone),
        unsharded_by_(static_cast<size_t>(program.placement.num_stages()), kNone),
        last_of_queue_(run_.num_queues(), kNone),
        receives_(pairs_.size()),
        sends_(pairs_.size()) {
    index_receives();
  }

  std::optional<EventGraph> build() {
    run_.run([&](int rank, uint32_t step, uint32_t queue) {
      if (queue == ChannelRun::kNoQueue) {
        add_compute(static_cast<size_t>(rank), step);
      } else if (ir::is_send(action_at(static_cast<size_t>(rank), step).kind())) {
        add_send(static_cast<size_t>(rank), step, queue);
      } else {
        add_receive(static_cast<size_t>(rank), step, queue);
      }
    });
    if (!run_.finished()) return std::nullopt;
    for (size_t rank = 0; rank < next_.size(); ++rank)
      add_data_parallel(rank, static_cast<uint32_t>(schedule_.rows[rank].size()));
    return finish();
  }

 private:
  struct Pair {
    std::vector<std::pair<uint32_t, uint32_t>> operations;  // rank, step
    uint32_t done = 0;
  };

  // The compute before a step of a row, which has ended.
  uint32_t poster_of(size_t rank, uint32_t step) const {
    while (step-- > 0) {
      if (ir::is_compute(action_at(rank, step).kind())) return id_of(rank, step);
    }
    return kNone;
  }

  // The RECVs of each pair in order: a SEND that needs one at the head of its queue waits for what
  // the RECV waits for.
  void index_receives() {
    for (size_t rank = 0; rank < schedule_.rows.size(); ++rank) {
      const ir::Row& row = schedule_.rows[rank];
      for (uint32_t step = 0; step < row.size(); ++step) {
        if (!ir::is_receive(row[step].kind())) continue;
        receives_[pairs_.of(row[step].parts()[0])].operations.emplace_back(
            static_cast<uint32_t>(rank), step);
      }
    }
  }

  // UNSHARD and its like that are posted before `step`.
  void add_data_parallel(size_t rank, uint32_t step) {
    for (; next_[rank] < step; ++next_[rank]) {
      const Action& action = action_at(rank, next_[rank]);
      if (action.is_idle() || ir::is_compute(action.kind()) || ir::is_send(action.kind()) ||
          ir::is_receive(action.kind()))
        continue;
      const uint32_t id = id_of(rank, next_[rank]);
      wait_for(last_compute_[rank]);
      wait_for(last_data_parallel_[rank]);
      add(id);
      last_data_parallel_[rank] = id;
      if (action.kind() == ActionKind::kUnshard)
        unsharded_by_[static_cast<size_t>(action.parts()[0].stage())] = id;
    }
  }

  void add_compute(size_t rank, uint32_t step) {
    add_data_parallel(rank, step);
    next_[rank] = step + 1;
    const Action& action = action_at(rank, step);
    wait_for(last_compute_[rank]);
    for (const ActionPart part : action.parts()) {
      for (const StageDependencies::Need& need : dependencies_.of(part)) {
        if (!need.of_other_rank) continue;
        wait_for((need.result == ir::Result::kOutput ? outputs_ : gradients_)
                     .at(part.stage(), part.microbatch()));
      }
      // Later computes of the stage follow this one.
      wait_for(std::exchange(unsharded_by_[static_cast<size_t>(part.stage())], kNone));
    }
    last_compute_[rank] = id_of(rank, step);
    add(last_compute_[rank]);
  }

  void add_send(size_t rank, uint32_t step, uint32_t queue) {
    const uint32_t pair = pairs_.of(action_at(rank, step).parts()[0]);
    Pair& receives = receives_[pair];
    const auto number = static_cast<uint32_t>(sends_[pair].size());
    const uint32_t id = id_of(rank, step);
    wait_for(poster_of(rank, step));
    wait_for(last_of_queue_[queue]);
    if (capacity_ == 0) {
      const auto [receiver, at] = receives.operations[number];
      const uint32_t other = run_.queue_at(static_cast<int>(receiver), at);
      wait_for(poster_of(receiver, at));
      wait_for(last_of_queue_[other]);
    } else if (number >= capacity_) {
      const auto [receiver, at] = receives.operations[number - capacity_];
      wait_for(id_of(receiver, at));
    }
    add(id);
    last_of_queue_[queue] = id;
    sends_[pair].push_back(id);
  }

  void add_receive(size_t rank, uint32_t step, uint32_t queue) {
    const ActionPart part = action_at(rank, step).parts()[0];
    const uint32_t pair = pairs_.of(part);
    const uint32_t id = id_of(rank, step);
    wait_for(poster_of(rank, step));
    wait_for(last_of_queue_[queue]);
    wait_for(sends_[pair][receives_[pair].done++], Before::kSend);
    add(id);
    last_of_queue_[queue] = id;
    (part.kind() == ActionKind::kRecvF ? outputs_ : gradients_)
        .at(part.stage(), part.microbatch()) = id;
  }

  ir::ChannelCapacity capacity_;
  ChannelRun run_;
  RankPairs pairs_;
  PerCell outputs_, gradients_;  // the RECVs of a stage's inputs, and of its output's gradients
  std::vector<uint32_t> next_;   // by rank: first step whose data-parallel actions are not added
  std::vector<uint32_t> last_compute_, last_data_parallel_;  // by rank
  std::vector<uint32_t> unsharded_by_;  // by stage: an UNSHARD that no compute waited for yet
  std::vector<uint32_t> last_of_queue_;
  std::vector<Pair> receives_;                // by pair
  std::vector<std::vector<uint32_t>> sends_;  // by pair: those that are added
};

}  // namespace

std::optional<EventGraph> EventGraph::of_order(const ir::ComputeOrder& order) {
  return OrderGraphBuilder(order).build();
}

std::optional<EventGraph> EventGraph::of_program(const ir::Program& program,
                                                 ir::ChannelModel channels,
                                                 ir::ChannelCapacity capacity) {
  return ProgramGraphBuilder(program, channels, capacity).build();
}

}  // namespace pipewright::schedule
