#ifndef PIPEWRIGHT_EXAMPLES_PROGRESS_H_
#define PIPEWRIGHT_EXAMPLES_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <optional>

#include "examples/recorded_step.h"

namespace pipewright::examples {

// The display of a training run: a progress bar on a terminal, otherwise a line every two seconds,
// or one JSON object per step.
class Progress {
 public:
  enum class Style { kBar, kLines, kJson };

  // `first` steps of `steps` were done by an earlier run.
  Progress(Style style, int64_t first, int64_t steps, int64_t tokens_per_step);

  // To be called after each step. Speed is measured over the time since the previous call.
  void step(double loss);
  // The end of the run: losses on the held-back text, in nats per byte, and the step that was
  // recorded, if one was.
  void finish(double held_back_loss, double bigram_loss,
              const std::optional<RecordedStep>& recorded);

 private:
  using Clock = std::chrono::steady_clock;

  const Style style_;
  const int64_t first_;
  const int64_t steps_;
  const int64_t tokens_per_step_;
  int64_t done_ = first_;
  Clock::time_point last_step_ = Clock::now();
  Clock::time_point last_shown_{};
  double tokens_per_second_ = 0;  // smoothed, for the bar and lines
};

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_PROGRESS_H_
