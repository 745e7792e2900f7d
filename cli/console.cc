#include "pipewright/cli/console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <ostream>
#include <string_view>

#include "pipewright/ir/printable.h"

namespace pipewright::cli {
namespace {

// Whether NO_COLOR (https://no-color.org: set and not empty) and TERM allow colours.
bool colors_are_welcome() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return (no_color == nullptr || *no_color == '\0') && terminal != nullptr &&
         std::string_view(terminal) != "dumb";
}

// The width in columns of a descriptor's terminal; 0 if it is not a terminal.
size_t terminal_width(int descriptor) {
  winsize size{};
  if (isatty(descriptor) == 0 || ioctl(descriptor, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

}  // namespace

void configure(const ConsoleOptions& options, Console* console) {
  const auto colored = [&](int descriptor) {
    switch (options.color) {
      case ColorMode::kAuto:
        return isatty(descriptor) != 0 && colors_are_welcome();
      case ColorMode::kAlways:
        return true;
      case ColorMode::kNever:
        return false;
    }
    return false;
  };
  console->out_color = colored(STDOUT_FILENO);
  console->err_color = colored(STDERR_FILENO);
  console->out_is_terminal = isatty(STDOUT_FILENO) != 0;
  const auto size = [](int number) { return static_cast<size_t>(number); };
  console->out_width = options.width ? size(*options.width) : terminal_width(STDOUT_FILENO);
  const size_t err_width = options.width ? size(*options.width) : terminal_width(STDERR_FILENO);
  if (err_width != 0) console->err_width = err_width;
  constexpr size_t kErrorsOnTerminal = 20;
  if (isatty(STDERR_FILENO) != 0) console->max_errors = kErrorsOnTerminal;
  if (options.max_errors) console->max_errors = size(*options.max_errors);
}

void print_trouble(std::string_view message, Console& console) {
  console.err << "pipewright: " << (console.err_color ? "\x1B[1;31merror:\x1B[0m " : "error: ")
              << message << '\n';
}

std::string number_text(double number) { return fmt::format("{:.6g}", number); }

std::string percent_text(double fraction) { return fmt::format("{:.1f}%", 100 * fraction); }

std::string unit_text(const std::string& unit) { return unit.empty() ? "" : " " + unit; }

std::string activations_text(double number) {
  return number_text(number) + (number == 1 ? " activation" : " activations");
}

std::string shape_text(const ir::Schedule& schedule) {
  return fmt::format(
      "{}, {}, {}", ir::counted(schedule.placement.num_ranks(), "rank", "ranks"),
      ir::counted(schedule.placement.num_stages(), "stage", "stages") +
          (schedule.placement.num_replicas() == 1 ? "" : " in 2 replicas"),
      ir::counted(schedule.num_microbatches / schedule.slices, "microbatch", "microbatches") +
          (schedule.slices == 1 ? "" : fmt::format(" of {} slices", schedule.slices)));
}

std::string stages_text(const std::vector<int>& stages, const ir::Schedule& schedule) {
  if (stages.empty()) return "no stage";
  if (stages.size() == static_cast<size_t>(schedule.placement.num_stages())) return "all stages";
  return fmt::format("stage{} {}", stages.size() == 1 ? "" : "s", fmt::join(stages, ", "));
}

std::string cut_text(const std::vector<int>& cut) {
  return cut.empty() ? "none" : fmt::format("{}", fmt::join(cut, ","));
}

}  // namespace pipewright::cli
