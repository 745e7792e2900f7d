#ifndef PIPEWRIGHT_SCHEDULE_SEARCH_RANDOM_H_
#define PIPEWRIGHT_SCHEDULE_SEARCH_RANDOM_H_

#include <cstddef>
#include <cstdint>

namespace pipewright::schedule::search {

// A generator of pseudo-random numbers (Steele and Vigna's splitmix64) that returns the same
// numbers on every machine; the distributions of <random> differ between libraries. Not
// thread-safe.
//
//   Random random(/*seed=*/1);
//   const int number = random.below(6);   // 0 to 5
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // From 0 to n - 1; n must be from 1 to 2^31.
  int below(int n) { return static_cast<int>((next() >> 32) * static_cast<uint64_t>(n) >> 32); }
  size_t index(size_t n) { return static_cast<size_t>(below(static_cast<int>(n))); }
  // From low to high, both included.
  int between(int low, int high) { return low + below(high - low + 1); }
  // True once in n.
  bool one_in(int n) { return below(n) == 0; }

 private:
  uint64_t state_;
};

// -ln((n + 1/2) / 1024) in 1/1024, for n from 0 to 1023: quantiles of the exponential distribution.
// Without the C library, whose results differ between machines.
inline int64_t exponential_quantile(int n) {
  // ln x = 2 artanh((x - 1) / (x + 1)), after halving x into [1/2, 1].
  double x = (n + 0.5) / 1024;
  int halvings = 0;
  for (; x < 0.5; x *= 2) ++halvings;
  const double z = (1 - x) / (1 + x);
  double sum = 0, power = z;
  for (int k = 1; k < 60; k += 2, power *= z * z) sum += power / k;
  return static_cast<int64_t>(1024 * (2 * sum + halvings * 0.6931471805599453));
}

}  // namespace pipewright::schedule::search

#endif  // PIPEWRIGHT_SCHEDULE_SEARCH_RANDOM_H_
