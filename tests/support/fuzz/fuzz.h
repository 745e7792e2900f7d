#ifndef PIPEWRIGHT_TESTS_SUPPORT_FUZZ_FUZZ_H_
#define PIPEWRIGHT_TESTS_SUPPORT_FUZZ_FUZZ_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <random>

// Random programs with fixed seeds.

namespace pipewright::tests {

// A source of choices. Ranks with equal seeds make equal choices.
class Chance {
 public:
  explicit Chance(uint64_t seed) : random_(seed) {}
  int below(size_t n) { return static_cast<int>(random_() % n); }
  bool one_in(size_t n) { return below(n) == 0; }

 private:
  std::mt19937_64 random_;
};

// Runs `body` for some seeds, until one fails: for `programs` seeds from 0 on, or as the
// environment variables PIPEWRIGHT_FUZZ_PROGRAMS and PIPEWRIGHT_FUZZ_FIRST say.
inline void for_each_seed(uint64_t programs, const std::function<void(uint64_t seed)>& body) {
  const auto from_environment = [](const char* name, uint64_t otherwise) {
    const char* value = std::getenv(name);
    return value ? std::strtoull(value, nullptr, 10) : otherwise;
  };
  const uint64_t first = from_environment("PIPEWRIGHT_FUZZ_FIRST", 0);
  const uint64_t count = from_environment("PIPEWRIGHT_FUZZ_PROGRAMS", programs);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    body(seed);
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
}

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SUPPORT_FUZZ_FUZZ_H_
