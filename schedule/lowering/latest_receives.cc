#include "pipewright/schedule/lowering/latest_receives.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "pipewright/ir/check.h"
#include "pipewright/ir/rank_pairs.h"
#include "pipewright/ir/stage_dependencies.h"
#include "pipewright/ir/stage_microbatch_table.h"

namespace pipewright::schedule {
namespace {

using ir::ActionKind;
using ir::ActionPart;

// One value per RECV that a program may have.
template <typename Value>
class PerReceive {
 public:
  PerReceive(const ir::Program& program, Value value)
      : values_(program.placement, program.num_microbatches, {value, value}) {}

  Value& operator[](ActionPart receive) {
    return values_.at(receive.stage(), receive.microbatch())[receive.kind() == ActionKind::kRecvB];
  }

 private:
  ir::StageMicrobatchTable<std::array<Value, 2>> values_;  // RECV_F, RECV_B
};

// Calls `use` with each RECV that feeds a compute.
template <typename Use>
void for_each_receive_of(const ir::Action& compute, const ir::StageDependencies& dependencies,
                         const Use& use) {
  if (!ir::is_compute(compute.kind())) return;
  for (const ActionPart part : compute.parts()) {
    for (const ir::StageDependencies::Need& need : dependencies.of(part)) {
      if (need.of_other_rank) use(need.receive_for(part));
    }
  }
}

// Under `edge` a RECV shares its queue with the RECVs from the same rank alone. It must be posted
// before its own use, and before the RECVs that follow it in that queue: so each goes to the first
// use among its own and theirs. Nothing else can block, as a RECV whose SEND is to come holds up
// only RECVs whose SENDs come later still.
void place_at_first_use(ir::Program* program, const ir::RankPairs& pairs) {
  std::vector<ir::Row> waiting(pairs.size());  // RECVs in the order of their SENDs
  std::vector<size_t> next(pairs.size());
  PerReceive<uint8_t> is_placed(*program, false);
  const ir::StageDependencies dependencies(program->placement);
  for (ir::Row& row : program->rows) {
    for (const ir::Action& action : row) {
      if (ir::is_receive(action.kind())) waiting[pairs.of(action.parts()[0])].push_back(action);
    }
    ir::Row placed;
    placed.reserve(row.size());
    for (const ir::Action& action : row) {
      if (ir::is_receive(action.kind())) continue;
      for_each_receive_of(action, dependencies, [&](ActionPart receive) {
        const uint32_t pair = pairs.of(receive);
        while (!is_placed[receive]) {
          placed.push_back(waiting[pair][next[pair]++]);
          is_placed[placed.back().parts()[0]] = true;
        }
      });
      placed.push_back(action);
    }
    row = std::move(placed);
  }
}

// The program as a graph of what must go before what, kept in a topological order while RECVs move.
// It runs to its end if and only if the graph has no cycle:
//
//   compute -> the next compute of its rank; every SEND and RECV posted between the two
//   SEND, RECV -> the next of its queue
//   RECV -> the compute that uses it
//   SEND number k -> RECV number k; with room for n > 0, RECV number k -> SEND number k + n
//
// With room for 0 a SEND and its RECV finish as one: the pair is one node, the SEND's.
class ReceiveMover {
 public:
  ReceiveMover(const ir::Program& program, ir::ChannelModel channels, ir::ChannelCapacity capacity,
               const ir::RankPairs& pairs)
      : program_(program), pairs_(pairs), rendezvous_(capacity == 0) {
    link_rows();
    link_queues(channels);
    link_pairs(capacity);
    sort();
  }

  ir::Rows run() {
    std::vector<Node> receives;
    for (Node node = 0; node < actions_.size(); ++node) {
      if (ir::is_receive(actions_[node].kind())) receives.push_back(node);
    }
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t index = receives.size(); index-- > 0;)
        moved = move_later(receives[index]) || moved;
    }
    ir::Rows rows(program_.rows.size());
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      rows[rank].reserve(program_.rows[rank].size());
      for (Node node = next_[row_head(rank)]; node != row_head(rank); node = next_[node])
        rows[rank].push_back(actions_[node]);
    }
    return rows;
  }

 private:
  using Node = uint32_t;  // an action, numbered along the rows
  static constexpr Node kNone = UINT32_MAX;
  static constexpr uint32_t kNoQueue = UINT32_MAX;

  // Rows are rings through a head of their own, behind the actions.
  Node row_head(size_t rank) const { return static_cast<Node>(actions_.size() + rank); }
  bool is_head(Node node) const { return node >= actions_.size(); }
  bool is_compute(Node node) const { return ir::is_compute(actions_[node].kind()); }
  bool is_transfer(Node node) const { return queue_[node] != kNoQueue; }
  // The node that stands for an action in the graph.
  Node stands_for(Node node) const {
    return rendezvous_ && ir::is_receive(actions_[node].kind()) ? partner_[node] : node;
  }

  void link_rows() {
    for (const ir::Row& row : program_.rows)
      actions_.insert(actions_.end(), row.begin(), row.end());
    PW_CHECK(actions_.size() + program_.rows.size() < kNone, "nodes are numbered in 32 bits");
    const size_t size = actions_.size() + program_.rows.size();
    next_.resize(size);
    previous_.resize(size);
    Node node = 0;
    for (size_t rank = 0; rank < program_.rows.size(); ++rank) {
      Node last = row_head(rank);
      for (size_t step = 0; step < program_.rows[rank].size(); ++step, ++node) {
        next_[last] = node;
        previous_[node] = last;
        last = node;
      }
      next_[last] = row_head(rank);
      previous_[row_head(rank)] = last;
    }
  }

  void link_queues(ir::ChannelModel channels) {
    queue_.assign(actions_.size(), kNoQueue);
    next_in_queue_.assign(actions_.size(), kNone);
    previous_in_queue_.assign(actions_.size(), kNone);
    std::map<std::pair<int, uint32_t>, uint32_t> ids;
    const auto id_of = [&](int rank, int peer, bool send) {
      const std::pair key(rank, ir::queue_index(channels, static_cast<uint32_t>(peer), send));
      return ids.try_emplace(key, static_cast<uint32_t>(ids.size())).first->second;
    };
    std::vector<std::pair<uint32_t, uint32_t>> queues_of_pair;  // of the SENDs, of the RECVs
    for (uint32_t pair = 0; pair < pairs_.size(); ++pair) {
      const auto [from, to] = pairs_.ranks(pair);
      const uint32_t send = id_of(from, to, true);
      queues_of_pair.emplace_back(send, id_of(to, from, false));
    }
    std::vector<Node> last(ids.size(), kNone);
    for (Node node = 0; node < actions_.size(); ++node) {
      const ActionKind kind = actions_[node].kind();
      if (!ir::is_send(kind) && !ir::is_receive(kind)) continue;
      const auto [send, receive] = queues_of_pair[pairs_.of(actions_[node].parts()[0])];
      queue_[node] = ir::is_send(kind) ? send : receive;
      link_in_queue(last[queue_[node]], node);
      last[queue_[node]] = node;
    }
  }

  // Either may be kNone, for an end.
  void link_in_queue(Node left, Node right) {
    if (left != kNone) next_in_queue_[left] = right;
    if (right != kNone) previous_in_queue_[right] = left;
  }

  void link_pairs(ir::ChannelCapacity capacity) {
    partner_.assign(actions_.size(), kNone);
    user_.assign(actions_.size(), kNone);
    frees_.assign(actions_.size(), kNone);
    std::vector<std::vector<Node>> sends(pairs_.size());
    for (Node node = 0; node < actions_.size(); ++node) {
      if (ir::is_send(actions_[node].kind()))
        sends[pairs_.of(actions_[node].parts()[0])].push_back(node);
    }
    std::vector<size_t> received(pairs_.size());
    for (Node node = 0; node < actions_.size(); ++node) {
      if (!ir::is_receive(actions_[node].kind())) continue;
      const uint32_t pair = pairs_.of(actions_[node].parts()[0]);
      const size_t number = received[pair]++;
      partner_[node] = sends[pair][number];
      partner_[sends[pair][number]] = node;
      if (number + capacity < sends[pair].size()) frees_[node] = sends[pair][number + capacity];
    }
    const ir::StageDependencies dependencies(program_.placement);
    PerReceive<Node> nodes(program_, kNone);
    for (Node node = 0; node < actions_.size(); ++node) {
      if (ir::is_receive(actions_[node].kind())) nodes[actions_[node].parts()[0]] = node;
    }
    for (size_t rank = 0; rank < program_.rows.size(); ++rank) {
      for (Node node = next_[row_head(rank)]; !is_head(node); node = next_[node]) {
        for_each_receive_of(actions_[node], dependencies,
                            [&](ActionPart receive) { user_[nodes[receive]] = node; });
      }
    }
  }

  template <typename Visit>
  void for_each_next(Node node, const Visit& visit) const {
    if (is_compute(node)) {
      for (Node later = next_[node]; !is_head(later); later = next_[later]) {
        if (is_transfer(later)) visit(stands_for(later));
        if (!is_compute(later)) continue;
        visit(later);
        break;
      }
      return;
    }
    const auto visit_queue = [&](Node one) {
      if (next_in_queue_[one] != kNone) visit(stands_for(next_in_queue_[one]));
    };
    visit_queue(node);
    if (ir::is_receive(actions_[node].kind())) {
      visit(user_[node]);
      if (frees_[node] != kNone) visit(frees_[node]);
    } else if (rendezvous_) {
      visit_queue(partner_[node]);
      visit(user_[partner_[node]]);
    } else {
      visit(partner_[node]);
    }
  }

  // Kahn's algorithm.
  void sort() {
    std::vector<uint32_t> open(actions_.size());
    const auto is_node = [&](Node node) {
      return is_compute(node) || (is_transfer(node) && stands_for(node) == node);
    };
    for (Node node = 0; node < actions_.size(); ++node) {
      if (is_node(node)) for_each_next(node, [&](Node later) { ++open[later]; });
    }
    position_.assign(actions_.size(), 0);
    for (Node node = 0; node < actions_.size(); ++node) {
      if (is_node(node) && open[node] == 0) order_.push_back(node);
    }
    for (size_t done = 0; done < order_.size(); ++done) {
      position_[order_[done]] = static_cast<uint32_t>(done);
      for_each_next(order_[done], [&](Node later) {
        if (--open[later] == 0) order_.push_back(later);
      });
    }
    PW_CHECK(std::ranges::all_of(open, [](uint32_t left) { return left == 0; }),
             "the program runs to its end before its RECVs are moved");
    reached_at_.assign(actions_.size(), 0);
  }

  // Marks what comes after `start`, as far as position `last` in the order.
  void reach(Node start, uint32_t last) {
    ++search_;
    reached_at_[start] = search_;
    stack_.assign(1, start);
    while (!stack_.empty()) {
      const Node node = stack_.back();
      stack_.pop_back();
      for_each_next(node, [&](Node later) {
        if (position_[later] > last || is_reached(later)) return;
        reached_at_[later] = search_;
        stack_.push_back(later);
      });
    }
  }
  bool is_reached(Node node) const { return reached_at_[node] == search_; }

  // Whether an action of the row of `receive` has an order with it. Other queues do not mind.
  bool has_order_with(Node receive, Node node) const {
    return is_compute(node) || queue_[node] == queue_[receive];
  }

  // What a RECV cannot be moved past wherever it stands: its use, and the next RECV of its pair.
  bool ends_way_of(Node receive, Node node) const {
    return node == user_[receive] ||
           (ir::is_receive(actions_[node].kind()) &&
            pairs_.of(actions_[node].parts()[0]) == pairs_.of(actions_[receive].parts()[0]));
  }

  // Moves a RECV as far as it can go. It can be moved past an action unless that must follow it by
  // other ways than their places in row and queue; and then it cannot be moved past what stands
  // further on either.
  bool move_later(Node receive) {
    const Node node = stands_for(receive);
    const Node before = previous_[receive];
    Node left = previous_in_queue_[receive], right = next_in_queue_[receive];
    next_[before] = next_[receive];
    previous_[next_[receive]] = before;
    link_in_queue(left, right);
    next_in_queue_[receive] = kNone;

    uint32_t last = position_[node];
    for (Node later = next_[before]; !ends_way_of(receive, later); later = next_[later]) {
      if (has_order_with(receive, later)) last = std::max(last, position_[stands_for(later)]);
    }
    reach(node, last);
    Node place = before;
    uint32_t behind = position_[node], passed = behind;
    for (Node later = next_[before]; !ends_way_of(receive, later); later = next_[later]) {
      if (has_order_with(receive, later)) {
        if (is_reached(stands_for(later))) break;
        passed = std::max(passed, position_[stands_for(later)]);
      }
      // RECVs alone are not worth passing: they are posted at the same moment.
      if (ir::is_receive(actions_[later].kind())) continue;
      place = later;
      behind = passed;
    }

    for (Node later = before; later != place;) {
      later = next_[later];
      if (queue_[later] != queue_[receive]) continue;
      left = later;
      right = next_in_queue_[later];
    }
    link_in_queue(left, receive);
    link_in_queue(receive, right);
    previous_[next_[place]] = receive;
    next_[receive] = next_[place];
    next_[place] = receive;
    previous_[receive] = place;
    if (place == before) return false;
    put_behind(node, behind);
    return true;
  }

  // Mends the order after `node` has come to depend on something at position `last`: it goes behind
  // that, with all that must follow it.
  void put_behind(Node node, uint32_t last) {
    const uint32_t first = position_[node];
    if (last <= first) return;
    reach(node, last);
    moved_.clear();
    uint32_t free = first;
    for (uint32_t at = first; at <= last; ++at) {
      const Node one = order_[at];
      if (is_reached(one)) {
        moved_.push_back(one);
        continue;
      }
      order_[free] = one;
      position_[one] = free++;
    }
    for (const Node one : moved_) {
      order_[free] = one;
      position_[one] = free++;
    }
  }

  const ir::Program& program_;
  const ir::RankPairs& pairs_;
  bool rendezvous_;
  std::vector<ir::Action> actions_;
  // By node.
  std::vector<Node> next_, previous_;                    // in the row
  std::vector<uint32_t> queue_;                          // of a SEND or RECV
  std::vector<Node> next_in_queue_, previous_in_queue_;  // kNone at the ends
  std::vector<Node> partner_;                            // of a SEND its RECV, and the other way
  std::vector<Node> user_;                               // of a RECV: the compute that uses it
  std::vector<Node> frees_;         // of a RECV: the SEND that its end makes room for
  std::vector<uint32_t> position_;  // in order_
  std::vector<uint32_t> reached_at_;
  std::vector<Node> order_;  // topological
  uint32_t search_ = 0;      // the number of the last search
  std::vector<Node> stack_, moved_;
};

}  // namespace

ir::Program latest_receives(ir::Program program, ir::ChannelModel channels,
                            ir::ChannelCapacity capacity) {
  const ir::RankPairs pairs(program.placement);
  if (channels == ir::ChannelModel::kEdge) {
    place_at_first_use(&program, pairs);
  } else {
    program.rows = ReceiveMover(program, channels, capacity, pairs).run();
  }
  program.lowering.receives = ir::Receives::kLatest;
  program.lowering.channels = channels;
  program.lowering.capacity = capacity;
  return program;
}

}  // namespace pipewright::schedule
