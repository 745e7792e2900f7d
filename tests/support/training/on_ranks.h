#ifndef PIPEWRIGHT_TESTS_SUPPORT_TRAINING_ON_RANKS_H_
#define PIPEWRIGHT_TESTS_SUPPORT_TRAINING_ON_RANKS_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pipewright/comms/world.h"
#include "tests/support/recording/recording_backend.h"

// Runs a test body on several data-parallel ranks: threads of this process, or processes over Gloo
// if `pipewright launch` started this process as one of several.

namespace pipewright::tests {

// Where a rank is delayed at random, as in PyTorch's tests: a missing wait for a kernel or a
// collective would show as a wrong result.
enum class Late {
  kNowhere,
  kAfterForward,
  kBeforeGather,
  kBeforeReduction,
  kBeforeStep,
  kEverywhere
};
const char* to_string(Late late);

// The argument of a test body on each rank.
struct Rank {
  int rank;
  comms::BackendPtr group;              // for the code under test; its calls are recorded
  comms::BackendPtr by_hand;            // for averaging the reference's gradients by hand
  std::shared_ptr<comms::CallLog> log;  // the calls of `group` on this rank
  comms::World* world;
  comms::Injector injector;  // delays and failures of `group`
  Late late = Late::kNowhere;

  // Sleeps if this rank is delayed there.
  void be_late(Late where) const;
};

// Runs `body` on all ranks and returns their errors, empty for ranks that did not throw. If ranks
// are processes, an exception passes through instead.
std::vector<std::string> errors_on_ranks(
    int size, const std::function<void(Rank&)>& body, const comms::Injector& injector = nullptr,
    std::chrono::milliseconds timeout = std::chrono::seconds(30));

// The same, and expects an error on each rank that contains `what`, in which {here} stands for the
// rank's device.
void expect_errors(int size, const std::string& what, const std::function<void(Rank&)>& body);

// The same, and expects no errors.
void on_ranks(int size, const std::function<void(Rank&)>& body);

// Whether `pipewright launch` started this process as one of several ranks.
bool ranks_are_processes();

// Runs `body` on rank 0 between two barriers, so that it sees shared state that does not change.
void on_first_rank_alone(Rank& self, const std::function<void()>& body);

// Like on_ranks, with delays before and after the gathers and reductions of `group`.
void on_late_ranks(int size, Late late, const std::function<void(Rank&)>& body);

// A seed for the data of an iteration, different on each rank.
uint64_t data_seed(int iteration, int rank);

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SUPPORT_TRAINING_ON_RANKS_H_
