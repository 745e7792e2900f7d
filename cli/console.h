#ifndef PIPEWRIGHT_CLI_CONSOLE_H_
#define PIPEWRIGHT_CLI_CONSOLE_H_

#include <cstddef>
#include <iosfwd>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "pipewright/ir/schedule.h"

namespace pipewright::cli {

// The streams of a command, and the colour support and width of their terminals. Only the result is
// written to stdout; everything else goes to stderr.
struct Console {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  bool out_color = false;
  bool err_color = false;
  bool out_is_terminal = false;
  size_t out_width = 0;   // columns; 0: no limit, as when stdout is not a terminal
  size_t err_width = 80;  // columns
  // Errors of one schedule that are printed to stderr; the rest is counted.
  size_t max_errors = std::numeric_limits<size_t>::max();
};

enum class ColorMode { kAuto, kAlways, kNever };

// Options that every command takes. kAuto enables colour per stream if it is a terminal, NO_COLOR
// is unset or empty, and TERM is neither unset nor "dumb". A width that is not given is that of the
// terminals; the number of errors is then 20 on a terminal, and unlimited elsewhere.
struct ConsoleOptions {
  ColorMode color = ColorMode::kAuto;
  std::optional<int> width = {};
  std::optional<int> max_errors = {};
};
void configure(const ConsoleOptions& options, Console* console);

// "pipewright: error: MESSAGE" to stderr.
void print_trouble(std::string_view message, Console& console);

// How all commands write a value.

// "12.5", "0.3333": a time with up to six significant digits.
std::string number_text(double number);
// "25.0%"
std::string percent_text(double fraction);
// " ms", or "" without a unit.
std::string unit_text(const std::string& unit);
// "1 activation", "2.5 activations".
std::string activations_text(double number);
// "4 ranks, 8 stages, 1 microbatch".
std::string shape_text(const ir::Schedule& schedule);
// Those of a schedule that recompute or offload: "no stage", "stages 0, 2" or "all stages".
std::string stages_text(const std::vector<int>& stages, const ir::Schedule& schedule);
// The layers of each stage: "5,4,4,3", or "none".
std::string cut_text(const std::vector<int>& cut);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_CONSOLE_H_
