#include "pipewright/schedules/catalogue.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace pipewright::schedules {
namespace {

constexpr ReadyFile kReadyFiles[] = {
#include "schedules/ready_files.inc"
};

// "zbh1" for "zb_h1" and "ZB-H1".
std::string letters_of(std::string_view name) {
  std::string letters;
  for (const char letter : name) {
    if (letter == '-' || letter == '_') continue;
    letters += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return letters;
}

}  // namespace

std::span<const ReadyFile> ready_files() { return kReadyFiles; }

const ReadyFile* find_ready_file(std::string_view name) {
  const auto* file = std::ranges::find(
      kReadyFiles, letters_of(name), [](const ReadyFile& ready) { return letters_of(ready.name); });
  return file == std::end(kReadyFiles) ? nullptr : file;
}

}  // namespace pipewright::schedules
