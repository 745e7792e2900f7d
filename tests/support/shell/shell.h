#ifndef PIPEWRIGHT_TESTS_SUPPORT_SHELL_SHELL_H_
#define PIPEWRIGHT_TESTS_SUPPORT_SHELL_SHELL_H_

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <stdexcept>
#include <string>

// Runs shell commands, for tests of whole programs.

namespace pipewright::tests {

struct Output {
  std::string text;  // stdout; stderr too where the command says 2>&1
  int status;        // exit status
};

// Throws std::runtime_error if the shell cannot be started.
inline Output run_shell(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) throw std::runtime_error("cannot run " + command);
  Output output;
  std::array<char, 4096> chunk;
  while (const size_t got = fread(chunk.data(), 1, chunk.size(), pipe))
    output.text.append(chunk.data(), got);
  output.status = WEXITSTATUS(pclose(pipe));
  return output;
}

// Returns how often `part` occurs in `text`.
inline int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SUPPORT_SHELL_SHELL_H_
