#ifndef PIPEWRIGHT_EXAMPLES_PROGRESS_H_
#define PIPEWRIGHT_EXAMPLES_PROGRESS_H_

#include <chrono>
#include <cstdint>

namespace pipewright::examples {

// What a run shows of itself: on a terminal a bar that is drawn over, elsewhere a line now and
// then, or one JSON object a step.
class Progress {
 public:
  enum class Style { kBar, kLines, kJson };

  Progress(Style style, int64_t steps, int64_t tokens_per_step);

  // A step has ended. Speed is over the time since the step before.
  void step(double loss);
  // The end: losses on the text that is held back.
  void finish(double held_back_loss, double bigram_loss);

 private:
  using Clock = std::chrono::steady_clock;

  const Style style_;
  const int64_t steps_;
  const int64_t tokens_per_step_;
  int64_t done_ = 0;
  Clock::time_point last_step_ = Clock::now();
  Clock::time_point last_shown_{};
  double tokens_per_second_ = 0;  // smoothed, for people
};

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_PROGRESS_H_
