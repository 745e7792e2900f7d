// One pass along the rows links each action to earlier actions of its row, for which it keeps the
// last compute of the rank, the last operation of each queue and the RECV of each tensor.
//
// Partners are on different ranks, so that all operations of one end of a pair of ranks are seen
// before the first one of the other end. Until then, the operations of the first end form a list:
// each one's `first` is the next one. The k-th operation of the other end takes the k-th from that
// list. This needs no memory besides the links. The operation that comes first of a transfer also
// leaves its number in the transfer's cell, so that the one it should meet can tell whether it
// does.
#include "pipewright/schedule/graph/channel_graph.h"

#include <array>
#include <map>
#include <utility>

#include "pipewright/ir/check.h"
#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/tables.h"

namespace pipewright::schedule {
using ir::ActionKind;
using ir::ActionPart;

class ChannelGraphBuilder {
 public:
  explicit ChannelGraphBuilder(const ir::Schedule& schedule) : schedule_(schedule) {
    size_t size = 0;
    for (const ir::Row& row : schedule.rows) {
      graph_.first_of_rank_.push_back(static_cast<uint32_t>(size));
      size += row.size();
    }
    PW_CHECK(size < kNone, "actions are numbered in 32 bits");
    graph_.first_of_rank_.push_back(static_cast<uint32_t>(size));
    graph_.nodes_.reserve(size);
    graph_.links_.reserve(size);
  }

  ChannelGraph build_order() {
    graph_.is_order_ = true;
    find_makers();
    for (const ir::Row& row : schedule_.rows) {
      uint32_t before = kNone;
      for (const ir::Action& action : row) {
        const uint32_t number = next_number();
        if (action.is_idle()) {
          add(ChannelGraph::Node::kIdle, {kNone, kNone, kNone});
          continue;
        }
        std::array<uint32_t, 2> inputs = {kNone, kNone};
        for (const ActionPart part : action.parts()) find_inputs(part, number, &inputs);
        add(ChannelGraph::Node::kCompute, {before, inputs[1], inputs[0]});
        before = number;
      }
    }
    return std::move(graph_);
  }

  ChannelGraph build_program(ir::ChannelModel channels, ir::ChannelCapacity capacity) {
    graph_.is_rendezvous_ = capacity == 0;
    number_queues(channels);
    find_input_slots();
    inputs_ = {schedule_.placement, schedule_.num_microbatches, {kNone, kNone}};
    // By instance: UNSHARDs that no compute follows.
    std::vector<uint32_t> unsharded_by(num_instances(), kNone);
    make_awaited();
    for (size_t rank = 0; rank < schedule_.rows.size(); ++rank) {
      uint32_t before = kNone, data_parallel = kNone;
      first_of_row_ = next_number();
      for (const ir::Action& action : schedule_.rows[rank]) {
        const uint32_t number = next_number();
        const ActionPart part = action.parts().empty() ? ActionPart() : action.parts()[0];
        if (uint32_t* const awaited = awaited_by(part, rank)) *awaited = number;
        if (ir::is_transfer(part.kind())) {
          add_transfer(part, before);
        } else if (ir::is_wait(part.kind())) {
          const uint32_t* const awaited = awaited_by(ir::awaited_by(part), rank);
          add(ChannelGraph::Node::kWait, {before, kNone, *awaited});
          before = number;
        } else if (ir::is_compute(part.kind())) {
          uint32_t unshard = std::exchange(unsharded_by[instance_on(rank, part)], kNone);
          uint32_t input = input_of(part);
          if (action.is_compound()) {
            // Their UNSHARDs share a queue, so the second is enough.
            const ActionPart other = action.parts()[1];
            const uint32_t late = std::exchange(unsharded_by[instance_on(rank, other)], kNone);
            if (unshard == kNone || (late != kNone && late > unshard)) unshard = late;
            if (input == kNone) {
              input = input_of(other);
            } else {
              set_second(number, input_of(other));
            }
          }
          add(ChannelGraph::Node::kCompute, {before, unshard, input});
          before = number;
        } else if (part.kind() == ActionKind::kIdle) {
          add(ChannelGraph::Node::kIdle, {kNone, kNone, kNone});
        } else {
          add(ChannelGraph::Node::kDataParallel, {before, data_parallel, kNone});
          data_parallel = number;
          if (part.kind() == ActionKind::kUnshard) unsharded_by[instance_on(rank, part)] = number;
        }
      }
    }
    drop_unmatched();
    graph_.transfers_match_ = transfers_match_ && num_unused_ == 0;
    if (capacity != 0 && capacity != ir::kUnboundedCapacity) make_room(capacity);
    return std::move(graph_);
  }

 private:
  static constexpr uint32_t kNone = ChannelGraph::kNone;
  using Inputs = ir::StageMicrobatchTable<std::array<uint32_t, 2>>;

  // For a kind of SEND or RECV at a stage: its ordered pair of ranks, its queue, and the stage that
  // receives.
  struct End {
    uint32_t pair = kNone, queue = kNone;
    int receiver = 0;
  };
  // The operations of one end of a pair that have not met their partners.
  struct Unmatched {
    uint32_t head = kNone, tail = kNone;
    bool are_sends = false;
  };

  size_t num_instances() const { return static_cast<size_t>(schedule_.placement.num_instances()); }
  size_t instance_on(size_t rank, ActionPart part) const {
    return static_cast<size_t>(
        schedule_.placement.instance_on(static_cast<int>(rank), part.stage()));
  }
  uint32_t next_number() const { return static_cast<uint32_t>(graph_.links_.size()); }
  void add(ChannelGraph::Node node, const ChannelGraph::Links& links) {
    graph_.nodes_.push_back(node);
    graph_.links_.push_back(links);
  }
  void set_second(uint32_t number, uint32_t other) {
    if (graph_.second_.empty()) graph_.second_.assign(graph_.links_.capacity(), kNone);
    graph_.second_[number] = other;
  }

  // ---- compute orders

  void find_makers() {
    inputs_ = {schedule_.placement, schedule_.num_microbatches, {kNone, kNone}};
    uint32_t number = 0;
    for (const ir::Row& row : schedule_.rows) {
      for (const ir::Action& action : row) {
        for (const ActionPart part : action.parts()) {
          if (part.kind() == ActionKind::kForward)
            inputs_.at(part.stage(), part.microbatch())[0] = number;
          if (ir::gives_input_gradient(part.kind()))
            inputs_.at(part.stage(), part.microbatch())[1] = number;
        }
        ++number;
      }
    }
  }

  // The computes of other stages whose results `part` uses: an output and a gradient.
  void find_inputs(ActionPart part, uint32_t number, std::array<uint32_t, 2>* inputs) const {
    for (const ir::StageDependencies::Need& need : dependencies_.of(part)) {
      if (need.stage == part.stage()) continue;
      const size_t slot = need.result == ir::Result::kOutput ? 0 : 1;
      const uint32_t maker = inputs_.at(need.stage, part.microbatch())[slot];
      if (maker == kNone) {
        (*inputs)[slot] = number;
      } else if (need.of_other_rank || maker > number) {
        (*inputs)[slot] = maker;
      }
    }
  }

  // ---- programs

  void number_queues(ir::ChannelModel channels) {
    const ir::RankPairs pairs(schedule_.placement);
    std::map<std::pair<int, uint32_t>, uint32_t> ids;
    ends_ = ir::StageKindTable<End>(schedule_.placement);
    for (size_t instance = 0; instance < num_instances(); ++instance) {
      for (const ActionKind kind :
           {ActionKind::kSendF, ActionKind::kRecvF, ActionKind::kSendB, ActionKind::kRecvB}) {
        const ActionPart part = ir::part_of(kind, static_cast<int>(instance), schedule_.placement);
        const auto& transfer = dependencies_.of(part).transfer;
        if (!transfer || transfer->from == transfer->to) continue;
        const bool sends = ir::is_send(kind);
        const int rank = sends ? transfer->from : transfer->to;
        const int peer = sends ? transfer->to : transfer->from;
        const int receiver = (sends ? transfer->receive : part).stage();
        const std::pair key(rank, ir::queue_index(channels, static_cast<uint32_t>(peer), sends));
        const auto id = ids.try_emplace(key, static_cast<uint32_t>(ids.size())).first->second;
        ends_[part] = {pairs.of(part), id, receiver};
      }
    }
    last_of_queue_.assign(ids.size(), kNone);
    unmatched_.resize(pairs.size());
  }

  // Tables for the WAITs, if the program has any.
  void make_awaited() {
    if ((ir::kinds_in(schedule_.rows) & ir::kWaits) == 0) return;
    sends_ = {schedule_.placement, schedule_.num_microbatches, {kNone, kNone}};
    reductions_.assign(num_instances(), kNone);
  }
  // Where the number of a SEND or REDUCE_GRAD is kept for its WAIT. Null if no WAIT needs it.
  uint32_t* awaited_by(ActionPart part, size_t rank) {
    if (reductions_.empty()) return nullptr;
    if (part.kind() == ActionKind::kReduceGrad) return &reductions_[instance_on(rank, part)];
    if (!ir::is_send(part.kind())) return nullptr;
    return &sends_.at(part.stage(), part.microbatch())[part.kind() == ActionKind::kSendF ? 0 : 1];
  }

  void add_transfer(ActionPart part, uint32_t poster) {
    const uint32_t number = next_number();
    const bool sends = ir::is_send(part.kind());
    const ChannelGraph::Node node =
        sends ? ChannelGraph::Node::kSend : ChannelGraph::Node::kReceive;
    const End& end = ends_[part];
    if (end.pair == kNone) {
      transfers_match_ = false;
      add(node, {poster, kNone, kNone});
      return;
    }
    const bool forward = part.kind() == ActionKind::kSendF || part.kind() == ActionKind::kRecvF;
    uint32_t& transfer = inputs_.at(end.receiver, part.microbatch())[forward ? 0 : 1];
    Unmatched& unmatched = unmatched_[end.pair];
    uint32_t partner = kNone;
    if (unmatched.head != kNone && unmatched.are_sends != sends) {
      partner = std::exchange(unmatched.head, graph_.links_[unmatched.head].first);
      graph_.links_[partner].first = number;
      transfers_match_ &= transfer == partner;
    } else {
      (unmatched.head == kNone ? unmatched.head : graph_.links_[unmatched.tail].first) = number;
      unmatched.tail = number;
      unmatched.are_sends = sends;
    }
    add(node, {poster, std::exchange(last_of_queue_[end.queue], number), partner});
    if (!sends || partner == kNone) transfer = number;
    num_unused_ += !sends;
  }

  // Ends the lists of operations that have no partner.
  void drop_unmatched() {
    for (const Unmatched& unmatched : unmatched_) {
      transfers_match_ &= unmatched.head == kNone;
      for (uint32_t one = unmatched.head; one != kNone;)
        one = std::exchange(graph_.links_[one].first, kNone);
    }
  }

  void find_input_slots() {
    input_slots_ = ir::StageKindTable<uint8_t>(schedule_.placement, kNoSlot);
    for (size_t instance = 0; instance < num_instances(); ++instance) {
      for (const ActionKind kind :
           {ActionKind::kForward, ActionKind::kBackward, ActionKind::kBackwardInput}) {
        const ActionPart part = ir::part_of(kind, static_cast<int>(instance), schedule_.placement);
        for (const ir::StageDependencies::Need& need : dependencies_.of(part)) {
          if (need.of_other_rank) input_slots_[part] = need.result == ir::Result::kOutput ? 0 : 1;
        }
      }
    }
  }

  // The RECV, earlier in its row, of the result of another rank that a compute uses.
  uint32_t input_of(ActionPart part) {
    const uint8_t slot = input_slots_[part];
    if (slot == kNoSlot) return kNone;
    const uint32_t input = inputs_.at(part.stage(), part.microbatch())[slot];
    if (input == kNone || input < first_of_row_) return kNone;  // so far only its SEND
    --num_unused_;
    return input;
  }

  // The k-th SEND of a pair waits for RECV k - capacity.
  void make_room(ir::ChannelCapacity capacity) {
    std::vector<std::vector<uint32_t>> sends(unmatched_.size());
    for (uint32_t number = 0; number < graph_.size(); ++number) {
      if (graph_.node(number) != ChannelGraph::Node::kSend) continue;
      const ChannelGraph::Cell cell = graph_.cell_of(number);
      const uint32_t pair = ends_[schedule_.rows[cell.rank][cell.step].parts()[0]].pair;
      if (pair == kNone) continue;
      std::vector<uint32_t>& of_pair = sends[pair];
      if (of_pair.size() >= capacity)
        set_second(number, graph_.partner_of(of_pair[of_pair.size() - capacity]));
      of_pair.push_back(number);
    }
  }

  static constexpr uint8_t kNoSlot = 2;

  const ir::Schedule& schedule_;
  ir::StageDependencies dependencies_{schedule_.placement};
  ChannelGraph graph_;
  // By (stage, microbatch), of its output and its input gradient: in orders the compute that makes
  // it; in programs of a stage's input and its output's gradient: the RECV, or the SEND if that is
  // the only one so far.
  Inputs inputs_;
  // The SENDs and the last REDUCE_GRADs so far, if the program has WAITs.
  Inputs sends_;                      // by (stage, microbatch): SEND_F, SEND_B
  std::vector<uint32_t> reductions_;  // by instance
  ir::StageKindTable<End> ends_;
  ir::StageKindTable<uint8_t> input_slots_;  // which of inputs_ a compute uses
  uint32_t first_of_row_ = 0;
  bool transfers_match_ = true;    // each SEND and RECV so far meets its own other end
  std::ptrdiff_t num_unused_ = 0;  // RECVs minus inputs of computes
  std::vector<uint32_t> last_of_queue_;
  std::vector<Unmatched> unmatched_;  // by pair
};

ChannelGraph ChannelGraph::of_order(const ir::ComputeOrder& order) {
  return ChannelGraphBuilder(order).build_order();
}

ChannelGraph ChannelGraph::of_program(const ir::Program& program, ir::ChannelModel channels,
                                      ir::ChannelCapacity capacity) {
  return ChannelGraphBuilder(program).build_program(channels, capacity);
}

ChannelGraph::Cell ChannelGraph::cell_of(uint32_t action) const {
  const auto next = std::ranges::upper_bound(first_of_rank_, action);
  return {static_cast<size_t>(next - first_of_rank_.begin()) - 1, action - *(next - 1)};
}

std::vector<Dependency> ChannelGraph::dependencies_of(uint32_t action) const {
  std::vector<Dependency> all;
  any_dependency(action, [&](const Dependency& dependency) {
    all.push_back(dependency);
    return false;
  });
  return all;
}

std::vector<uint32_t> ChannelGraph::order() const {
  std::vector<uint32_t> order;
  order.reserve(size());
  run([&](uint32_t action) { order.push_back(action); });
  return order;
}

}  // namespace pipewright::schedule
