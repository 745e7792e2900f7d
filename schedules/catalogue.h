#ifndef PIPEWRIGHT_SCHEDULES_CATALOGUE_H_
#define PIPEWRIGHT_SCHEDULES_CATALOGUE_H_

#include <span>
#include <string_view>

// The ready-made .plan files of this folder, one per schedule, embedded in the library at build
// time. Constant data; any thread.

namespace pipewright::schedules {

struct ReadyFile {
  std::string_view path;  // from the root of the repository: "schedules/gpipe.plan"
  std::string_view text;
};

// All files, sorted by path.
std::span<const ReadyFile> ready_files();

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_CATALOGUE_H_
