#include "schedule/channel_run.h"

#include <algorithm>
#include <map>

namespace pipewright::schedule {
using ir::ActionKind;
using ir::ActionPart;

ChannelRun::ChannelRun(const ir::Program& program, ir::ChannelModel model,
                       ir::ChannelCapacity capacity)
    : program_(program), capacity_(capacity), pair_ids_(program.placement) {
  const auto num_stages = static_cast<size_t>(program.placement.num_stages());
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
  const size_t cells = num_stages * static_cast<size_t>(program.num_microbatches);
  received_forward_.resize(cells);
  received_backward_.resize(cells);
  link_rows();
  next_compute_.assign(program.rows.size(), kNone);
  for (size_t rank = 0; rank < program.rows.size(); ++rank) advance(static_cast<int>(rank));
  while (!work_.empty()) {
    const uint32_t queue = work_.back();
    work_.pop_back();
    try_queue(queue);
  }
}

uint32_t ChannelRun::queue_of(ActionPart part) const {
  const Pair& pair = pairs_[pair_ids_.of(part)];
  return ir::is_send(part.kind()) ? pair.send_queue : pair.receive_queue;
}

void ChannelRun::link_rows() {
  next_.resize(program_.rows.size());
  for (size_t rank = 0; rank < program_.rows.size(); ++rank) {
    const ir::Row& row = program_.rows[rank];
    next_[rank].assign(row.size(), kNone);
    // From the end, so that each queue's head becomes its first operation.
    for (size_t step = row.size(); step-- > 0;) {
      if (!ir::is_send(row[step].kind()) && !ir::is_receive(row[step].kind())) continue;
      Queue& queue = queues_[queue_of(row[step].parts()[0])];
      next_[rank][step] = queue.head;
      queue.head = static_cast<int>(step);
    }
  }
}

std::vector<int> ChannelRun::receives_of(int rank, int step) const {
  std::vector<int> steps;
  const ir::Row& row = program_.rows[static_cast<size_t>(rank)];
  for (const ActionPart part : row[static_cast<size_t>(step)].parts()) {
    for (const ir::Need& need : ir::needs_of(part, program_.placement)) {
      if (need.rank == rank) continue;
      const ActionPart receive(
          need.result == ir::Result::kOutput ? ActionKind::kRecvF : ActionKind::kRecvB,
          part.stage(), part.microbatch());
      const auto found = std::ranges::find(row, ir::Action(receive));
      steps.push_back(static_cast<int>(found - row.begin()));
    }
  }
  return steps;
}

bool ChannelRun::has_inputs(int rank, int step) const {
  for (const ActionPart part :
       program_.rows[static_cast<size_t>(rank)][static_cast<size_t>(step)].parts()) {
    for (const ir::Need& need : ir::needs_of(part, program_.placement)) {
      if (need.rank == rank) continue;
      const auto cell =
          static_cast<size_t>(part.stage()) * static_cast<size_t>(program_.num_microbatches) +
          static_cast<size_t>(part.microbatch());
      if (!(need.result == ir::Result::kOutput ? received_forward_ : received_backward_)[cell])
        return false;
    }
  }
  return true;
}

// Ends computes as far as their inputs are there; each that ends posts what stands behind it.
void ChannelRun::advance(int rank) {
  const ir::Row& row = program_.rows[static_cast<size_t>(rank)];
  int& next = next_compute_[static_cast<size_t>(rank)];
  int step = next;
  const auto is_compute = [&](int at) {
    return ir::is_compute(row[static_cast<size_t>(at)].kind());
  };
  while (step == kNone || (step < static_cast<int>(row.size()) && has_inputs(rank, step))) {
    do {
      ++step;
      if (step < static_cast<int>(row.size()) && !is_compute(step)) {
        const ir::Action& action = row[static_cast<size_t>(step)];
        if (ir::is_send(action.kind()) || ir::is_receive(action.kind()))
          work_.push_back(queue_of(action.parts()[0]));
      }
    } while (step < static_cast<int>(row.size()) && !is_compute(step));
    next = step;
  }
}

bool ChannelRun::can_finish(uint32_t id) const {
  const Queue& queue = queues_[id];
  if (!is_posted(queue)) return false;
  const ActionPart part =
      program_.rows[static_cast<size_t>(queue.rank)][static_cast<size_t>(queue.head)].parts()[0];
  const uint32_t pair_id = pair_ids_.of(part);
  const Pair& pair = pairs_[pair_id];
  const bool sends = ir::is_send(part.kind());
  if (sends && (capacity_ == ir::kUnboundedCapacity || pair.sent - pair.received < capacity_))
    return true;
  if (!sends && pair.received < pair.sent) return true;
  // Both at the heads of their queues: the SEND that is next with the RECV that is next.
  if (pair.sent != pair.received) return false;
  const Queue& other = queues_[sends ? pair.receive_queue : pair.send_queue];
  if (!is_posted(other)) return false;
  const ActionPart head =
      program_.rows[static_cast<size_t>(other.rank)][static_cast<size_t>(other.head)].parts()[0];
  return pair_ids_.of(head) == pair_id && ir::is_send(head.kind()) != sends;
}

void ChannelRun::finish_head(uint32_t id) {
  Queue& queue = queues_[id];
  const ActionPart part =
      program_.rows[static_cast<size_t>(queue.rank)][static_cast<size_t>(queue.head)].parts()[0];
  Pair& pair = pairs_[pair_ids_.of(part)];
  queue.head = next_[static_cast<size_t>(queue.rank)][static_cast<size_t>(queue.head)];
  work_.push_back(id);
  if (ir::is_send(part.kind())) {
    ++pair.sent;
    work_.push_back(pair.receive_queue);
    return;
  }
  ++pair.received;
  work_.push_back(pair.send_queue);
  const auto cell =
      static_cast<size_t>(part.stage()) * static_cast<size_t>(program_.num_microbatches) +
      static_cast<size_t>(part.microbatch());
  (part.kind() == ActionKind::kRecvF ? received_forward_ : received_backward_)[cell] = true;
  advance(queue.rank);
}

void ChannelRun::try_queue(uint32_t id) {
  if (!can_finish(id)) return;
  const Queue& queue = queues_[id];
  const ActionPart part =
      program_.rows[static_cast<size_t>(queue.rank)][static_cast<size_t>(queue.head)].parts()[0];
  const Pair& pair = pairs_[pair_ids_.of(part)];
  const bool sends = ir::is_send(part.kind());
  const bool together = pair.sent == pair.received && (!sends || capacity_ == 0);
  const uint32_t other = sends ? pair.receive_queue : pair.send_queue;
  finish_head(id);
  if (together) finish_head(other);
}

bool ChannelRun::finished() const {
  for (const Queue& queue : queues_) {
    if (queue.head != kNone) return false;
  }
  for (size_t rank = 0; rank < next_compute_.size(); ++rank) {
    if (next_compute_[rank] != static_cast<int>(program_.rows[rank].size())) return false;
  }
  return true;
}

std::vector<ChannelRun::Node> ChannelRun::blocked() const {
  std::vector<Node> nodes;
  for (size_t rank = 0; rank < next_compute_.size(); ++rank) {
    if (next_compute_[rank] != static_cast<int>(program_.rows[rank].size()))
      nodes.push_back({static_cast<int>(rank), next_compute_[rank]});
  }
  for (const Queue& queue : queues_) {
    if (is_posted(queue)) nodes.push_back({queue.rank, queue.head});
  }
  std::ranges::sort(nodes);
  return nodes;
}

int ChannelRun::nth_step(uint32_t pair, bool send, uint32_t index) const {
  const uint32_t queue = send ? pairs_[pair].send_queue : pairs_[pair].receive_queue;
  const ir::Row& row = program_.rows[static_cast<size_t>(queues_[queue].rank)];
  uint32_t seen = 0;
  for (size_t step = 0; step < row.size(); ++step) {
    const ActionKind kind = row[step].kind();
    if (send ? !ir::is_send(kind) : !ir::is_receive(kind)) continue;
    if (pair_ids_.of(row[step].parts()[0]) == pair && seen++ == index)
      return static_cast<int>(step);
  }
  return kNone;
}

std::vector<ChannelRun::Wait> ChannelRun::waits_of(const Node& node) const {
  const ir::Action& action =
      program_.rows[static_cast<size_t>(node.rank)][static_cast<size_t>(node.step)];
  std::vector<Wait> waits;
  // An operation waits for the head of its queue; for the compute before it where it is not posted
  // yet.
  const auto wait_for = [&](int rank, int step) {
    const Queue& queue = queues_[queue_of(
        program_.rows[static_cast<size_t>(rank)][static_cast<size_t>(step)].parts()[0])];
    const int next_compute = next_compute_[static_cast<size_t>(rank)];
    const int first = step < next_compute ? queue.head : next_compute;
    waits.push_back({{rank, step}, {rank, first}});
  };
  if (ir::is_compute(action.kind())) {
    for (const int step : receives_of(node.rank, node.step)) {
      const ActionPart receive =
          program_.rows[static_cast<size_t>(node.rank)][static_cast<size_t>(step)].parts()[0];
      const auto cell =
          static_cast<size_t>(receive.stage()) * static_cast<size_t>(program_.num_microbatches) +
          static_cast<size_t>(receive.microbatch());
      if (!(receive.kind() == ActionKind::kRecvF ? received_forward_ : received_backward_)[cell])
        wait_for(node.rank, step);
    }
    return waits;
  }
  const ActionPart part = action.parts()[0];
  const bool sends = ir::is_send(part.kind());
  const uint32_t pair = pair_ids_.of(part);
  const uint32_t index = sends ? pairs_[pair].sent : pairs_[pair].received;
  // With room for n, the SEND number k waits for the RECV number k - n.
  const uint32_t other = sends ? index - std::min(index, capacity_) : index;
  const int step = nth_step(pair, !sends, other);
  if (step != kNone)
    wait_for(queues_[sends ? pairs_[pair].receive_queue : pairs_[pair].send_queue].rank, step);
  return waits;
}

}  // namespace pipewright::schedule
