// The graph of what must come before what has all actions but the WAITs as nodes. An action comes
// before the next one of its rank, a SEND before its RECV, and a RECV, if its SEND is awaited,
// before the action that follows the WAIT. A WAIT can move to a place before action `a` if no path
// leads from `a` to the RECV; it holds up nobody if one leads from the RECV to `a`.
//
// A WAIT that has moved forward keeps its old place in the order of its rank, so edges are only
// added. Positions in a topological order bound each search: no path leads backwards.
#include "pipewright/schedule/lowering/limit_sends.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "pipewright/ir/check.h"
#include "pipewright/ir/dependencies.h"
#include "pipewright/schedule/lowering/place_receives.h"

namespace pipewright::schedule {
namespace {

using ir::Action;
using ir::ActionPart;

class SendGraph {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit SendGraph(const ir::Program& program)
      : placement_(program.placement), receives_(program, kNone) {
    for (const ir::Row& row : program.rows) {
      for (const Action& action : row) {
        if (ir::is_wait_send(action.kind())) continue;
        if (ir::is_receive(action.kind())) receives_[action.parts()[0]] = size();
        leads_to_.push_back(kNone);
        ends_row_.push_back(false);
      }
      if (!ends_row_.empty()) ends_row_.back() = true;
    }
    uint32_t node = 0;
    for (const ir::Row& row : program.rows) {
      for (size_t step = 0; step < row.size(); ++step) {
        const ActionPart part = row[step].parts()[0];
        if (ir::is_send(part.kind())) leads_to_[node] = receive_of(part);
        if (!ir::is_wait_send(part.kind())) {
          ++node;
          continue;
        }
        const bool is_last =
            std::all_of(row.begin() + static_cast<std::ptrdiff_t>(step), row.end(),
                        [](const Action& action) { return ir::is_wait_send(action.kind()); });
        if (!is_last) leads_to_[receive_of(ir::awaited_by(part))] = node;
      }
    }
    seen_.resize(size());
    sort();
  }

  uint32_t receive_of(ActionPart send) { return receives_[partner(send)]; }

  bool reaches(uint32_t from, uint32_t to) {
    ++search_;
    std::vector<uint32_t> left = {from};
    while (!left.empty()) {
      const uint32_t node = left.back();
      left.pop_back();
      if (node == to) return true;
      for_each_next(node, [&](uint32_t next) {
        if (order_[next] > order_[to] || seen_[next] == search_) return;
        seen_[next] = search_;
        left.push_back(next);
      });
    }
    return false;
  }

  // The RECV now comes before `node`.
  void move_wait(uint32_t receive, uint32_t node) {
    leads_to_[receive] = node;
    if (order_[receive] > order_[node]) sort();
  }

 private:
  uint32_t size() const { return static_cast<uint32_t>(leads_to_.size()); }
  ActionPart partner(ActionPart send) const { return ir::partner_of(send, placement_)->receive; }

  template <typename Visit>
  void for_each_next(uint32_t node, const Visit& visit) const {
    if (!ends_row_[node]) visit(node + 1);
    if (leads_to_[node] != kNone) visit(leads_to_[node]);
  }

  void sort() {
    std::vector<uint32_t> missing(size());
    for (uint32_t node = 0; node < size(); ++node)
      for_each_next(node, [&](uint32_t next) { ++missing[next]; });
    std::vector<uint32_t> ready;
    for (uint32_t node = 0; node < size(); ++node)
      if (missing[node] == 0) ready.push_back(node);
    order_.assign(size(), 0);
    for (uint32_t i = 0; i < ready.size(); ++i) {
      order_[ready[i]] = i;
      for_each_next(ready[i], [&](uint32_t next) {
        if (--missing[next] == 0) ready.push_back(next);
      });
    }
    PW_CHECK(ready.size() == size(), "SENDs, RECVs and WAITs wait for each other");
  }

  const ir::Placement& placement_;
  PerReceive<uint32_t> receives_;
  std::vector<uint32_t> leads_to_;  // of a SEND its RECV; of a RECV what its SEND's WAIT precedes
  std::vector<bool> ends_row_;
  std::vector<uint32_t> order_;  // topological
  std::vector<uint32_t> seen_;   // the last search that has seen a node
  uint32_t search_ = 0;
};

// One rank's row.
class Limiter {
 public:
  Limiter(SendGraph* graph, size_t most) : graph_(*graph), most_(most) {}

  // `node` is that of the row's first action. Returns false if a WAIT cannot be moved.
  bool run(const ir::Row& row, uint32_t node, ir::Row* result) {
    for (const Action& action : row) {
      const ActionPart part = action.parts()[0];
      if (ir::is_wait_send(part.kind())) {
        if (std::erase(pending_, ir::awaited_by(part)) > 0) result->push_back(action);
        continue;
      }
      if (ir::is_send(part.kind())) {
        while (pending_.size() >= most_) {
          const auto send = first_to_await(node);
          if (send == pending_.end()) return false;
          graph_.move_wait(graph_.receive_of(*send), node);
          result->push_back(ir::wait_for(*send));
          pending_.erase(send);
        }
        pending_.push_back(part);
      }
      result->push_back(action);
      ++node;
    }
    return true;
  }

 private:
  std::vector<ActionPart>::iterator first_to_await(uint32_t node) {
    auto found = pending_.end();
    for (auto send = pending_.begin(); send != pending_.end(); ++send) {
      const uint32_t receive = graph_.receive_of(*send);
      if (graph_.reaches(receive, node)) return send;
      if (found == pending_.end() && !graph_.reaches(node, receive)) found = send;
    }
    return found;
  }

  SendGraph& graph_;
  const size_t most_;
  std::vector<ActionPart> pending_;
};

}  // namespace

std::optional<ir::Program> limit_sends(const ir::Program& program, int most) {
  SendGraph graph(program);
  ir::Program result = program;
  uint32_t node = 0;
  for (size_t rank = 0; rank < program.rows.size(); ++rank) {
    const ir::Row& row = program.rows[rank];
    result.rows[rank].clear();
    if (!Limiter(&graph, static_cast<size_t>(most)).run(row, node, &result.rows[rank]))
      return std::nullopt;
    node += static_cast<uint32_t>(std::ranges::count_if(
        row, [](const Action& action) { return !ir::is_wait_send(action.kind()); }));
  }
  result.lowering.max_outstanding_sends = most;
  return result;
}

int least_pending_sends(const ir::Program& program) {
  int most = 1;
  while (!limit_sends(program, most)) ++most;
  return most;
}

}  // namespace pipewright::schedule
