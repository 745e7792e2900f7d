#ifndef PIPEWRIGHT_TESTS_CHANNEL_MODEL_INTERPRETER_H_
#define PIPEWRIGHT_TESTS_CHANNEL_MODEL_INTERPRETER_H_

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "pipewright/ir/channel.h"
#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/schedule.h"

// The channel model of ir/channel.h, written as plainly as possible, for tests: it explores every
// interleaving of a small program (at most 63 actions), without regard for speed. A state is the
// set of actions that have finished. The verifier must agree with it.

namespace pipewright::channel_model {

class Interpreter {
 public:
  Interpreter(const ir::Program& program, ir::ChannelModel model, ir::ChannelCapacity capacity)
      : placement_(program.placement), slices_(program.slices), model_(model), capacity_(capacity) {
    std::map<std::pair<int, int>, int> sends, receives;
    for (size_t rank = 0; rank < program.rows.size(); ++rank) {
      for (const ir::Action& action : program.rows[rank]) {
        // Data-parallel actions wait for nothing here, and nothing waits for them.
        const bool transfers = ir::is_send(action.kind()) || ir::is_receive(action.kind());
        if (!ir::is_compute(action.kind()) && !ir::is_wait_send(action.kind()) && !transfers)
          continue;
        Item item{static_cast<int>(rank), action, -1, {}, 0};
        if (transfers) {
          const ir::Transfer transfer = *ir::partner_of(action.parts()[0], placement_);
          item.pair = {transfer.from, transfer.to};
          item.peer = ir::is_send(action.kind()) ? transfer.to : transfer.from;
          item.number = (ir::is_send(action.kind()) ? sends : receives)[item.pair]++;
        }
        items_.push_back(item);
      }
    }
  }

  // Whether execution stops before all actions have finished. Every interleaving must stop in the
  // same state: see confluent().
  bool deadlocks() {
    std::set<uint64_t> ends, seen;
    std::vector<uint64_t> open = {0};
    while (!open.empty()) {
      const uint64_t state = open.back();
      open.pop_back();
      if (!seen.insert(state).second) continue;
      const std::vector<uint64_t> next = successors(state);
      if (next.empty()) ends.insert(state);
      open.insert(open.end(), next.begin(), next.end());
    }
    confluent_ = ends.size() == 1;
    return *ends.begin() != (uint64_t{1} << items_.size()) - 1 || !confluent_;
  }
  bool confluent() const { return confluent_; }

  // Whether the k-th SEND of an ordered pair of ranks meets a k-th RECV that is not its partner.
  bool swaps() const {
    for (const Item& send : items_) {
      if (!ir::is_send(send.action.kind())) continue;
      const ir::Transfer transfer = *ir::partner_of(send.action.parts()[0], placement_);
      for (const Item& receive : items_) {
        if (!ir::is_receive(receive.action.kind()) || receive.pair != send.pair ||
            receive.number != send.number)
          continue;
        if (receive.action != ir::Action(transfer.receive)) return true;
      }
    }
    return false;
  }

 private:
  struct Item {
    int rank;
    ir::Action action;
    int peer;                  // of a SEND or RECV
    std::pair<int, int> pair;  // from, to
    int number;                // among the SENDs, or the RECVs, of its pair
  };

  static bool has(uint64_t state, size_t item) { return (state >> item & 1) != 0; }

  // What stops its rank until it has ended.
  static bool stops(const Item& item) {
    return ir::is_compute(item.action.kind()) || ir::is_wait_send(item.action.kind());
  }

  // Every compute and wait before it in its rank's row has ended.
  bool posted(uint64_t state, size_t item) const {
    for (size_t before = 0; before < item; ++before) {
      if (items_[before].rank == items_[item].rank && stops(items_[before]) && !has(state, before))
        return false;
    }
    return true;
  }

  bool same_queue(const Item& left, const Item& right) const {
    if (left.rank != right.rank || left.peer < 0 || right.peer < 0) return false;
    switch (model_) {
      case ir::ChannelModel::kRank:
        return true;
      case ir::ChannelModel::kPeer:
        return left.peer == right.peer;
      case ir::ChannelModel::kEdge:
        return left.peer == right.peer &&
               ir::is_send(left.action.kind()) == ir::is_send(right.action.kind());
    }
    return false;
  }

  // Posted, and everything before it in its queue has finished.
  bool at_head(uint64_t state, size_t item) const {
    if (has(state, item) || !posted(state, item)) return false;
    for (size_t before = 0; before < item; ++before) {
      if (same_queue(items_[before], items_[item]) && !has(state, before)) return false;
    }
    return true;
  }

  // A compute can end when those before it have ended and its own RECVs have finished.
  bool can_end(uint64_t state, size_t item) const {
    if (!posted(state, item)) return false;
    for (const ir::ActionPart part : items_[item].action.parts()) {
      for (const ir::Need& need : ir::needs_of(part, placement_)) {
        if (need.rank == items_[item].rank) continue;
        const ir::Action receive(
            need.result == ir::Result::kOutput ? ir::ActionKind::kRecvF : ir::ActionKind::kRecvB,
            part.stage(), part.microbatch());
        bool received = false;
        for (size_t other = 0; other < items_.size(); ++other)
          received = received || (items_[other].action == receive && has(state, other));
        if (!received) return false;
      }
      if (!has_slice_before(state, item, part)) return false;
    }
    return true;
  }

  // The slice that `part` follows on its stage, keys and values or their gradients, has ended: F of
  // slice k-1 for an F, B or I of slice k+1 for a B or I.
  bool has_slice_before(uint64_t state, size_t item, ir::ActionPart part) const {
    const bool is_forward = part.kind() == ir::ActionKind::kForward;
    const int slice = part.microbatch() % slices_, first = is_forward ? 0 : slices_ - 1;
    if (part.kind() == ir::ActionKind::kBackwardWeight || slice == first) return true;
    for (size_t other = 0; other < items_.size(); ++other) {
      for (const ir::ActionPart before : items_[other].action.parts()) {
        const bool is_alike = is_forward ? before.kind() == ir::ActionKind::kForward
                                         : before.kind() == ir::ActionKind::kBackward ||
                                               before.kind() == ir::ActionKind::kBackwardInput;
        if (is_alike && before.stage() == part.stage() &&
            before.microbatch() == part.microbatch() + (is_forward ? -1 : 1))
          return other != item && has(state, other);
      }
    }
    return false;
  }

  // A wait can end when what precedes it has ended and its SEND has finished.
  bool can_go_on(uint64_t state, size_t item) const {
    if (!posted(state, item)) return false;
    const ir::ActionPart wait = items_[item].action.parts()[0];
    const ir::Action send(
        wait.kind() == ir::ActionKind::kWaitSendF ? ir::ActionKind::kSendF : ir::ActionKind::kSendB,
        wait.stage(), wait.microbatch());
    for (size_t other = 0; other < items_.size(); ++other) {
      if (items_[other].action == send) return has(state, other);
    }
    return false;
  }

  std::vector<uint64_t> successors(uint64_t state) const {
    std::vector<uint64_t> next;
    const auto bit = [](size_t item) { return uint64_t{1} << item; };
    for (size_t item = 0; item < items_.size(); ++item) {
      if (has(state, item)) continue;
      const ir::ActionKind kind = items_[item].action.kind();
      if (ir::is_compute(kind)) {
        if (can_end(state, item)) next.push_back(state | bit(item));
      } else if (ir::is_wait_send(kind)) {
        if (can_go_on(state, item)) next.push_back(state | bit(item));
      } else if (ir::is_send(kind) && at_head(state, item)) {
        uint32_t ahead = 0;  // SENDs of the pair that finished before their RECVs
        for (size_t other = 0; other < items_.size(); ++other) {
          if (items_[other].pair != items_[item].pair || items_[other].peer < 0 ||
              !has(state, other))
            continue;
          ahead += ir::is_send(items_[other].action.kind()) ? 1 : -1;
        }
        if (ahead < capacity_) next.push_back(state | bit(item));
        for (size_t other = 0; other < items_.size(); ++other) {
          const bool partner = ir::is_receive(items_[other].action.kind()) &&
                               items_[other].pair == items_[item].pair &&
                               items_[other].number == items_[item].number;
          if (partner && at_head(state, other)) next.push_back(state | bit(item) | bit(other));
        }
      } else if (ir::is_receive(kind) && at_head(state, item)) {
        for (size_t other = 0; other < items_.size(); ++other) {
          const bool partner = ir::is_send(items_[other].action.kind()) &&
                               items_[other].pair == items_[item].pair &&
                               items_[other].number == items_[item].number;
          if (partner && has(state, other)) next.push_back(state | bit(item));
        }
      }
    }
    return next;
  }

  ir::Placement placement_;
  int slices_;
  ir::ChannelModel model_;
  ir::ChannelCapacity capacity_;
  std::vector<Item> items_;
  bool confluent_ = true;
};

}  // namespace pipewright::channel_model

#endif  // PIPEWRIGHT_TESTS_CHANNEL_MODEL_INTERPRETER_H_
