// Idea: one counter counts the voters of all votes of a generation, so the voter that raises it to
// a multiple of `size` is the last of its vote. It knows the result at once, without waiting, and
// writes it for the others, who wait. Ranks with a problem publish it before they count, so the
// last voter finds it.
//
// Invariant: the counter alone decides. A rank that cannot wait any longer, because the world has
// failed or time is up, makes the vote void in the same counter: if all had voted before, the vote
// stands, and the rank waits for the result that the last voter writes; otherwise the last voter
// sees that the vote is void, and no rank leaves it with a result.
//
// Complexity: the last voter, which the others wait for, waits for one request to the store. Each
// other voter sends a handful: it looks at the counter a few times, and then blocks in the store
// until the result is there. Results of earlier votes are deleted.
#include "pipewright/comms/store_rounds.h"

#include <stdexcept>
#include <utility>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/process/sockets.h"

namespace pipewright::comms {

namespace {

const std::string kNoProblem = "-";
// The counter counts voters, votes with a problem, and ranks that gave up.
constexpr int64_t kProblem = int64_t{1} << 40;
constexpr int64_t kVoid = int64_t{1} << 56;
constexpr std::chrono::milliseconds kLastVoter{1000};
constexpr std::chrono::milliseconds kBriefly{1};
constexpr int kVotersPatience = 2;

}  // namespace

Vote::Vote(World& world, std::string name, int size)
    : world_(world), name_(std::move(name)), size_(size) {}

std::string Vote::agree(const std::string& problem, std::chrono::milliseconds timeout) {
  if (size_ == 1) return problem;
  const StorePtr& store = world_.store();
  if (const int now = world_.failures().generation(); now != generation_) {
    generation_ = now;
    number_ = problems_ = 0;
  }
  const std::string prefix = name_ + "/vote/" + std::to_string(generation_) + "/";
  const int64_t number = number_++;
  const std::string result = prefix + std::to_string(number);
  const std::string voters = prefix + "voters";
  const auto is_complete = [&](int64_t votes) { return votes % kProblem >= (number + 1) * size_; };
  // The first rank with a problem counts it, so that the counter tells of it.
  int64_t own = 1;
  if (!problem.empty()) {
    store->compareSet(result + "/problem", "", problem);
    if (store->add(result + "/problems", 1) == 1) own += kProblem;
  }
  int64_t votes = store->add(voters, own);
  // All ranks have voted in the previous vote, so they have left the one before it.
  if (votes % kProblem == number * size_ + 1 && number >= 2)
    store->deleteKey(prefix + std::to_string(number - 2));
  const bool is_last = is_complete(votes);
  if (is_last && votes >= kVoid) {
    // Whoever gave up is about to say why.
    world_.failures().wait_for(result + "/never", timeout, "another rank gave up the vote");
  }
  // Others may be in the next vote already, and bring problems to it or give it up.
  const auto stands = [&] { return is_complete(votes) && votes < kVoid; };
  if (!is_last) {
    poll(kBriefly, kVotersPatience, [&] {
      votes = store->add(voters, 0);
      return stands() || world_.failures().failed();
    });
  }
  std::string decision = kNoProblem;
  if (!stands()) {
    decision = wait_for_result(result, voters, number, timeout);
  } else if (votes / kProblem != problems_ && (is_last || store->check({result + "/problem"}))) {
    decision = store->get_to_str(result + "/problem");
  }
  if (is_last) store->set(result, decision);
  if (decision == kNoProblem) return "";
  ++problems_;
  return decision;
}

std::string Vote::wait_for_result(const std::string& result, const std::string& voters,
                                  int64_t number, std::chrono::milliseconds timeout) {
  const StorePtr& store = world_.store();
  try {
    return world_.failures().wait_for(result, timeout,
                                      "not all " + std::to_string(size_) +
                                          " ranks arrived: timed out after " +
                                          std::to_string(timeout.count()) + " ms");
  } catch (const std::exception&) {
    if (store->add(voters, kVoid) % kProblem < (number + 1) * size_) throw;
    store->add(voters, -kVoid);
    // The last voter is about to write the result, unless a rank gave up before it voted.
    std::string decision;
    const auto is_there = [&] {
      if (!store->check({result})) return false;
      decision = store->get_to_str(result);
      return decision != FailureDomain::kReleased;
    };
    if (!poll(kLastVoter, kVotersPatience, is_there)) throw;
    return decision;
  }
}

StoreExchange::StoreExchange(World& world, const std::string& name,
                             std::optional<std::chrono::milliseconds> timeout)
    : world_(world),
      store_(world.store()->clone()),
      name_(world.unique_name("exchange/" + name)),
      timeout_(timeout.value_or(world.timeout())),
      generation_(world.failures().generation()) {}

std::string StoreExchange::key(int64_t number, int rank) const {
  return name_ + "/" + std::to_string(generation_) + "/" + std::to_string(number) + "/" +
         std::to_string(rank);
}

std::string StoreExchange::receive(int64_t number, int rank) {
  const std::string sent = key(number, rank);
  std::string text;
  const auto is_there = [&] {
    if (!store_->check({sent})) return false;
    text = store_->get_to_str(sent);
    return text != FailureDomain::kReleased;
  };
  if (is_there()) return text;
  try {
    return world_.failures().wait_for(sent, timeout_,
                                      "rank " + std::to_string(rank) +
                                          " did not arrive: timed out after " +
                                          std::to_string(timeout_.count()) + " ms",
                                      store_.get());
  } catch (const std::exception&) {
    // Another rank may have left this exchange, with all texts, and failed after it.
    if (world_.failures().failed() && is_there()) return text;
    throw;
  }
}

std::vector<std::string> StoreExchange::operator()(const std::string& mine) {
  if (mine.size() > kMaxText)
    throw std::invalid_argument("exchange of texts: expected at most " + std::to_string(kMaxText) +
                                " bytes, got " + std::to_string(mine.size()));
  if (const int now = world_.failures().generation(); now != generation_) {
    generation_ = now;
    number_ = 0;
  }
  const int64_t number = number_++;
  store_->set(key(number, world_.rank()), mine);
  std::vector<std::string> texts;
  for (int rank = 0; rank < world_.size(); ++rank)
    texts.push_back(rank == world_.rank() ? mine : receive(number, rank));
  // All ranks are in this exchange, so none reads the previous one any more.
  if (number > 0) store_->deleteKey(key(number - 1, world_.rank()));
  return texts;
}

}  // namespace pipewright::comms
