#ifndef PIPEWRIGHT_SCHEDULES_CATALOGUE_H_
#define PIPEWRIGHT_SCHEDULES_CATALOGUE_H_

#include <span>
#include <string_view>

// The ready-made .plan files of this folder, one per schedule, embedded in the library at build
// time, so that they can be read without a checkout. Constant data and pure functions; any thread.

namespace pipewright::schedules {

struct ReadyFile {
  std::string_view name;  // the name of the file without .plan: "zb_h1"
  std::string_view text;
};

// All files, sorted by name.
std::span<const ReadyFile> ready_files();

// Finds a file by its name or by the name of its schedule ("ZB-H1"), ignoring case, `-` and `_`.
// Returns null if there is none.
const ReadyFile* find_ready_file(std::string_view name);

}  // namespace pipewright::schedules

#endif  // PIPEWRIGHT_SCHEDULES_CATALOGUE_H_
