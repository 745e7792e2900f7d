#ifndef PIPEWRIGHT_SCHEDULE_BOUNDS_CHAIN_H_
#define PIPEWRIGHT_SCHEDULE_BOUNDS_CHAIN_H_

#include <cstddef>
#include <vector>

#include "pipewright/schedule/problem/problem.h"

namespace pipewright::schedule {

// The actions of one microbatch without any waiting: F on all stages, then I back to the first. All
// times between two of them are differences of sums that are computed once. Immutable.
class Chain {
 public:
  Chain(const Problem& problem, int microbatch);

  // The times of the microbatch's actions.
  Ticks forward(int stage) const { return at(forward_, stage); }
  Ticks backward_input(int stage) const { return at(backward_input_, stage); }
  Ticks backward_weight(int stage) const { return at(backward_weight_, stage); }

  // From the start of F on `from` to the start of I on `to`.
  Ticks path(int from, int to) const {
    return turn_ - at(forward_start_, from) + at(backward_end_, to) - backward_input(to);
  }
  // From the end of F on `from` to the end of I on `to`.
  Ticks chain(int from, int to) const {
    return path(from, to) - forward(from) + backward_input(to);
  }
  // From the start of F on `outer` to the start of F on `inner`; outer <= inner.
  Ticks head(int outer, int inner) const {
    return at(forward_start_, inner) - at(forward_start_, outer);
  }
  // From the end of I on `inner` to the end of I on `outer`; outer <= inner.
  Ticks tail(int outer, int inner) const {
    return at(backward_end_, outer) - at(backward_end_, inner);
  }

 private:
  static Ticks at(const std::vector<Ticks>& values, int stage) {
    return values[static_cast<size_t>(stage)];
  }

  std::vector<Ticks> forward_, backward_input_, backward_weight_;  // by stage
  std::vector<Ticks> forward_start_;  // by stage, from the start of F on stage 0
  Ticks turn_ = 0;                    // the end of F on the last stage, from there too
  std::vector<Ticks> backward_end_;   // by stage, from the end of F on the last stage
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_BOUNDS_CHAIN_H_
