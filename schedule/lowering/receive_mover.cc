// Moves RECVs later without creating a deadlock.
//
// The program is seen as a graph whose edges lead from an action to one that cannot finish before
// it. The program runs to its end if and only if the graph has no cycle:
//
//   compute -> the next compute of its rank; each SEND and RECV posted between the two
//   SEND, RECV -> the next operation of its queue
//   RECV -> the compute that uses it
//   k-th SEND -> k-th RECV; with capacity n > 0, k-th RECV -> (k+n)-th SEND
//
// With capacity 0 a SEND and its RECV finish together: the pair is one node, that of the SEND.
//
// Moving a RECV past an action reverses the order of the two in row and queue. That closes a cycle
// if and only if the action can be reached from the RECV by other edges, and then the RECV cannot
// pass any later action either. So a RECV is taken out of its row and queue, one search marks the
// actions that it reaches, and it is put back just before the first marked one.
//
// The invariant between two moves: row links, queue links and topological order describe one
// program that runs to its end. RECVs are moved from the last to the first, in rounds, until a
// round moves none. A move costs a search through the part of the topological order that the RECV
// passes, roughly the actions between its SEND and its use. Usually there are two rounds.
#include "pipewright/schedule/lowering/receive_mover.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "pipewright/ir/check.h"
#include "pipewright/ir/rank_pairs.h"
#include "pipewright/ir/stage_dependencies.h"
#include "pipewright/schedule/lowering/receives_of.h"
#include "pipewright/schedule/lowering/topological_order.h"

namespace pipewright::schedule {
namespace {

using ir::ActionKind;
using ir::ActionPart;

// A program as the graph above. Actions are numbered along the rows.
class ProgramGraph {
 public:
  using Node = uint32_t;
  static constexpr Node kNone = UINT32_MAX;

  ProgramGraph(const ir::Program& program, ir::ChannelModel channels, ir::ChannelCapacity capacity)
      : program_(program), pairs_(program.placement), rendezvous_(capacity == 0) {
    link_rows();
    link_queues(channels);
    link_pairs(capacity);
    link_users();
  }

  // ---- the graph

  size_t num_nodes() const { return actions_.size(); }
  bool is_node(Node action) const {
    return is_compute(action) || (is_transfer(action) && node_of(action) == action);
  }
  // The node of a compute, SEND or RECV.
  Node node_of(Node action) const {
    return rendezvous_ && is_receive(action) ? partner_[action] : action;
  }
  template <typename Visit>
  void for_each_next(Node node, const Visit& visit) const {
    if (is_compute(node)) {
      for (Node later = next(node); !is_head(later); later = next(later)) {
        if (is_transfer(later)) visit(node_of(later));
        if (!is_compute(later)) continue;
        visit(later);
        break;
      }
      return;
    }
    const auto visit_queue = [&](Node action) {
      if (in_queue_[action].next != kNone) visit(node_of(in_queue_[action].next));
    };
    visit_queue(node);
    if (is_receive(node)) {
      visit(user_[node]);
      if (frees_[node] != kNone) visit(frees_[node]);
    } else if (rendezvous_) {
      visit_queue(partner_[node]);
      visit(user_[partner_[node]]);
    } else {
      visit(partner_[node]);
    }
  }

  // ---- rows

  bool is_receive(Node action) const { return ir::is_receive(actions_[action].kind()); }
  // The action after this one in its row; the row's head after the last.
  Node next(Node action) const { return in_row_[action].next; }

  // Whether a RECV can never be moved past an action of its row: the compute that uses it, or the
  // next RECV of its pair of ranks.
  bool stops(Node receive, Node action) const {
    return action == user_[receive] ||
           (is_receive(action) &&
            pairs_.of(actions_[action].parts()[0]) == pairs_.of(actions_[receive].parts()[0]));
  }
  // Whether the graph orders a RECV and an action of its row. Other queues are independent.
  bool is_ordered_with(Node receive, Node action) const {
    return is_compute(action) || queue_[action] == queue_[receive];
  }

  // The place of a RECV before it was taken out.
  struct Place {
    Node previous;  // in the row
    Node previous_in_queue, next_in_queue;
  };
  Place take_out(Node receive) {
    const Place place{in_row_[receive].previous, in_queue_[receive].previous,
                      in_queue_[receive].next};
    link(place.previous, in_row_[receive].next, &in_row_);
    link(place.previous_in_queue, place.next_in_queue, &in_queue_);
    in_queue_[receive] = {};
    return place;
  }
  // Puts a RECV back, after `previous`, which must not come before its old place.
  void put_back(Node receive, const Place& old_place, Node previous) {
    Node left = old_place.previous_in_queue, right = old_place.next_in_queue;
    for (Node action = old_place.previous; action != previous;) {
      action = next(action);
      if (queue_[action] != queue_[receive]) continue;
      left = action;
      right = in_queue_[action].next;
    }
    link(left, receive, &in_queue_);
    link(receive, right, &in_queue_);
    link(receive, next(previous), &in_row_);
    link(previous, receive, &in_row_);
  }

  ir::Rows rows() const {
    ir::Rows rows(program_.rows.size());
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      rows[rank].reserve(program_.rows[rank].size());
      for (Node action = next(head(rank)); action != head(rank); action = next(action))
        rows[rank].push_back(actions_[action]);
    }
    return rows;
  }

 private:
  static constexpr uint32_t kNoQueue = UINT32_MAX;
  struct Links {
    Node next = kNone, previous = kNone;
  };

  // Each row is a ring with a head node; the heads are numbered after the actions.
  Node head(size_t rank) const { return static_cast<Node>(actions_.size() + rank); }
  bool is_head(Node action) const { return action >= actions_.size(); }
  bool is_compute(Node action) const { return ir::is_compute(actions_[action].kind()); }
  bool is_transfer(Node action) const { return queue_[action] != kNoQueue; }

  // Either may be kNone at an end of the list.
  static void link(Node left, Node right, std::vector<Links>* links) {
    if (left != kNone) (*links)[left].next = right;
    if (right != kNone) (*links)[right].previous = left;
  }

  void link_rows() {
    for (const ir::Row& row : program_.rows)
      actions_.insert(actions_.end(), row.begin(), row.end());
    PW_CHECK(actions_.size() + program_.rows.size() < kNone, "actions are numbered in 32 bits");
    in_row_.resize(actions_.size() + program_.rows.size());
    Node action = 0;
    for (size_t rank = 0; rank < program_.rows.size(); ++rank) {
      Node last = head(rank);
      for (size_t step = 0; step < program_.rows[rank].size(); ++step) {
        link(last, action, &in_row_);
        last = action++;
      }
      link(last, head(rank), &in_row_);
    }
  }

  void link_queues(ir::ChannelModel channels) {
    queue_.assign(actions_.size(), kNoQueue);
    in_queue_.resize(actions_.size());
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
    for (Node action = 0; action < actions_.size(); ++action) {
      const ActionKind kind = actions_[action].kind();
      if (!ir::is_transfer(kind)) continue;
      const auto [send, receive] = queues_of_pair[pairs_.of(actions_[action].parts()[0])];
      queue_[action] = ir::is_send(kind) ? send : receive;
      link(last[queue_[action]], action, &in_queue_);
      last[queue_[action]] = action;
    }
  }

  // Links the k-th SEND with the k-th RECV, and the k-th RECV with the (k + capacity)-th SEND.
  void link_pairs(ir::ChannelCapacity capacity) {
    partner_.assign(actions_.size(), kNone);
    frees_.assign(actions_.size(), kNone);
    std::vector<std::vector<Node>> sends(pairs_.size());
    for (Node action = 0; action < actions_.size(); ++action) {
      if (ir::is_send(actions_[action].kind()))
        sends[pairs_.of(actions_[action].parts()[0])].push_back(action);
    }
    std::vector<size_t> received(pairs_.size());
    for (Node action = 0; action < actions_.size(); ++action) {
      if (!is_receive(action)) continue;
      const uint32_t pair = pairs_.of(actions_[action].parts()[0]);
      const size_t number = received[pair]++;
      partner_[action] = sends[pair][number];
      partner_[sends[pair][number]] = action;
      if (number + capacity < sends[pair].size()) frees_[action] = sends[pair][number + capacity];
    }
  }

  void link_users() {
    user_.assign(actions_.size(), kNone);
    PerReceive<Node> receives(program_, kNone);
    for (Node action = 0; action < actions_.size(); ++action) {
      if (is_receive(action)) receives[actions_[action].parts()[0]] = action;
    }
    const ir::StageDependencies dependencies(program_.placement);
    for (Node action = 0; action < actions_.size(); ++action) {
      for_each_receive_of(actions_[action], dependencies,
                          [&](ActionPart receive) { user_[receives[receive]] = action; });
    }
  }

  const ir::Program& program_;
  ir::RankPairs pairs_;
  bool rendezvous_;
  std::vector<ir::Action> actions_;
  // By action.
  std::vector<Links> in_row_;    // heads included
  std::vector<Links> in_queue_;  // kNone at the ends
  std::vector<uint32_t> queue_;  // of a SEND or RECV; else kNoQueue
  std::vector<Node> partner_;    // of a SEND its RECV, of a RECV its SEND
  std::vector<Node> user_;       // of a RECV: the compute that uses it
  std::vector<Node> frees_;      // of a RECV: the SEND that it makes room for
};

using Order = TopologicalOrder<ProgramGraph>;
using Node = ProgramGraph::Node;

// Moves a RECV as late as it can go. False if it stays where it is.
bool move_later(Node receive, ProgramGraph* graph, Order* order) {
  const Node node = graph->node_of(receive);
  const ProgramGraph::Place old_place = graph->take_out(receive);

  uint32_t last = order->position(node);
  for (Node action = graph->next(old_place.previous); !graph->stops(receive, action);
       action = graph->next(action)) {
    if (graph->is_ordered_with(receive, action))
      last = std::max(last, order->position(graph->node_of(action)));
  }
  order->search(node, last);

  Node previous = old_place.previous;
  uint32_t after = order->position(node), passed = after;
  for (Node action = graph->next(previous); !graph->stops(receive, action);
       action = graph->next(action)) {
    if (graph->is_ordered_with(receive, action)) {
      if (order->is_reached(graph->node_of(action))) break;
      passed = std::max(passed, order->position(graph->node_of(action)));
    }
    // Passing RECVs alone gains nothing: adjacent RECVs are posted at the same moment.
    if (graph->is_receive(action)) continue;
    previous = action;
    after = passed;
  }

  graph->put_back(receive, old_place, previous);
  if (previous == old_place.previous) return false;
  order->move_after(node, after);
  return true;
}

}  // namespace

ir::Rows move_receives_later(const ir::Program& program, ir::ChannelModel channels,
                             ir::ChannelCapacity capacity) {
  ProgramGraph graph(program, channels, capacity);
  Order order(graph);
  std::vector<Node> receives;
  for (Node action = 0; action < graph.num_nodes(); ++action) {
    if (graph.is_receive(action)) receives.push_back(action);
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t index = receives.size(); index-- > 0;)
      moved = move_later(receives[index], &graph, &order) || moved;
  }
  return graph.rows();
}

}  // namespace pipewright::schedule
