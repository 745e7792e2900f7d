#include "pipewright/executor/coordinator.h"

#include <algorithm>
#include <stdexcept>
#include <thread>

namespace pipewright::executor {
namespace {

constexpr std::chrono::milliseconds kLinger{3000};
// Marks an error in place of a digest.
const std::string kError = "error:";

std::string key_of(comms::World& world, const std::vector<int>& ranks) {
  std::string name = "executor";
  for (const int rank : ranks) name += "." + std::to_string(rank);
  return world.unique_name(name);
}

}  // namespace

Coordinator::Coordinator(comms::World& world, const std::vector<int>& ranks, int rank,
                         std::chrono::milliseconds timeout)
    : world_(world),
      num_ranks_(static_cast<int>(ranks.size())),
      rank_(rank),
      key_(key_of(world, ranks)),
      timeout_(timeout) {}

void Coordinator::agree(const std::string& error, const std::vector<DigestPart>& digest) const {
  const auto key = [&](int rank) { return key_ + "/digest/" + std::to_string(rank); };
  const comms::StorePtr& store = world_.store();
  store->set(key(rank_), error.empty() ? to_string(digest) : kError + error);
  std::vector<DigestPart> first;
  std::string problem = error;
  for (int rank = 0; rank < num_ranks_ && problem.empty(); ++rank) {
    const std::string who = "program rank " + std::to_string(rank);
    try {
      store->wait({key(rank)}, timeout_);
    } catch (const std::exception& caught) {
      throw std::runtime_error(who + " did not create its Executor within " +
                               std::to_string(timeout_.count()) + " ms: " + caught.what());
    }
    const std::string theirs = store->get_to_str(key(rank));
    if (theirs.starts_with(kError)) {
      problem = who + ": " + theirs.substr(kError.size());
      continue;
    }
    const std::vector<DigestPart> other = parse_digest(theirs);
    if (rank == 0) first = other;
    // Every rank compares with rank 0, so that all report the same difference.
    const std::string found = difference(first, 0, other, rank);
    if (!found.empty()) problem = "the ranks do not agree: " + found;
  }
  if (problem.empty()) return;
  linger("/digest/read");
  throw std::invalid_argument(problem);
}

void Coordinator::check_peers() const {
  if (world_.store()->check({key_ + "/failure"}))
    throw std::runtime_error("another rank has failed");
}

std::string Coordinator::report_failure(const std::string& message) const {
  try {
    return world_.store()->compareSet(key_ + "/failure", "", message);
  } catch (const std::exception&) {
    return message;  // the host of the store is gone
  }
}

void Coordinator::linger(const std::string& counter) const {
  const comms::StorePtr& store = world_.store();
  store->add(key_ + counter, 1);
  const auto deadline = std::chrono::steady_clock::now() + std::min(timeout_, kLinger);
  while (world_.rank() == 0 && std::chrono::steady_clock::now() < deadline &&
         store->add(key_ + counter, 0) < num_ranks_)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

}  // namespace pipewright::executor
