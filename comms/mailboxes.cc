#include "pipewright/comms/mailboxes.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <thread>
#include <utility>

namespace pipewright::comms {

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
  refuse_if_failed(*send);
  queues_[static_cast<size_t>(from)].push_back({std::move(send), true, to});
  advance(from);
}

void Mailboxes::post_receive(std::shared_ptr<Operation> receive, int from, int to) {
  const std::lock_guard lock(mutex_);
  refuse_if_failed(*receive);
  queues_[static_cast<size_t>(to)].push_back({std::move(receive), false, from});
  advance(to);
}

void Mailboxes::post_collective(std::shared_ptr<Operation> part, int rank) {
  const std::lock_guard lock(mutex_);
  refuse_if_failed(*part);
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

void Mailboxes::refuse_if_failed(const Operation& operation) const {
  if (cause_.empty()) return;
  throw std::runtime_error(name_ + ", " + operation.describe() +
                           ": refused, the group has failed: " + cause_);
}

// What moved at one rank may free the head of another's queue.
void Mailboxes::advance(int rank) {
  std::vector<int> awake = {rank};
  while (!awake.empty()) {
    const int next = awake.back();
    awake.pop_back();
    while (advance_head(next, &awake)) {
    }
  }
}

// Whether the head of the rank's queue finished.
bool Mailboxes::advance_head(int rank, std::vector<int>* awake) {
  std::deque<Queued>& queue = queues_[static_cast<size_t>(rank)];
  if (queue.empty()) return false;
  const Queued head = queue.front();
  const int from = head.is_send ? rank : head.peer;
  const int to = head.is_send ? head.peer : rank;
  Buffered& early = buffered(from, to);
  if (!head.is_send && !early.empty()) {
    const std::shared_ptr<Operation> send = early.front();
    early.pop_front();
    queue.pop_front();
    awake->push_back(from);
    return carry(std::array{head.operation}, [&] { carrier_->deliver(*send, *head.operation); });
  }
  std::deque<Queued>& others = queues_[static_cast<size_t>(head.peer)];
  const bool meets = early.empty() && !others.empty() && others.front().peer == rank &&
                     others.front().is_send != head.is_send;
  if (meets) {
    const std::shared_ptr<Operation> other = others.front().operation;
    queue.pop_front();
    others.pop_front();
    awake->push_back(head.peer);
    return carry(std::array{head.operation, other}, [&] {
      carrier_->deliver(head.is_send ? *head.operation : *other,
                        head.is_send ? *other : *head.operation);
    });
  }
  if (!head.is_send || early.size() >= capacity_) return false;
  queue.pop_front();
  awake->push_back(to);
  return carry(std::array{head.operation}, [&] {
    carrier_->buffer(*head.operation);
    early.push_back(head.operation);
  });
}

// False if it failed, and with it the group.
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
      if (!parts[rank]) missing += " " + std::to_string(rank);
    }
    for (std::shared_ptr<Operation>& part : parts) {
      if (!part) continue;
      std::string text = part->describe() + ", not called by rank" + missing;
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
