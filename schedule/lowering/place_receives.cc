// Moves RECVs later without creating a deadlock, on the channel graph of the program.
//
// Moving a RECV past an action reverses the order of the two in row and queue: the RECV then waits
// for the action. That closes a cycle if and only if the action waits for the RECV by other edges,
// and then the RECV cannot pass any later action either. So a RECV is taken out of its row and
// queue, a search along the dependencies of each action that follows tells whether the RECV can
// pass it, and the RECV is put back just before the first one that it cannot pass.
//
// The searches of one RECV share their marks, and need not go back beyond the RECV in a topological
// order. That order is then repaired, not recomputed: the actions between the RECV and the last one
// that it passed which those need (the marked ones) change places with the RECV and the others
// (after Pearce and Kelly, ACM JEA 2006).
//
// With capacity 0 a RECV and its SEND run together. The SEND has the dependencies of both, so it
// stands for the pair.
//
// The invariant between two moves: rows, graph and topological order describe one program that runs
// to its end. RECVs are moved from the last to the first, in rounds, until a round moves none. A
// move costs a search through the part of the topological order that the RECV passes, roughly the
// actions between its SEND and its use. Usually there are two rounds.
#include "pipewright/schedule/lowering/place_receives.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "pipewright/ir/dependencies.h"
#include "pipewright/schedule/graph/channel_graph.h"

namespace pipewright::schedule {
namespace {

// A topological order of a channel graph that follows its changes.
class TopologicalOrder {
 public:
  explicit TopologicalOrder(const ChannelGraph& graph)
      : graph_(graph), order_(graph.order()), position_(graph.size()), found_in_(graph.size()) {
    for (uint32_t at = 0; at < order_.size(); ++at) position_[order_[at]] = at;
  }

  uint32_t position(uint32_t action) const { return position_[action]; }

  // Forgets what earlier searches found.
  void start_search() { ++search_; }
  // Whether `action` waits for `other`, directly or not.
  bool waits_for(uint32_t action, uint32_t other) {
    found_.clear();
    const auto add = [&](uint32_t one) {
      if (position_[one] < position_[other] || found_in_[one] == search_) return;
      found_in_[one] = search_;
      found_.push_back(one);
    };
    add(action);
    for (size_t at = 0; at < found_.size(); ++at) {
      const bool reached = graph_.any_dependency(found_[at], [&](const Dependency& dependency) {
        if (dependency.action == other) return true;
        add(dependency.action);
        return false;
      });
      if (!reached) continue;
      for (const uint32_t one : found_) found_in_[one] = 0;
      return true;
    }
    return false;
  }
  // Moves `action` later, so that the actions up to position `last` that the searches found come
  // before it.
  void move_after_found(uint32_t action, uint32_t last) {
    uint32_t free = position_[action];
    const auto put = [&](uint32_t one) {
      order_[free] = one;
      position_[one] = free++;
    };
    others_.clear();
    for (uint32_t at = free; at <= last; ++at) {
      const uint32_t one = order_[at];
      if (found_in_[one] == search_) {
        put(one);
      } else {
        others_.push_back(one);
      }
    }
    for (const uint32_t one : others_) put(one);
  }

 private:
  const ChannelGraph& graph_;
  std::vector<uint32_t> order_;
  std::vector<uint32_t> position_;  // by action: its index in order_
  std::vector<uint32_t> found_in_;  // by action: the last search that found it
  uint32_t search_ = 0;
  std::vector<uint32_t> found_, others_;  // members only to reuse their memory
};

class ReceiveMover {
 public:
  ReceiveMover(const ir::Program& program, ir::ChannelModel channels, ir::ChannelCapacity capacity)
      : program_(program),
        pairs_(program.placement),
        graph_(ChannelGraph::of_program(program, channels, capacity)),
        order_(graph_),
        in_row_(graph_.size() + program.rows.size()),
        next_in_queue_(graph_.size(), kNone),
        queue_(graph_.size(), kNone),
        pair_(graph_.size(), kNone),
        user_(graph_.size(), kNone) {
    uint32_t action = 0;
    for (size_t rank = 0; rank < program.rows.size(); ++rank) {
      uint32_t last = head(rank);
      for (const ir::Action& one : program.rows[rank]) {
        link(last, action);
        last = action;
        if (ir::is_transfer(one.kind())) {
          const uint32_t before = graph_.before_in_queue(action);
          queue_[action] = before == kNone ? action : queue_[before];
          if (before != kNone) next_in_queue_[before] = action;
          pair_[action] = pairs_.of(one.parts()[0]);
        } else if (graph_.node(action) == ChannelGraph::Node::kCompute) {
          graph_.for_each_awaited(action, [&](uint32_t receive) { user_[receive] = action; });
        }
        ++action;
      }
      link(last, head(rank));
    }
  }

  ir::Rows run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (uint32_t action = static_cast<uint32_t>(graph_.size()); action-- > 0;) {
        if (is_receive(action)) moved = move_later(action) || moved;
      }
    }
    return rows();
  }

 private:
  static constexpr uint32_t kNone = ChannelGraph::kNone;

  // Each row is a ring with a head, numbered after the actions.
  struct Links {
    uint32_t next, previous;
  };
  // The place of a RECV before it was taken out.
  struct Place {
    uint32_t previous;  // in the row
    uint32_t previous_in_queue, next_in_queue;
  };

  uint32_t head(size_t rank) const { return static_cast<uint32_t>(graph_.size() + rank); }
  // What is posted after it waits for it.
  bool is_poster(uint32_t action) const {
    return graph_.node(action) == ChannelGraph::Node::kCompute ||
           graph_.node(action) == ChannelGraph::Node::kWait;
  }
  bool is_receive(uint32_t action) const {
    return graph_.node(action) == ChannelGraph::Node::kReceive;
  }
  uint32_t next(uint32_t action) const { return in_row_[action].next; }

  void link(uint32_t left, uint32_t right) {
    in_row_[left].next = right;
    in_row_[right].previous = left;
  }
  void link_in_queue(uint32_t left, uint32_t right) {
    if (left != kNone) next_in_queue_[left] = right;
    if (right != kNone) graph_.set_before_in_queue(right, left);
  }

  // Whether a RECV can never be moved past an action of its row: the compute that uses it, or the
  // next RECV of its pair of ranks.
  bool stops(uint32_t receive, uint32_t action) const {
    return action == user_[receive] || (is_receive(action) && pair_[action] == pair_[receive]);
  }
  // Whether the graph orders a RECV and an action of its row. Other queues are independent.
  bool is_ordered_with(uint32_t receive, uint32_t action) const {
    return is_poster(action) || queue_[action] == queue_[receive];
  }

  Place take_out(uint32_t receive) {
    const Place place{in_row_[receive].previous, graph_.before_in_queue(receive),
                      next_in_queue_[receive]};
    link(place.previous, next(receive));
    link_in_queue(place.previous_in_queue, place.next_in_queue);
    return place;
  }
  // Puts a RECV back, after `previous`, which must not come before its old place.
  void put_back(uint32_t receive, const Place& old_place, uint32_t previous) {
    uint32_t left = old_place.previous_in_queue, right = old_place.next_in_queue;
    for (uint32_t action = old_place.previous; action != previous;) {
      action = next(action);
      if (is_poster(action)) graph_.set_poster(receive, action);
      if (queue_[action] != queue_[receive]) continue;
      left = action;
      right = next_in_queue_[action];
    }
    link_in_queue(left, receive);
    next_in_queue_[receive] = kNone;
    link_in_queue(receive, right);
    link(receive, next(previous));
    link(previous, receive);
  }

  // Moves a RECV as late as it can go. False if it stays where it is.
  bool move_later(uint32_t receive) {
    const uint32_t event = graph_.is_rendezvous() ? graph_.partner_of(receive) : receive;
    const Place old_place = take_out(receive);
    order_.start_search();
    uint32_t previous = old_place.previous;
    uint32_t after = order_.position(event), passed = after;
    for (uint32_t action = next(previous); !stops(receive, action); action = next(action)) {
      if (is_ordered_with(receive, action)) {
        if (order_.waits_for(action, event)) break;
        passed = std::max(passed, order_.position(action));
      }
      // Passing RECVs alone gains nothing: adjacent RECVs are posted at the same moment.
      if (is_receive(action)) continue;
      previous = action;
      after = passed;
    }
    put_back(receive, old_place, previous);
    if (previous == old_place.previous) return false;
    order_.move_after_found(event, after);
    return true;
  }

  ir::Rows rows() const {
    ir::Rows rows(program_.rows.size());
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      rows[rank].reserve(program_.rows[rank].size());
      for (uint32_t action = next(head(rank)); action != head(rank); action = next(action))
        rows[rank].push_back(program_.rows[rank][action - graph_.number_of(rank, 0)]);
    }
    return rows;
  }

  const ir::Program& program_;
  ir::RankPairs pairs_;
  ChannelGraph graph_;
  TopologicalOrder order_;
  // By action.
  std::vector<Links> in_row_;  // heads included
  std::vector<uint32_t> next_in_queue_;
  std::vector<uint32_t> queue_;  // of a SEND or RECV: the first operation of its queue
  std::vector<uint32_t> pair_;   // of a SEND or RECV
  std::vector<uint32_t> user_;   // of a RECV: the compute that uses it
};

}  // namespace

ir::Rows move_receives_later(const ir::Program& program, ir::ChannelModel channels,
                             ir::ChannelCapacity capacity) {
  return ReceiveMover(program, channels, capacity).run();
}

// Under `edge` a RECV shares its queue only with other RECVs from the same rank. It must be posted
// before the compute that uses it, and before the RECVs that follow it in that queue. So its latest
// position is just before the first compute that uses it or any of those RECVs. One pass along each
// row finds it: before each compute, the pass places the RECVs of the queue up to the one that the
// compute needs. Linear. This cannot deadlock: a RECV that waits for its SEND blocks only RECVs
// whose SENDs are later still.
//
// Under `peer` and `rank` a RECV also blocks SENDs, and the positions depend on each other: see
// ReceiveMover.

namespace {

void place_at_first_user(ir::Program* program) {
  const ir::RankPairs pairs(program->placement);
  const ir::StageDependencies dependencies(program->placement);
  std::vector<ir::Row> waiting(pairs.size());  // RECVs in the order of their SENDs
  std::vector<size_t> next(pairs.size());
  PerReceive<uint8_t> is_placed(*program, false);
  for (ir::Row& row : program->rows) {
    for (const ir::Action& action : row) {
      if (ir::is_receive(action.kind())) waiting[pairs.of(action.parts()[0])].push_back(action);
    }
    ir::Row placed;
    placed.reserve(row.size());
    for (const ir::Action& action : row) {
      if (ir::is_receive(action.kind())) continue;
      for_each_receive_of(action, dependencies, [&](ir::ActionPart receive) {
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

}  // namespace

ir::Program latest_receives(ir::Program program, ir::ChannelModel channels,
                            ir::ChannelCapacity capacity) {
  // Past a WAIT_SEND, a RECV may be too late even if it comes before its use.
  const bool awaits_sends = (ir::kinds_in(program.rows) & ir::kSendWaits) != 0;
  if (channels == ir::ChannelModel::kEdge && !awaits_sends) {
    place_at_first_user(&program);
  } else {
    program.rows = move_receives_later(program, channels, capacity);
  }
  program.lowering.receives = ir::Receives::kLatest;
  program.lowering.channels = channels;
  program.lowering.capacity = capacity;
  return program;
}

ir::Program parity_receives(ir::Program program) {
  const ir::StageDependencies dependencies(program.placement);
  ir::Row row, waiting;  // RECVs that are not posted yet
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    row.clear();
    waiting.clear();
    const auto post_if = [&](const auto& is_due) {
      std::erase_if(waiting, [&](const ir::Action& receive) {
        if (!is_due(receive.parts()[0])) return false;
        row.push_back(receive);
        return true;
      });
    };
    for (const ir::Action& action : program.rows[rank]) {
      if (ir::is_receive(action.kind())) {
        waiting.push_back(action);
        continue;
      }
      if (ir::is_send(action.kind())) {
        const int to = ir::partner_of(action.parts()[0], program.placement)->to;
        if (rank < static_cast<size_t>(to)) {
          post_if([&](ir::ActionPart receive) {
            return ir::partner_of(receive, program.placement)->from == to;
          });
        }
      }
      for_each_receive_of(action, dependencies, [&](ir::ActionPart needed) {
        post_if([&](ir::ActionPart receive) { return receive == needed; });
      });
      row.push_back(action);
    }
    program.rows[rank] = row;
  }
  program.lowering.receives = ir::Receives::kParity;
  return program;
}

}  // namespace pipewright::schedule
