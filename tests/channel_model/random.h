#ifndef PIPEWRIGHT_TESTS_CHANNEL_MODEL_RANDOM_H_
#define PIPEWRIGHT_TESTS_CHANNEL_MODEL_RANDOM_H_

#include <cstdint>
#include <cstdlib>
#include <string>

// Seeds and sizes of random tests, which the environment can set.

namespace pipewright::channel_model {

// PIPEWRIGHT_SEED plus `standard`, so that tests of one file differ; or else `standard`.
inline uint32_t seed_or(uint32_t standard) {
  const char* seed = std::getenv("PIPEWRIGHT_SEED");
  return seed == nullptr ? standard : standard + static_cast<uint32_t>(std::stoul(seed));
}

// PIPEWRIGHT_ROUNDS, or else `standard`.
inline int rounds_or(int standard) {
  const char* rounds = std::getenv("PIPEWRIGHT_ROUNDS");
  return rounds == nullptr ? standard : std::stoi(rounds);
}

}  // namespace pipewright::channel_model

#endif  // PIPEWRIGHT_TESTS_CHANNEL_MODEL_RANDOM_H_
