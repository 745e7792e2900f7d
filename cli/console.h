#ifndef PIPEWRIGHT_CLI_CONSOLE_H_
#define PIPEWRIGHT_CLI_CONSOLE_H_

#include <cstddef>
#include <iosfwd>
#include <string_view>

namespace pipewright::cli {

// Where a command reads and writes, and how. stdout holds the result alone, stderr everything else.
struct Console {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  bool out_color = false;
  bool err_color = false;
  bool out_is_terminal = false;
  size_t out_width = 0;   // columns; 0 for no limit, which is so where stdout is no terminal
  size_t err_width = 80;  // columns
};

enum class ColorMode { kAuto, kAlways, kNever };

// Fills in colour and width: from the terminals, NO_COLOR and TERM for kAuto, and from `width`
// unless it is 0.
void configure(ColorMode mode, size_t width, Console* console);

// "pipewright: error: MESSAGE" to stderr.
void print_trouble(std::string_view message, Console& console);

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_CONSOLE_H_
