#ifndef PIPEWRIGHT_EXAMPLES_PROGRESS_H_
#define PIPEWRIGHT_EXAMPLES_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "examples/event_file.h"
#include "examples/recorded_step.h"

namespace pipewright::examples {

// What is shown of a step.
struct StepFigures {
  double loss = 0;  // nats per byte
  double gradient_norm = 0;
  double learning_rate = 0;
};

// A schedule that `--schedule search` has tried.
struct TriedSchedule {
  std::string name;
  int stages = 0;
  double predicted_seconds = 0, predicted_bubble = 0;  // per step; as a rate
  double measured_seconds = 0;                         // of the fastest step, when it was tried
};

// What is shown at the end. Losses are on the held-back text, in nats per byte; an empty text is
// not shown.
struct RunFigures {
  double held_back_loss = 0, bigram_loss = 0;
  std::optional<RecordedStep> recorded = {};  // of --record
  // Of --schedule search: what was tried, the schedule that was trained with first, and how long
  // its steps took in the end.
  std::vector<TriedSchedule> tried = {};
  std::optional<RecordedStep> searched = {};
  std::string sample = {}, checkpoint = {}, recording = {}, costs = {};
};

// The display of a training run: a progress bar on a terminal, otherwise a line every two seconds
// in torchtitan's format, or one JSON object per step; and files with the figures of each step.
// For the rank that has the loss.
class Progress {
 public:
  enum class Style { kBar, kLines, kJson };

  // Each is written unless its name is empty.
  struct Files {
    std::string metrics;      // a file that one JSON object per step is appended to
    std::string tensorboard;  // a folder for an event file
  };

  // `first` steps of `steps` were done by an earlier run. Throws std::runtime_error if a file
  // cannot be written, as step() does.
  Progress(Style style, int64_t first, int64_t steps, int64_t tokens_per_step, const Files& files);

  // Whether step() shows the gradient norm; otherwise it need not be computed.
  bool shows_gradient_norm() const {
    return style_ != Style::kBar || metrics_.is_open() || events_;
  }
  // A line before the first step; not shown in JSON.
  void say(const std::string& line) const;
  // To be called after each step. Speed is measured over the time since the previous call.
  void step(const StepFigures& figures);
  // The bubble that is shown from the next step on.
  void recorded(const RecordedStep& step) { recorded_ = step; }
  void finish(const RunFigures& figures) const;

 private:
  using Clock = std::chrono::steady_clock;

  void show(const StepFigures& figures) const;
  void write_metrics(const StepFigures& figures, double time, double seconds);
  void write_events(const StepFigures& figures, double time, double speed);

  const Style style_;
  const int64_t first_;
  const int64_t steps_;
  const int64_t tokens_per_step_;
  std::ofstream metrics_;
  std::optional<EventFile> events_;
  int64_t done_ = first_;
  Clock::time_point last_step_ = Clock::now();
  Clock::time_point last_shown_{};
  double tokens_per_second_ = 0;  // smoothed, for the bar and lines
  std::optional<RecordedStep> recorded_;
};

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_PROGRESS_H_
