#include "examples/progress.h"

#include <fmt/format.h>

#include <cstdio>
#include <stdexcept>

#include "examples/memory.h"

namespace pipewright::examples {
namespace {

std::string time_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  return whole < 3600 ? fmt::format("{}:{:02}", whole / 60, whole % 60)
                      : fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

// 7,300
std::string grouped(double number) {
  std::string digits = fmt::format("{:.0f}", number);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string bubble_json(const RecordedStep& step) {
  return fmt::format(",\"bubble_rate\":{:.6g},\"predicted_bubble_rate\":{:.6g}", step.bubble,
                     step.predicted_bubble);
}

// Of a run whose schedule was searched.
std::string search_json(const RunFigures& run) {
  std::string text = fmt::format(
      "{{\"predicted_seconds\":{:.9g},\"predicted_bubble_rate\":{:.6g},\"measured_seconds\":{:.9g},"
      "\"measured_bubble_rate\":{:.6g},\"tried\":[",
      run.tried[0].predicted_seconds, run.tried[0].predicted_bubble, run.searched->seconds,
      run.searched->bubble);
  for (size_t i = 0; i < run.tried.size(); ++i) {
    const TriedSchedule& one = run.tried[i];
    text += fmt::format(
        "{}{{\"schedule\":\"{}\",\"stages\":{},\"predicted_seconds\":{:.9g},"
        "\"measured_seconds\":{:.9g}}}",
        i == 0 ? "" : ",", one.name, one.stages, one.predicted_seconds, one.measured_seconds);
  }
  return text + "]}";
}

}  // namespace

Progress::Progress(Style style, int64_t first, int64_t steps, int64_t tokens_per_step,
                   const Files& files)
    : style_(style), first_(first), steps_(steps), tokens_per_step_(tokens_per_step) {
  if (!files.metrics.empty()) {
    metrics_.open(files.metrics, std::ios::app);
    if (!metrics_) throw std::runtime_error("cannot write `" + files.metrics + "`");
  }
  if (!files.tensorboard.empty()) events_.emplace(files.tensorboard, first, seconds_since_1970());
}

void Progress::say(const std::string& line) const {
  if (style_ != Style::kJson) print(line + "\n");
}

void Progress::step(const StepFigures& figures) {
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - last_step_).count();
  last_step_ = now;
  const double speed = static_cast<double>(tokens_per_step_) / seconds;
  tokens_per_second_ = done_ == first_ ? speed : 0.9 * tokens_per_second_ + 0.1 * speed;
  ++done_;
  const double time = seconds_since_1970();
  if (metrics_.is_open()) write_metrics(figures, time, seconds);
  if (events_) write_events(figures, time, speed);
  if (style_ == Style::kJson) {
    print(fmt::format(
        "{{\"step\":{},\"loss\":{:.9g},\"grad_norm\":{:.6g},\"tokens_per_s\":{:.6g}}}\n", done_ - 1,
        figures.loss, figures.gradient_norm, speed));
    return;
  }
  const bool due = style_ == Style::kBar ? now - last_shown_ > std::chrono::milliseconds(50)
                                         : now - last_shown_ > std::chrono::seconds(2);
  if (!due && done_ != first_ + 1 && done_ != steps_) return;
  last_shown_ = now;
  show(figures);
}

void Progress::show(const StepFigures& figures) const {
  const double left = static_cast<double>((steps_ - done_) * tokens_per_step_) / tokens_per_second_;
  const std::string bubble =
      recorded_ ? fmt::format("  bubble: {:.1f}% (predicted {:.1f}%)", 100 * recorded_->bubble,
                              100 * recorded_->predicted_bubble)
                : "";
  if (style_ == Style::kLines) {
    constexpr double kGib = 1 << 30;
    const auto bytes = static_cast<double>(peak_process_bytes());
    print(fmt::format(
        "step: {:2}  loss: {:7.4f}  grad_norm: {:7.4f}  memory: {:5.2f}GiB({:.2f}%)  tps: {}{}  "
        "left: {}\n",
        done_, figures.loss, figures.gradient_norm, bytes / kGib,
        100 * bytes / static_cast<double>(host_memory().total), grouped(tokens_per_second_), bubble,
        time_text(left)));
    return;
  }
  constexpr int64_t kWidth = 30;
  const auto full = static_cast<size_t>(kWidth * done_ / steps_);
  const std::string bar = std::string(full, '#') + std::string(kWidth - full, '.');
  print(fmt::format("\r[{}] {}/{}  loss {:.4f}  {} tokens/s{}  left {} \x1b[K{}", bar, done_,
                    steps_, figures.loss, grouped(tokens_per_second_), bubble, time_text(left),
                    done_ == steps_ ? "\n" : ""));
}

void Progress::write_metrics(const StepFigures& figures, double time, double seconds) {
  metrics_
      << fmt::format(
             "{{\"step\":{},\"time\":{:.3f},\"loss\":{:.9g},\"grad_norm\":{:.9g},\"lr\":{:.9g},"
             "\"tokens\":{},\"step_seconds\":{:.6g},\"tokens_per_s\":{:.6g},\"peak_bytes\":{}{}}}"
             "\n",
             done_ - 1, time, figures.loss, figures.gradient_norm, figures.learning_rate,
             done_ * tokens_per_step_, seconds, static_cast<double>(tokens_per_step_) / seconds,
             peak_process_bytes(), recorded_ ? bubble_json(*recorded_) : "")
      << std::flush;
  if (!metrics_) throw std::runtime_error("cannot write the file of --metrics");
}

void Progress::write_events(const StepFigures& figures, double time, double speed) {
  std::vector<Scalar> scalars = {{"loss", figures.loss},
                                 {"grad_norm", figures.gradient_norm},
                                 {"lr", figures.learning_rate},
                                 {"tokens_per_s", speed},
                                 {"peak_bytes", static_cast<double>(peak_process_bytes())}};
  if (recorded_) {
    scalars.push_back({"bubble_rate", recorded_->bubble});
    scalars.push_back({"predicted_bubble_rate", recorded_->predicted_bubble});
  }
  events_->write(done_ - 1, time, scalars);
}

void Progress::finish(const RunFigures& run) const {
  if (style_ == Style::kJson) {
    std::string text = fmt::format("{{\"held_back_loss\":{:.9g},\"bigram_loss\":{:.9g}",
                                   run.held_back_loss, run.bigram_loss);
    if (run.recorded)
      text += fmt::format(",\"recorded_step\":{},\"recorded_seconds\":{:.9g}{}", run.recorded->step,
                          run.recorded->seconds, bubble_json(*run.recorded));
    if (run.searched) text += fmt::format(",\"search\":{}", search_json(run));
    print(text + "}\n");
    return;
  }
  std::string text;
  if (run.searched)
    text += fmt::format(
        "search: predicted {:.3g} ms, bubble {:.1f}%; measured {:.3g} ms, bubble {:.1f}%\n",
        1e3 * run.tried[0].predicted_seconds, 100 * run.tried[0].predicted_bubble,
        1e3 * run.searched->seconds, 100 * run.searched->bubble);
  if (run.recorded)
    text += fmt::format("step {} recorded: {:.3g} ms, bubble {:.1f}%, predicted {:.1f}%\n",
                        run.recorded->step + 1, 1e3 * run.recorded->seconds,
                        100 * run.recorded->bubble, 100 * run.recorded->predicted_bubble);
  if (!run.sample.empty()) text += "sample: " + run.sample + "\n";
  if (!run.checkpoint.empty()) text += "checkpoint: " + run.checkpoint + "\n";
  if (!run.recording.empty()) text += "recording: " + run.recording + "\n";
  if (!run.costs.empty()) text += "costs: " + run.costs + "\n";
  print(text + fmt::format("held-back text: loss {:.4f}; a bigram table has {:.4f}\n",
                           run.held_back_loss, run.bigram_loss));
}

}  // namespace pipewright::examples
