#ifndef PIPEWRIGHT_TESTS_TRAINING_ON_RANKS_H_
#define PIPEWRIGHT_TESTS_TRAINING_ON_RANKS_H_

#include <torch/nn/module.h>
#include <torch/optim/adam.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comms/recording_backend.h"
#include "comms/world.h"

// One test body on several data-parallel ranks: threads of this process, or, where `pipewright
// launch` started it as one of several, processes over Gloo.

namespace pipewright::tests {

// What each rank has: a group for what is tested, whose calls are written down, and one for the
// reference.
struct Rank {
  int rank;
  comms::BackendPtr group;
  comms::BackendPtr by_hand;
  std::shared_ptr<comms::CallLog> log;  // of this rank alone
  comms::World* world;
};

// What each rank threw. As one of several processes: nothing, and what is thrown passes.
std::vector<std::string> errors_on_ranks(
    int size, const std::function<void(Rank&)>& body, const comms::Injector& injector = nullptr,
    std::chrono::milliseconds timeout = std::chrono::seconds(30));

// Expects that nobody throws.
void on_ranks(int size, const std::function<void(Rank&)>& body,
              const comms::Injector& injector = nullptr);

bool ranks_are_processes();

// All ranks meet, and all but the first wait while it does this: what it sees of all does not move.
void on_first_rank_alone(Rank& self, const std::function<void()>& body);

// Delays before and behind every call of an op, by chance.
comms::Injector random_delays(const std::string& op);

torch::optim::Adam adam(torch::nn::Module& module);

// Other data for each iteration and rank.
uint64_t data_seed(int iteration, int rank);

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_TRAINING_ON_RANKS_H_
