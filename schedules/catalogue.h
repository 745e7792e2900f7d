#ifndef PIPEWRIGHT_SCHEDULES_CATALOGUE_H_
#define PIPEWRIGHT_SCHEDULES_CATALOGUE_H_

#include <span>
#include <string_view>

// The ready .plan files of this folder, as they were when the library was built. Constant data; any
// thread.

namespace pipewright::schedules {

struct ReadyFile {
  std::string_view path;  // "schedules/gpipe.plan", from the top of the project
  std::string_view text;
};

// By path.
std::span<const ReadyFile> ready_files();

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_CATALOGUE_H_
