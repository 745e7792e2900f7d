#ifndef PIPEWRIGHT_TESTS_SUPPORT_TRAINING_ON_RANKS_H_
#define PIPEWRIGHT_TESTS_SUPPORT_TRAINING_ON_RANKS_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/comms/recording_backend.h"
#include "pipewright/comms/world.h"

// One test body on several data-parallel ranks: threads of this process, or, where `pipewright
// launch` started it as one of several, processes over Gloo.

namespace pipewright::tests {

// The places of PyTorch's tests in which a rank is late, by chance: where kernels or collectives
// that are not waited for would show. kNowhere is in none of them, kEverywhere in all.
enum class Late {
  kNowhere,
  kAfterForward,
  kBeforeGather,
  kBeforeReduction,
  kBeforeStep,
  kEverywhere
};
const char* to_string(Late late);

// What each rank has: a group for what is tested, whose calls are written down, and one for the
// reference.
struct Rank {
  int rank;
  comms::BackendPtr group;
  comms::BackendPtr by_hand;
  std::shared_ptr<comms::CallLog> log;  // of this rank alone
  comms::World* world;
  comms::Injector injector;  // of the calls that are written down
  Late late = Late::kNowhere;

  // Sleeps if it is late there.
  void be_late(Late where) const;
};

// What each rank threw. As one of several processes: nothing, and what is thrown passes.
std::vector<std::string> errors_on_ranks(
    int size, const std::function<void(Rank&)>& body, const comms::Injector& injector = nullptr,
    std::chrono::milliseconds timeout = std::chrono::seconds(30));

// Expects that nobody throws.
void on_ranks(int size, const std::function<void(Rank&)>& body);

bool ranks_are_processes();

// All ranks meet, and all but the first wait while it does this: what it sees of all does not move.
void on_first_rank_alone(Rank& self, const std::function<void()>& body);

// As on_ranks, with delays before and behind the gathers and reductions of the group.
void on_late_ranks(int size, Late late, const std::function<void(Rank&)>& body);

// Other data for each iteration and rank.
uint64_t data_seed(int iteration, int rank);

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SUPPORT_TRAINING_ON_RANKS_H_
