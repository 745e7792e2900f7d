#ifndef PIPEWRIGHT_TESTS_SUPPORT_RANKS_RANKS_H_
#define PIPEWRIGHT_TESTS_SUPPORT_RANKS_RANKS_H_

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace pipewright::tests {

// Runs `body` for each rank on a separate thread. Returns the error of each rank, empty for ranks
// that did not throw.
inline std::vector<std::string> errors_of_ranks(int size, const std::function<void(int)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

// The same, with all errors in one text: EXPECT_EQ(run_ranks(...), "").
inline std::string run_ranks(int size, const std::function<void(int)>& body) {
  std::string text;
  const std::vector<std::string> errors = errors_of_ranks(size, body);
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank].empty()) text += "rank " + std::to_string(rank) + ": " + errors[rank] + "\n";
  }
  return text;
}

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SUPPORT_RANKS_RANKS_H_
