// Matches the operations of one communicator.
//
// Idea: only the head of a rank's queue may complete. A post can complete the head of the poster's
// queue, and each completion can unblock the head of one other rank's queue: the peer whose next
// operation has come to the front, or the sender whose buffer has room again. advance() follows
// these with a worklist until no head can complete.
//
// Invariant, whenever the lock is free: no head can complete, that is, no RECV at a head has a
// buffered SEND, no SEND at a head finds room in its buffer, and no two heads match. A SEND is
// delivered directly only while its pair's buffer is empty, so the k-th SEND of an ordered pair of
// ranks always meets its k-th RECV. Enabled operations stay enabled until they complete, so the
// result does not depend on the order in which heads are visited.
//
// Complexity: every operation is queued, moved and completed once, in constant time besides the
// data; a collective of n ranks takes O(n) per part. Memory is O(n * n) for the buffers, plus what
// is pending.
#include "pipewright/comms/threads/mailboxes.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <thread>
#include <utility>

namespace pipewright::comms {
namespace {

template <typename Element>
Element take_front(std::deque<Element>& queue) {
  Element front = std::move(queue.front());
  queue.pop_front();
  return front;
}

}  // namespace

bool Operation::wait_until(std::chrono::steady_clock::time_point deadline,
                           std::chrono::microseconds spin) {
  const auto spin_end = std::min(deadline, std::chrono::steady_clock::now() + spin);
  while (!done()) {
    if (std::chrono::steady_clock::now() >= spin_end) {
      std::unique_lock lock(mutex_);
      return finished_.wait_until(lock, deadline, [this] { return done(); });
    }
    std::this_thread::yield();
  }
  return true;
}

void Operation::finish(std::exception_ptr error) {
  error_ = std::move(error);
  {
    const std::lock_guard lock(mutex_);
    done_.store(true, std::memory_order_release);
  }
  finished_.notify_all();
}

Mailboxes::Mailboxes(std::string name, int num_ranks, ir::ChannelCapacity capacity,
                     std::unique_ptr<Carrier> carrier)
    : name_(std::move(name)),
      capacity_(capacity),
      carrier_(std::move(carrier)),
      queues_(static_cast<size_t>(num_ranks)),
      buffered_(static_cast<size_t>(num_ranks) * static_cast<size_t>(num_ranks)),
      collectives_of_rank_(static_cast<size_t>(num_ranks)) {}

void Mailboxes::post_send(std::shared_ptr<Operation> send, int from, int to) {
  const std::lock_guard lock(mutex_);
  throw_if_failed(*send);
  queues_[static_cast<size_t>(from)].push_back({std::move(send), true, to});
  advance(from);
}

void Mailboxes::post_receive(std::shared_ptr<Operation> receive, int from, int to) {
  const std::lock_guard lock(mutex_);
  throw_if_failed(*receive);
  queues_[static_cast<size_t>(to)].push_back({std::move(receive), false, from});
  advance(to);
}

void Mailboxes::post_collective(std::shared_ptr<Operation> part, int rank) {
  const std::lock_guard lock(mutex_);
  throw_if_failed(*part);
  const uint64_t number = collectives_of_rank_[static_cast<size_t>(rank)]++;
  std::vector<std::shared_ptr<Operation>>& parts = collectives_[number];
  parts.resize(queues_.size());
  parts[static_cast<size_t>(rank)] = std::move(part);
  if (std::ranges::find(parts, nullptr) != parts.end()) return;
  const std::vector<std::shared_ptr<Operation>> all =
      std::move(collectives_.extract(number).mapped());
  carry(all, [&] { carrier_->collect(all); });
}

void Mailboxes::fail(const std::string& cause) {
  const std::lock_guard lock(mutex_);
  fail_locked(cause);
}

Mailboxes::Buffered& Mailboxes::buffered(int from, int to) {
  return buffered_[static_cast<size_t>(from) * queues_.size() + static_cast<size_t>(to)];
}

void Mailboxes::throw_if_failed(const Operation& operation) const {
  if (cause_.empty()) return;
  throw std::runtime_error(name_ + ", " + operation.describe() +
                           ": the group has already failed: " + cause_);
}

// Completes what can complete after the head of `rank`'s queue may have changed.
void Mailboxes::advance(int rank) {
  std::vector<int> unblocked = {rank};
  while (!unblocked.empty()) {
    const int next = unblocked.back();
    unblocked.pop_back();
    while (advance_head(next, &unblocked)) {
    }
  }
}

// Completes the head of `rank`'s queue if it can. Returns whether it did, and adds the rank whose
// head this may have unblocked.
bool Mailboxes::advance_head(int rank, std::vector<int>* unblocked) {
  std::deque<Queued>& queue = queues_[static_cast<size_t>(rank)];
  if (queue.empty()) return false;
  const bool is_send = queue.front().is_send;
  const int peer = queue.front().peer;
  const int from = is_send ? rank : peer, to = is_send ? peer : rank;
  Buffered& early = buffered(from, to);
  if (!is_send && !early.empty()) {
    unblocked->push_back(from);
    const std::shared_ptr<Operation> send = take_front(early);
    const std::array received = {take_front(queue).operation};
    return carry(received, [&] { carrier_->deliver(*send, *received[0]); });
  }
  std::deque<Queued>& others = queues_[static_cast<size_t>(peer)];
  const bool meets = early.empty() && !others.empty() && others.front().peer == rank &&
                     others.front().is_send != is_send;
  if (meets) {
    unblocked->push_back(peer);
    std::deque<Queued>& senders = is_send ? queue : others;
    std::deque<Queued>& receivers = is_send ? others : queue;
    const std::array both = {take_front(senders).operation, take_front(receivers).operation};
    return carry(both, [&] { carrier_->deliver(*both[0], *both[1]); });
  }
  if (!is_send || early.size() >= capacity_) return false;
  unblocked->push_back(to);
  const std::array sent = {take_front(queue).operation};
  return carry(sent, [&] {
    carrier_->buffer(*sent[0]);
    early.push_back(sent[0]);
  });
}

// Runs `move` and completes `operations`. Returns false if it threw, which fails the group.
bool Mailboxes::carry(std::span<const std::shared_ptr<Operation>> operations, auto&& move) {
  std::exception_ptr error;
  std::string cause;
  try {
    move();
  } catch (const std::exception& caught) {
    cause = caught.what();
    error = std::make_exception_ptr(std::runtime_error(name_ + ", " + cause));
  }
  for (const std::shared_ptr<Operation>& operation : operations) operation->finish(error);
  if (error) fail_locked(cause);
  return !error;
}

void Mailboxes::fail_locked(const std::string& cause) {
  if (!cause_.empty()) return;
  cause_ = cause;
  std::vector<std::pair<std::shared_ptr<Operation>, std::string>> pending;
  for (std::deque<Queued>& queue : queues_) {
    for (const Queued& queued : queue)
      pending.emplace_back(queued.operation, queued.operation->describe());
    queue.clear();
  }
  for (auto& [number, parts] : std::exchange(collectives_, {})) {
    std::string missing;
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      if (!parts[rank]) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    }
    const std::string ranks = missing.find(',') == std::string::npos ? "rank " : "ranks ";
    for (std::shared_ptr<Operation>& part : parts) {
      if (!part) continue;
      std::string text = part->describe() + ", not posted by " + ranks + missing;
      pending.emplace_back(std::move(part), std::move(text));
    }
  }
  std::string list;
  for (const auto& [operation, text] : pending) list += "\n  pending: " + text;
  for (const auto& [operation, text] : pending) {
    operation->finish(
        std::make_exception_ptr(std::runtime_error(name_ + ", " + text + ": " + cause + list)));
  }
}

}  // namespace pipewright::comms
