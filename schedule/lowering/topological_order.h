#ifndef PIPEWRIGHT_SCHEDULE_LOWERING_TOPOLOGICAL_ORDER_H_
#define PIPEWRIGHT_SCHEDULE_LOWERING_TOPOLOGICAL_ORDER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipewright/ir/check.h"

namespace pipewright::schedule {

// A topological order of a graph that is repaired, not recomputed, when an edge is added: only the
// nodes between the two ends of the edge change places (Pearce and Kelly, ACM JEA 2006).
//
// The invariant: every edge goes from a lower to a higher position. A Graph has
//
//   size_t num_nodes() const                     all node numbers are below this
//   bool is_node(uint32_t) const                 whether a number is a node
//   void for_each_next(uint32_t, visit) const    calls visit(next) for each edge from a node
template <typename Graph>
class TopologicalOrder {
 public:
  using Node = uint32_t;

  // The graph must outlive it. Throws ir::InternalError if the graph has a cycle. Kahn's algorithm,
  // linear in nodes and edges.
  explicit TopologicalOrder(const Graph& graph)
      : graph_(graph), position_(graph.num_nodes()), reached_in_(graph.num_nodes()) {
    const size_t size = graph.num_nodes();
    std::vector<uint32_t> open(size);  // edges from nodes that have no position yet
    for (Node node = 0; node < size; ++node) {
      if (graph.is_node(node)) graph.for_each_next(node, [&](Node next) { ++open[next]; });
    }
    for (Node node = 0; node < size; ++node) {
      if (graph.is_node(node) && open[node] == 0) order_.push_back(node);
    }
    for (size_t done = 0; done < order_.size(); ++done) {
      position_[order_[done]] = static_cast<uint32_t>(done);
      graph.for_each_next(order_[done], [&](Node next) {
        if (--open[next] == 0) order_.push_back(next);
      });
    }
    PW_CHECK(std::ranges::all_of(open, [](uint32_t left) { return left == 0; }),
             "a graph with a topological order has no cycle");
  }

  uint32_t position(Node node) const { return position_[node]; }

  // Finds the nodes that can be reached from `start` without going beyond position `last`. Linear
  // in the edges of the nodes found.
  void search(Node start, uint32_t last) {
    ++search_;
    reached_in_[start] = search_;
    stack_.assign(1, start);
    while (!stack_.empty()) {
      const Node node = stack_.back();
      stack_.pop_back();
      graph_.for_each_next(node, [&](Node next) {
        if (position_[next] > last || is_reached(next)) return;
        reached_in_[next] = search_;
        stack_.push_back(next);
      });
    }
  }
  // Whether the last search reached the node.
  bool is_reached(Node node) const { return reached_in_[node] == search_; }

  // Repairs the order after an edge was added from the node at position `last` to `node`. The edge
  // must not close a cycle. Moves `node`, and the nodes that must follow it, after that position.
  void move_after(Node node, uint32_t last) {
    const uint32_t first = position_[node];
    if (last <= first) return;
    search(node, last);
    moved_.clear();
    uint32_t free = first;
    const auto put = [&](Node one) {
      order_[free] = one;
      position_[one] = free++;
    };
    for (uint32_t at = first; at <= last; ++at) {
      const Node one = order_[at];
      if (is_reached(one)) {
        moved_.push_back(one);
      } else {
        put(one);
      }
    }
    for (const Node one : moved_) put(one);
  }

 private:
  const Graph& graph_;
  std::vector<Node> order_;
  std::vector<uint32_t> position_;    // by node: its index in order_
  std::vector<uint32_t> reached_in_;  // by node: the last search that reached it
  uint32_t search_ = 0;               // the number of the last search
  std::vector<Node> stack_, moved_;   // members only to reuse their memory
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_TOPOLOGICAL_ORDER_H_
