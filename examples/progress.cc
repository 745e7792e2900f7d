#include "examples/progress.h"

#include <cstdio>
#include <string>

namespace pipewright::examples {

Progress::Progress(Style style, int64_t first, int64_t steps, int64_t tokens_per_step)
    : style_(style), first_(first), steps_(steps), tokens_per_step_(tokens_per_step) {}

void Progress::step(double loss) {
  const Clock::time_point now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - last_step_).count();
  last_step_ = now;
  const double speed = static_cast<double>(tokens_per_step_) / seconds;
  tokens_per_second_ = done_ == first_ ? speed : 0.9 * tokens_per_second_ + 0.1 * speed;
  ++done_;
  if (style_ == Style::kJson) {
    std::printf("{\"step\":%lld,\"loss\":%.9g,\"tokens_per_s\":%.6g}\n",
                static_cast<long long>(done_ - 1), loss, speed);
    std::fflush(stdout);
    return;
  }
  const bool due = style_ == Style::kBar ? now - last_shown_ > std::chrono::milliseconds(50)
                                         : now - last_shown_ > std::chrono::seconds(2);
  if (!due && done_ != first_ + 1 && done_ != steps_) return;
  last_shown_ = now;
  if (style_ == Style::kLines) {
    std::printf("step %lld of %lld  loss %.4f  %.0f tokens/s\n", static_cast<long long>(done_),
                static_cast<long long>(steps_), loss, tokens_per_second_);
  } else {
    constexpr int64_t kWidth = 30;
    const int64_t full = kWidth * done_ / steps_;
    const std::string bar(static_cast<size_t>(full), '#');
    const std::string rest(static_cast<size_t>(kWidth - full), '.');
    std::printf("\r[%s%s] %lld/%lld  loss %.4f  %.0f tokens/s \x1b[K%s", bar.c_str(), rest.c_str(),
                static_cast<long long>(done_), static_cast<long long>(steps_), loss,
                tokens_per_second_, done_ == steps_ ? "\n" : "");
  }
  std::fflush(stdout);
}

void Progress::finish(double held_back_loss, double bigram_loss,
                      const std::optional<RecordedStep>& recorded) {
  if (style_ == Style::kJson) {
    std::printf("{\"held_back_loss\":%.9g,\"bigram_loss\":%.9g", held_back_loss, bigram_loss);
    if (recorded)
      std::printf(
          ",\"recorded_step\":%lld,\"recorded_seconds\":%.9g,\"bubble_rate\":%.6g,"
          "\"predicted_bubble_rate\":%.6g",
          static_cast<long long>(recorded->step), recorded->seconds, recorded->bubble,
          recorded->predicted_bubble);
    std::printf("}\n");
  } else {
    if (recorded)
      std::printf("step %lld recorded: %.3g ms, bubble %.1f%%, predicted %.1f%%\n",
                  static_cast<long long>(recorded->step + 1), 1e3 * recorded->seconds,
                  100 * recorded->bubble, 100 * recorded->predicted_bubble);
    std::printf("held-back text: loss %.4f; a bigram table has %.4f\n", held_back_loss,
                bigram_loss);
  }
  std::fflush(stdout);
}

}  // namespace pipewright::examples
