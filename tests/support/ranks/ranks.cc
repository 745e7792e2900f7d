#include "tests/support/ranks/ranks.h"

#include <exception>
#include <thread>

namespace pipewright::tests {

[[gnu::weak]] RankBody prepare_ranks(int, const RankBody& body) { return body; }

std::vector<std::string> errors_of_ranks(int size, const RankBody& body) {
  std::vector<std::string> errors(static_cast<size_t>(size));
  const RankBody prepared = prepare_ranks(size, body);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        prepared(rank);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

std::string run_ranks(int size, const RankBody& body) {
  std::string text;
  const std::vector<std::string> errors = errors_of_ranks(size, body);
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank].empty()) text += "rank " + std::to_string(rank) + ": " + errors[rank] + "\n";
  }
  return text;
}

}  // namespace pipewright::tests
