#include "pipewright/schedule/bounds/knapsack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/schedule/bounds/random_problems.h"

namespace pipewright::schedule {
namespace {

TEST(KnapsackTest, MostWork) {
  using Items = std::vector<MemoryItem>;
  EXPECT_EQ(most_work(Items{}, 10), 0);
  EXPECT_EQ(most_work(Items{{2, 5, 100}}, 7), 15);
  EXPECT_EQ(most_work(Items{{2, 5, 2}, {1, 1, 100}}, 7), 13);  // two of the first, three others
  EXPECT_EQ(most_work(Items{{3, 10, 9}, {2, 6, 9}}, 7), 22);   // 3 + 2 + 2, not 3 + 3
  EXPECT_EQ(most_work(Items{{0, 7, 3}, {2, 5, 1}}, 1), 21);    // no memory, no limit
  EXPECT_EQ(most_work(Items{{0, 7, 3}, {2, 5, 1}}, -5), 21);
  EXPECT_EQ(most_work(Items{{3000, 10, 9}, {2000, 6, 9}}, 7000), 22);  // the unit is 1000
  // Too many units for a table: fractions are allowed, rounded up.
  EXPECT_EQ(most_work(Items{{30'001, 10, 9}, {20'000, 6, 9}}, 70'001), 24);
  // Against brute force.
  tests::Random random(3);
  for (int instance = 0; instance < 2000; ++instance) {
    Items items;
    for (int item = 0; item < 3; ++item)
      items.push_back({random.number(0, 5), random.number(0, 9), random.number(0, 4)});
    const Memory capacity = random.number(0, 30);
    Ticks best = 0;
    for (int64_t a = 0; a <= items[0].count; ++a)
      for (int64_t b = 0; b <= items[1].count; ++b)
        for (int64_t c = 0; c <= items[2].count; ++c)
          if (a * items[0].size + b * items[1].size + c * items[2].size <= capacity)
            best = std::max(best, a * items[0].work + b * items[1].work + c * items[2].work);
    EXPECT_EQ(most_work(items, capacity), best);
  }
}

}  // namespace
}  // namespace pipewright::schedule
