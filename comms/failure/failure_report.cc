// What a failure says beyond its first cause: a roll call tells who does not answer, and after a
// hang the observer's verdict tells whose fault it is. Every rank answers through its watcher.
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/process/sockets.h"

namespace pipewright::comms {
namespace {

constexpr std::chrono::milliseconds kRollCall{1500};
constexpr int kReadPatience = 16;
constexpr std::chrono::milliseconds kStuck{1500};  // from the report of a hang

using Clock = std::chrono::steady_clock;

}  // namespace

std::string FailureDomain::explain(const std::string& own) {
  const std::string first = cause();
  const bool elsewhere = !own.empty() && !first.starts_with(own) && !own.ends_with(": " + first);
  return explain_first() + (elsewhere ? "\n  and then " + own : "");
}

// Stays in one generation: reset() may begin the next one meanwhile, in which nobody answers.
std::string FailureDomain::explain_first() {
  const auto [first, generation, explained] = [this] {
    const std::lock_guard lock(mutex_);
    return std::tuple(cause_, generation_, explained_);
  }();
  if (size_ == 1 || first.empty()) return first;
  if (!explained.empty()) return explained;
  try {
    std::vector<std::string> all;
    for (int rank = 0; rank < size_; ++rank)
      all.push_back(key("answer/" + std::to_string(rank), generation));
    const std::string absent = key("absent", generation);
    const Clock::time_point deadline = Clock::now() + kRollCall;
    while (!watch_store_->check(all) && Clock::now() < deadline && !watch_store_->check({absent}))
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    // The first rank to finish its roll call speaks for all.
    if (!watch_store_->check({absent}))
      watch_store_->compareSet(absent, "", absent_and_verdict(first, generation) + "\n");
    std::string agreed = watch_store_->get_to_str(absent);
    agreed.pop_back();
    {
      const std::lock_guard lock(mutex_);
      if (generation == generation_) explained_ = first + agreed;
    }
    try {
      await_readers(generation);
    } catch (const std::exception&) {  // the host has ended: it waits for nobody
    }
    return first + agreed;
  } catch (const std::exception&) {
    return first;  // without the store nobody answers
  }
}

// The store's host may exit as soon as it has its error: it waits until all who answered have read
// theirs.
void FailureDomain::await_readers(int generation) {
  const auto read = [&](int rank) { return key("read/" + std::to_string(rank), generation); };
  watch_store_->set(read(rank_), "1");
  if (!hosts_store_) return;
  std::vector<std::string> readers;
  for (int rank = 0; rank < size_; ++rank) {
    if (watch_store_->check({key("answer/" + std::to_string(rank), generation)}))
      readers.push_back(read(rank));
  }
  poll(kRollCall, kReadPatience, [&] { return watch_store_->check(readers); });
}

// What follows the first cause: where its rank is, who does not answer, and who causes a hang.
std::string FailureDomain::absent_and_verdict(const std::string& first, int generation) {
  const auto identity = [&](int rank) {
    const std::string key = "domain/who/" + std::to_string(rank);
    return watch_store_->check({key}) ? watch_store_->get_to_str(key) : std::string();
  };
  const auto who = [&](int rank) {
    const std::string own = identity(rank);
    return "\n  rank " + std::to_string(rank) + (own.empty() ? "" : ": " + own);
  };
  std::string absent;
  std::vector<std::optional<std::string>> reports;
  for (int rank = 0; rank < size_; ++rank) {
    const std::string answer = key("answer/" + std::to_string(rank), generation);
    if (watch_store_->check({answer})) {
      reports.emplace_back(watch_store_->get_to_str(answer));
      continue;
    }
    reports.emplace_back(std::nullopt);
    absent += who(rank) + ": has ended, or its host is unreachable";
  }
  const std::string culprit = first.substr(5, first.find_first_not_of("0123456789", 5) - 5);
  const bool named = first.starts_with("rank ") && !culprit.empty();
  std::string text = named && reports[std::stoul(culprit)] ? who(std::stoi(culprit)) : "";
  text += absent;
  const auto observer = this->observer();
  if (observer && hung()) text += observer->verdict(reports, identity);
  return text;
}

void FailureDomain::answer() {
  const auto observer = this->observer();
  try {
    watch_store_->set(key("answer/" + std::to_string(rank_)),
                      observer && hung() ? observer->report() : "-");
  } catch (const std::exception&) {
  }
}

void FailureDomain::dump() {
  if (const auto observer = this->observer()) observer->dump();
}

// One thread serves all ranks of this process, so it must not wait for the answer of any.
std::optional<std::string> FailureDomain::report_hang() {
  const auto observer = this->observer();
  if (!observer || !hung()) return std::nullopt;
  const Clock::time_point now = Clock::now();
  if (!hung_at_) hung_at_ = now;
  if (hang_.empty()) {
    bool is_complete = now > *hung_at_ + kRollCall;
    for (int rank = 0; !is_complete && rank < size_; ++rank) {
      try {
        if (!watch_store_->check({key("answer/" + std::to_string(rank))})) return std::nullopt;
      } catch (const std::exception&) {
        is_complete = true;
      }
    }
    hung_at_ = now;
    hang_ = explain();
    return hang_;
  }
  const bool in_step = [&] {
    const std::lock_guard lock(mutex_);
    return place_ != nullptr;
  }();
  if (!stuck_ && in_step && now > *hung_at_ + kStuck) {
    stuck_ = true;
    observer->stuck(hang_);
  }
  return std::nullopt;
}

}  // namespace pipewright::comms
