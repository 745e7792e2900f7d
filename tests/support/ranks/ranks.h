#ifndef PIPEWRIGHT_TESTS_SUPPORT_RANKS_RANKS_H_
#define PIPEWRIGHT_TESTS_SUPPORT_RANKS_RANKS_H_

#include <functional>
#include <string>
#include <vector>

namespace pipewright::tests {

using RankBody = std::function<void(int rank)>;

// Runs `body` for each rank on a separate thread. Returns the error of each rank, empty for ranks
// that did not throw.
std::vector<std::string> errors_of_ranks(int size, const RankBody& body);

// The same, with all errors in one text: EXPECT_EQ(run_ranks(...), "").
std::string run_ranks(int size, const RankBody& body);

// Called before the threads of ranks start; returns what they run. By default that is `body`. A
// weak symbol, which //tests/device:ground replaces.
RankBody prepare_ranks(int size, const RankBody& body);

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SUPPORT_RANKS_RANKS_H_
