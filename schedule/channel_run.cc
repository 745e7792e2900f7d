// A worklist algorithm. Each queue knows its first unfinished operation (head), each rank its first
// compute that has not ended; an operation is posted if it comes before that compute in its row.
// `work_` has the queues whose head may have become able to finish: because it was posted, because
// it became the head, or because its partner finished or reached the head of its own queue.
//
// The invariant: for every head that can finish, its queue or that of its partner is in `work_`.
// Each event (an end of a compute or an operation) adds at most a constant number of queues per
// operation that it posts or uncovers, so that a run is linear in the number of actions.
//
// blocked() and waits_of() explain a deadlock; they may search rows, because they are
// needed only once.
#include "pipewright/schedule/channel_run.h"

#include <algorithm>
#include <map>

namespace pipewright::schedule {
using ir::ActionKind;
using ir::ActionPart;

ChannelRun::ChannelRun(const ir::Program& program, ir::ChannelModel model,
                       ir::ChannelCapacity capacity)
    : program_(program),
      capacity_(capacity),
      pair_ids_(program.placement),
      dependencies_(program.placement),
      received_(program.placement, program.num_microbatches) {
  PW_CHECK(received_.size() <= kMaxCells, "cells are numbered in 30 bits");
  std::map<std::pair<int, uint32_t>, uint32_t> queue_ids;
  const auto queue_id = [&](int rank, int peer, bool send) {
    const uint32_t local = ir::queue_index(model, static_cast<uint32_t>(peer), send);
    const auto [entry, is_new] =
        queue_ids.try_emplace({rank, local}, static_cast<uint32_t>(queues_.size()));
    if (is_new) queues_.push_back({rank, kNone});
    return entry->second;
  };
  for (uint32_t id = 0; id < pair_ids_.size(); ++id) {
    const auto [from, to] = pair_ids_.ranks(id);
    pairs_.push_back({queue_id(from, to, true), queue_id(to, from, false)});
  }
  link_rows();
}

void ChannelRun::link_rows() {
  const auto is_operation = [](const ir::Action& action) { return ir::is_transfer(action.kind()); };
  std::ptrdiff_t size = 0;
  for (const ir::Row& row : program_.rows) size += std::ranges::count_if(row, is_operation);
  operations_.reserve(static_cast<size_t>(size));
  for (const ir::Row& row : program_.rows) {
    first_of_rank_.push_back(static_cast<uint32_t>(operations_.size()));
    uint32_t poster = kNoPoster;
    for (size_t step = 0; step < row.size(); ++step) {
      if (ir::is_compute(row[step].kind())) poster = static_cast<uint32_t>(step);
      if (!is_operation(row[step])) continue;
      const ActionPart part = row[step].parts()[0];
      Operation operation;
      operation.step = static_cast<uint32_t>(step);
      operation.pair = pair_ids_.of(part);
      operation.next = kNone;
      operation.cell =
          static_cast<uint32_t>(received_.index(part.stage(), part.microbatch())) & kMaxCells;
      operation.is_gradient =
          part.kind() == ActionKind::kSendB || part.kind() == ActionKind::kRecvB;
      operation.is_send = ir::is_send(part.kind());
      operation.poster = poster;
      operations_.push_back(operation);
    }
  }
  first_of_rank_.push_back(static_cast<uint32_t>(operations_.size()));
  // From the end, so that each queue's head becomes its first operation.
  for (size_t index = operations_.size(); index-- > 0;) {
    Queue& queue = queues_[queue_of(operations_[index])];
    operations_[index].next = queue.head;
    queue.head = static_cast<uint32_t>(index);
  }
  next_compute_.assign(program_.rows.size(), kNone);
  next_operation_.assign(first_of_rank_.begin(), first_of_rank_.end() - 1);
}

std::vector<uint32_t> ChannelRun::receives_of(int rank, uint32_t step) const {
  std::vector<uint32_t> steps;
  const ir::Row& row = program_.rows[static_cast<size_t>(rank)];
  for (const ActionPart part : row[step].parts()) {
    for (const ir::StageDependencies::Need& need : dependencies_.of(part)) {
      if (!need.of_other_rank) continue;
      const auto found = std::ranges::find(row, ir::Action(need.receive_for(part)));
      steps.push_back(static_cast<uint32_t>(found - row.begin()));
    }
  }
  return steps;
}

bool ChannelRun::has_inputs(int rank, uint32_t step) const {
  for (const ActionPart part : program_.rows[static_cast<size_t>(rank)][step].parts()) {
    for (const ir::StageDependencies::Need& need : dependencies_.of(part)) {
      if (!need.of_other_rank) continue;
      if (!received_.at(part.stage(), part.microbatch())[need.result != ir::Result::kOutput])
        return false;
    }
  }
  return true;
}

bool ChannelRun::can_finish(const Queue& queue) const {
  if (!is_posted(queue)) return false;
  const Operation& operation = operations_[queue.head];
  const Pair& pair = pairs_[operation.pair];
  const bool sends = operation.is_send;
  if (sends && (capacity_ == ir::kUnboundedCapacity || pair.sent - pair.received < capacity_))
    return true;
  if (!sends && pair.received < pair.sent) return true;
  // They finish together: the next SEND and RECV of the pair must both be at the heads of their
  // queues.
  if (pair.sent != pair.received) return false;
  const Queue& other = queues_[sends ? pair.receive_queue : pair.send_queue];
  if (!is_posted(other)) return false;
  const Operation& head = operations_[other.head];
  return head.pair == operation.pair && head.is_send != sends;
}

bool ChannelRun::finished() const {
  for (const Queue& queue : queues_) {
    if (queue.head != kNone) return false;
  }
  for (size_t rank = 0; rank < next_compute_.size(); ++rank) {
    if (next_compute_[rank] != program_.rows[rank].size()) return false;
  }
  return true;
}

std::vector<ChannelRun::Node> ChannelRun::blocked() const {
  std::vector<Node> nodes;
  for (size_t rank = 0; rank < next_compute_.size(); ++rank) {
    if (next_compute_[rank] != program_.rows[rank].size())
      nodes.push_back({static_cast<int>(rank), static_cast<int>(next_compute_[rank])});
  }
  for (const Queue& queue : queues_) {
    if (is_posted(queue))
      nodes.push_back({queue.rank, static_cast<int>(operations_[queue.head].step)});
  }
  std::ranges::sort(nodes);
  return nodes;
}

const ChannelRun::Operation& ChannelRun::operation_at(int rank, uint32_t step) const {
  const auto begin = operations_.begin() + first_of_rank_[static_cast<size_t>(rank)];
  const auto end = operations_.begin() + first_of_rank_[static_cast<size_t>(rank) + 1];
  return *std::ranges::lower_bound(begin, end, step, {}, &Operation::step);
}

const ChannelRun::Operation* ChannelRun::nth_operation(uint32_t pair, bool send,
                                                       uint32_t index) const {
  const uint32_t queue = send ? pairs_[pair].send_queue : pairs_[pair].receive_queue;
  const auto rank = static_cast<size_t>(queues_[queue].rank);
  uint32_t seen = 0;
  for (uint32_t id = first_of_rank_[rank]; id < first_of_rank_[rank + 1]; ++id) {
    const Operation& operation = operations_[id];
    if (operation.pair == pair && operation.is_send == send && seen++ == index) return &operation;
  }
  return nullptr;
}

std::vector<ChannelRun::Wait> ChannelRun::waits_of(const Node& node) const {
  const auto step = static_cast<uint32_t>(node.step);
  const ir::Action& action = program_.rows[static_cast<size_t>(node.rank)][step];
  std::vector<Wait> waits;
  // The operation that `node` waits for is blocked by the head of its queue, or, before it is
  // posted, by the next compute of its rank.
  const auto wait_for = [&](int rank, const Operation& operation) {
    const uint32_t next_compute = next_compute_[static_cast<size_t>(rank)];
    const uint32_t first = operation.step < next_compute
                               ? operations_[queues_[queue_of(operation)].head].step
                               : next_compute;
    waits.push_back({{rank, static_cast<int>(operation.step)}, {rank, static_cast<int>(first)}});
  };
  if (ir::is_compute(action.kind())) {
    for (const uint32_t receive : receives_of(node.rank, step)) {
      const Operation& operation = operation_at(node.rank, receive);
      if (!received(operation)) wait_for(node.rank, operation);
    }
    return waits;
  }
  const Operation& operation = operation_at(node.rank, step);
  const Pair& pair = pairs_[operation.pair];
  const bool sends = operation.is_send;
  const uint32_t index = sends ? pair.sent : pair.received;
  // With capacity n, SEND number k waits for RECV number k - n.
  const uint32_t other_index = sends ? index - std::min(index, capacity_) : index;
  const Operation* other = nth_operation(operation.pair, !sends, other_index);
  if (other != nullptr)
    wait_for(queues_[sends ? pair.receive_queue : pair.send_queue].rank, *other);
  return waits;
}

}  // namespace pipewright::schedule
