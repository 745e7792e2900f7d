#include "pipewright/schedule/simulate/in_flight.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>

namespace pipewright::schedule {
namespace {

double arrival_of(InFlight* arrivals, uint32_t flow, int microbatch) {
  const InFlight::Tensor* tensor = arrivals->find(flow, microbatch);
  return tensor == nullptr ? -1 : tensor->arrival;
}

TEST(InFlight, ATensorIsThereFromAddToRemove) {
  InFlight arrivals(3);
  EXPECT_EQ(arrival_of(&arrivals, 1, 5), -1);
  arrivals.add(1, 5, 2.5);
  EXPECT_EQ(arrival_of(&arrivals, 1, 5), 2.5);
  EXPECT_EQ(arrival_of(&arrivals, 0, 5), -1);
  EXPECT_EQ(arrival_of(&arrivals, 1, 4), -1);
  arrivals.add(1, 5, 3.5);
  EXPECT_EQ(arrival_of(&arrivals, 1, 5), 3.5);
  InFlight::remove(arrivals.find(1, 5));
  EXPECT_EQ(arrival_of(&arrivals, 1, 5), -1);
}

// Any number of microbatches in flight, in any order, against a map.
TEST(InFlight, EqualsAMap) {
  std::mt19937 random(1);
  const auto below = [&](unsigned n) { return random() % n; };
  for (const unsigned microbatches : {1u, 15u, 16u, 17u, 100u, 1000u}) {
    InFlight arrivals(5);
    std::map<std::pair<uint32_t, int>, double> expected;
    for (int round = 0; round < 20000; ++round) {
      const uint32_t flow = below(5);
      const int microbatch = static_cast<int>(below(microbatches));
      const auto at = expected.find({flow, microbatch});
      ASSERT_EQ(arrival_of(&arrivals, flow, microbatch), at == expected.end() ? -1 : at->second);
      if (below(3) != 0) {
        expected[{flow, microbatch}] = round;
        arrivals.add(flow, microbatch, round);
      } else if (at != expected.end()) {
        InFlight::remove(arrivals.find(flow, microbatch));
        expected.erase(at);
      }
    }
  }
}

}  // namespace
}  // namespace pipewright::schedule
