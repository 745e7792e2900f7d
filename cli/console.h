#ifndef PIPEWRIGHT_CLI_CONSOLE_H_
#define PIPEWRIGHT_CLI_CONSOLE_H_

#include <cstddef>
#include <iosfwd>
#include <string_view>

namespace pipewright::cli {

// The streams of a command, and what their terminals can show. stdout gets the result alone, stderr
// everything else.
struct Console {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  bool out_color = false;
  bool err_color = false;
  bool out_is_terminal = false;
  size_t out_width = 0;   // columns; 0: no limit, as when stdout is not a terminal
  size_t err_width = 80;  // columns
};

enum class ColorMode { kAuto, kAlways, kNever };

// Sets colour and width: colour by `mode`, where kAuto follows the terminals, NO_COLOR and TERM;
// width from `width`, or the terminals if it is 0.
void configure(ColorMode mode, size_t width, Console* console);

// "pipewright: error: MESSAGE" to stderr.
void print_trouble(std::string_view message, Console& console);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_CONSOLE_H_
