#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_MEDIAN_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_MEDIAN_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace pipewright::schedule {

// The lower median: of an even number of values, the lower of the two in the middle. 0 if empty.
inline double lower_median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_MEDIAN_H_
