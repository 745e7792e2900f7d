#include "pipewright/executor/coordinator.h"

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/process/sockets.h"
#include "pipewright/executor/program/program.h"

namespace pipewright::executor {
namespace {

constexpr int kPatience = 4;
constexpr std::chrono::milliseconds kLinger{3000};
// Marks an error in place of a digest.
const std::string kError = "error:";

std::string key_of(comms::World& world, const std::vector<int>& ranks) {
  std::string name = "executor";
  for (const int rank : ranks) name += "." + std::to_string(rank);
  return world.unique_name(name);
}

std::string refusal_key(const std::string& id) { return id + "/refused"; }

}  // namespace

Coordinator::Coordinator(comms::World& world, const std::string& id, const std::vector<int>& ranks,
                         int rank, const std::vector<c10d::Backend*>& groups,
                         std::chrono::milliseconds timeout)
    : world_(world),
      num_ranks_(static_cast<int>(ranks.size())),
      rank_(rank),
      key_(key_of(world, ranks)),
      refusal_(refusal_key(id)),
      timeout_(timeout),
      confirmations_(world, id + "/confirm", world.size()) {
  votes_.emplace_back(world, key_, num_ranks_);
  for (const c10d::Backend* group : groups)
    votes_.emplace_back(world, world.unique_name("executor." + group->getGroupUid()),
                        group->getSize());
}

void Coordinator::refuse(comms::World& world, const std::string& id, const std::string& error) {
  world.store()->set(refusal_key(id), "world rank " + std::to_string(world.rank()) + ": " + error);
}

void Coordinator::agree(const std::string& error, const std::vector<DigestPart>& digest) const {
  const auto key = [&](int rank) { return key_ + "/digest/" + std::to_string(rank); };
  const comms::StorePtr& store = world_.store();
  store->set(key(rank_), error.empty() ? to_string(digest) : kError + error);
  std::vector<DigestPart> first;
  std::string problem = error;
  for (int rank = 0; rank < num_ranks_ && problem.empty(); ++rank) {
    const std::string who = "program rank " + std::to_string(rank);
    wait_for_digest(key(rank), who);
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
  // The host of the store gives the others time to read it.
  const std::string readers = key_ + "/digest/read";
  store->add(readers, 1);
  const auto deadline = std::chrono::steady_clock::now() + std::min(timeout_, kLinger);
  while (world_.rank() == 0 && std::chrono::steady_clock::now() < deadline &&
         store->add(readers, 0) < num_ranks_)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  throw std::invalid_argument(problem);
}

void Coordinator::wait_for_digest(const std::string& key, const std::string& who) const {
  const comms::StorePtr& store = world_.store();
  const comms::FailureDomain::Waiting waiting(world_.failures().shared_from_this());
  const bool found = comms::poll(timeout_, kPatience, [&] {
    if (store->check({refusal_})) throw std::invalid_argument(store->get_to_str(refusal_));
    world_.failures().throw_if_failed();
    return store->check({key});
  });
  if (!found) {
    throw std::runtime_error(who + " did not create its Executor within " +
                             std::to_string(timeout_.count()) + " ms");
  }
}

std::string Coordinator::begin_step(const std::string& problem) { return vote(problem); }

bool Coordinator::any(bool flag) { return !vote(flag ? "yes" : "").empty(); }

std::string Coordinator::vote(std::string proposal) {
  // Each rank of a pipeline is in one copy of its stages, so what the pipeline knows after its own
  // vote reaches the ranks of all other pipelines in the votes of the data-parallel groups; and
  // what all pipelines with the same tensor-parallel coordinate know reaches the others in the last
  // one.
  for (comms::Vote& vote : votes_) proposal = vote.agree(proposal, timeout_);
  return proposal;
}

void Coordinator::confirm_step() { confirmations_.agree("", timeout_); }

}  // namespace pipewright::executor
