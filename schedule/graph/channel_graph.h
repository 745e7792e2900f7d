#ifndef PIPEWRIGHT_SCHEDULE_GRAPH_CHANNEL_GRAPH_H_
#define PIPEWRIGHT_SCHEDULE_GRAPH_CHANNEL_GRAPH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipewright/ir/channel.h"
#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

// An edge of the channel graph: an action that another one waits for.
struct Dependency {
  enum Kind : uint32_t {
    kEnd,       // starts after its end
    kOutput,    // starts after its output has arrived from another rank (compute orders only)
    kGradient,  // starts after its input gradient has arrived from another rank (likewise)
    kSend,      // a RECV depends on its SEND: it starts and ends no sooner than the SEND
  };

  uint32_t action;
  Kind kind;
};

// The partial order of a schedule's actions: what each action waits for. This is the statement of
// what ir/channel.h implies for a program: the verifier, the simulator, slack, critical paths and
// the drawings all walk this graph. (edge_transfers.h has a shorter one for programs with queues
// per edge, which the common case of verifying and simulating takes.)
//
// Actions are numbered along the rows, idle slots included, as in ir::Timeline. An action waits for
//
//   compute               the compute or WAIT before it on its rank; the RECVs of its inputs; the
//                         UNSHARD of its stage, if it is the first to use it
//   WAIT                  the compute or WAIT before it on its rank, and the SEND or REDUCE_GRAD
//                         that it is for
//   SEND, RECV            its poster (the compute or WAIT before it on its rank) and the operation
//                         before it in its queue
//   RECV                  also its SEND: the k-th RECV of an ordered pair of ranks waits for
//                         the k-th SEND
//   SEND, capacity 0      also whatever its RECV waits for, since the two run together; the
//                         RECV itself waits for its SEND only
//   SEND, capacity n > 0  also the RECV that makes room for it: the k-th SEND for RECV k - n
//   UNSHARD, RESHARD,     its poster and its predecessor in a queue that these
//   REDUCE_GRAD           actions share, one per rank
//
// In a compute order, transfers are ideal: a compute waits for the compute before it on its rank
// and for the computes of other ranks whose results it uses; the queues are absent.
//
// Example, ranks of stages 0 and 1, capacity 0: `1RECV_F0` waits for `0SEND_F0`, which waits for
// `0F0`; `1F0` waits for `1RECV_F0`.
//
//   const ChannelGraph graph = ChannelGraph::of_program(program, ir::ChannelModel::kEdge, 0);
//   const auto blocked = graph.run([&](uint32_t action) { ... });  // dependencies first
//   if (!blocked.empty()) ...                                      // a deadlock
//
// The graph holds no costs and does not refer to the schedule, so one graph serves any number of
// simulations. A plain value; const functions are safe to call from any thread. Time and memory are
// linear in the number of actions, which must be below 2^32 - 1: 13 bytes per action, 17 in
// programs with compounds or a finite capacity above 0.
class ChannelGraph {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Each (stage, microbatch) must appear at most once per kind. A compute whose input no action
  // computes depends on itself.
  static ChannelGraph of_order(const ir::ComputeOrder& order);
  // A SEND or RECV without a partner waits only for its poster and its queue. A compute waits for
  // RECVs that come before it in its row. So the graph is that of the channel model if SENDs and
  // RECVs match one to one and each input is received in time; check_data_flow() ensures both.
  static ChannelGraph of_program(const ir::Program& program, ir::ChannelModel channels,
                                 ir::ChannelCapacity capacity);

  // ---- actions

  enum class Node : uint8_t { kIdle, kCompute, kDataParallel, kSend, kReceive, kWait };

  size_t size() const { return nodes_.size(); }  // idle slots included
  Node node(uint32_t action) const { return nodes_[action]; }

  struct Cell {
    size_t rank, step;
  };
  // The inverse of number_of(). Logarithmic in the number of ranks.
  Cell cell_of(uint32_t action) const;
  uint32_t number_of(size_t rank, size_t step) const {
    return first_of_rank_[rank] + static_cast<uint32_t>(step);
  }
  size_t num_ranks() const { return first_of_rank_.size() - 1; }
  bool is_order() const { return is_order_; }            // otherwise a program
  bool is_rendezvous() const { return is_rendezvous_; }  // a program with capacity 0
  // Whether each SEND and RECV of a program meets the other end of its own transfer, and each RECV
  // comes before a compute that uses it. For programs in which no action appears twice.
  bool transfers_match() const { return transfers_match_; }

  // ---- edges

  // Calls visit(Dependency) for each action that `action` waits for, until it returns true. Returns
  // whether it did. There are at most four.
  template <typename Visit>
  bool any_dependency(uint32_t action, const Visit& visit) const;
  // Returns them as a list.
  std::vector<Dependency> dependencies_of(uint32_t action) const;

  // The links that the edges follow from. kNone if there is no such action.

  // The compute or WAIT before an action on its rank; for SENDs, RECVs and data-parallel actions
  // also called its poster.
  uint32_t compute_before(uint32_t action) const { return links_[action].before; }
  // The operation before a SEND, RECV or data-parallel action in its queue. Compute orders have no
  // queues.
  uint32_t before_in_queue(uint32_t operation) const {
    return is_order_ ? kNone : links_[operation].queue;
  }
  // The other end of a SEND or RECV.
  uint32_t partner_of(uint32_t operation) const { return links_[operation].first; }
  // What a compute, a WAIT, or a SEND with a capacity above 0 waits for besides its poster and
  // queue: the inputs, what the WAIT is for, or the RECV that makes room. At most two; calls
  // visit(action).
  template <typename Visit>
  void for_each_awaited(uint32_t action, const Visit& visit) const;

  // ---- changes: an operation gets another place in its row

  void set_poster(uint32_t operation, uint32_t compute) { links_[operation].before = compute; }
  void set_before_in_queue(uint32_t operation, uint32_t before) {
    links_[operation].queue = before;
  }

  // ---- the topological pass

  // Calls visit(action) for each action that can run, after those that it waits for. Returns the
  // actions that cannot run, in ascending order: each of them is on a cycle or waits for one.
  template <typename Visit>
  std::vector<uint32_t> run(const Visit& visit) const;
  // Runs without a visitor.
  std::vector<uint32_t> blocked() const {
    return run([](uint32_t) {});
  }
  // The actions in an order in which they can run; incomplete if the schedule cannot run to its
  // end.
  std::vector<uint32_t> order() const;

 private:
  friend class ChannelGraphBuilder;
  ChannelGraph() = default;

  struct Links {
    uint32_t before;  // the compute or WAIT before it on its rank
    // The operation before it in its queue. Of a compute: its UNSHARD, in compute orders the
    // compute that makes the gradient it uses.
    uint32_t queue;
    // For a SEND its RECV, for a RECV its SEND, for a compute its input, for a WAIT what it is for.
    uint32_t first;
  };
  uint32_t second(uint32_t action) const { return second_.empty() ? kNone : second_[action]; }

  std::vector<uint32_t> first_of_rank_;  // number of each rank's first action, then size()
  std::vector<Node> nodes_;
  std::vector<Links> links_;
  // In programs, a compound's second input and the RECV that makes room for a SEND. Empty if there
  // are none.
  std::vector<uint32_t> second_;
  bool is_order_ = false;
  bool is_rendezvous_ = false;  // capacity 0
  bool transfers_match_ = false;
};

template <typename Visit>
bool ChannelGraph::any_dependency(uint32_t action, const Visit& visit) const {
  const auto waits = [&](uint32_t other, Dependency::Kind kind = Dependency::kEnd) {
    return other != kNone && visit(Dependency{other, kind});
  };
  const Links& links = links_[action];
  switch (nodes_[action]) {
    case Node::kIdle:
      return false;
    case Node::kDataParallel:
      return waits(links.before) || waits(links.queue);
    case Node::kCompute:
      return waits(links.before) ||
             waits(links.queue, is_order_ ? Dependency::kGradient : Dependency::kEnd) ||
             waits(links.first, is_order_ ? Dependency::kOutput : Dependency::kEnd) ||
             waits(second(action));
    case Node::kWait:
      return waits(links.before) || waits(links.first);
    case Node::kReceive:
      return (!is_rendezvous_ && (waits(links.before) || waits(links.queue))) ||
             waits(links.first, Dependency::kSend);
    case Node::kSend:
      if (waits(links.before) || waits(links.queue)) return true;
      if (!is_rendezvous_ || links.first == kNone) return waits(second(action));
      const Links& receive = links_[links.first];
      return waits(receive.before) || waits(receive.queue);
  }
  return false;
}

// A depth-first search along the dependencies: an action ends as soon as everything that it waits
// for has ended. `path` is a chain of actions that wait, each for the next. If the last one waits
// for an action that is on the path, or that is known to be blocked, then the whole path is
// blocked. Each dependency is looked at no more than twice.
template <typename Visit>
std::vector<uint32_t> ChannelGraph::run(const Visit& visit) const {
  enum Mark : uint8_t { kNew, kOnPath, kEnded, kBlocked };
  std::vector<Mark> marks(size(), kNew);
  std::vector<uint32_t> path, blocked;
  for (uint32_t start = 0; start < size(); ++start) {
    if (marks[start] != kNew || nodes_[start] == Node::kIdle) continue;
    path.assign(1, start);
    marks[start] = kOnPath;
    while (!path.empty()) {
      const uint32_t action = path.back();
      uint32_t open = kNone;
      any_dependency(action, [&](const Dependency& dependency) {
        if (marks[dependency.action] == kEnded) return false;
        open = dependency.action;
        return true;
      });
      if (open == kNone) {
        marks[action] = kEnded;
        visit(action);
        path.pop_back();
      } else if (marks[open] == kNew) {
        marks[open] = kOnPath;
        path.push_back(open);
      } else {
        for (const uint32_t one : path) marks[one] = kBlocked;
        blocked.insert(blocked.end(), path.begin(), path.end());
        path.clear();
      }
    }
  }
  std::ranges::sort(blocked);
  return blocked;
}

template <typename Visit>
void ChannelGraph::for_each_awaited(uint32_t action, const Visit& visit) const {
  const bool has_first = nodes_[action] == Node::kCompute || nodes_[action] == Node::kWait;
  if (has_first && links_[action].first != kNone) visit(links_[action].first);
  const uint32_t other = is_order_ ? links_[action].queue : second(action);
  if (other != kNone) visit(other);
}

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_GRAPH_CHANNEL_GRAPH_H_
