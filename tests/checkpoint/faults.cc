// These definitions take precedence over those of libc.so for this program and its libraries. They
// keep what is not durable yet: inodes with data that were not synced, and changes of names in
// folders that were not synced. A power loss truncates the former to nothing and undoes the latter,
// the last one first, which is one of the outcomes that a file system may have.
#include "tests/checkpoint/faults.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace pipewright::tests {
namespace {

namespace fs = std::filesystem;
using Inode = std::pair<dev_t, ino_t>;

// A name by its folder, which may be renamed meanwhile.
struct Name {
  explicit Name(const fs::path& path)
      : folder(static_cast<int>(syscall(SYS_openat, AT_FDCWD,
                                        path.has_parent_path() ? path.parent_path().c_str() : ".",
                                        O_PATH | O_DIRECTORY))),
        name(path.filename()) {}
  int folder;
  std::string name;
};

struct Change {
  Inode folder;
  std::function<void()> undo;
};

// The C library's functions have no argument for it.
struct State {
  Fault fault;
  int steps = 0;
  bool is_active = false;
  std::map<Inode, int> unsynced;  // a descriptor of each
  std::vector<Change> changes;
};
State& state() {
  static State the_state;
  return the_state;
}

Inode inode_of(int descriptor) {
  struct stat status {};
  fstat(descriptor, &status);
  return {status.st_dev, status.st_ino};
}

void lose_power() {
  for (const auto& [inode, descriptor] : state().unsynced)
    (void)!syscall(SYS_ftruncate, descriptor, 0);
  for (auto change = state().changes.rbegin(); change != state().changes.rend(); ++change)
    change->undo();
}

// Whether the step is to be done.
bool take_step() {
  State& now = state();
  if (!now.is_active || ++now.steps != now.fault.at_step) return true;
  now.is_active = false;
  if (now.fault.kind == Fault::kError) {
    now.is_active = true;
    errno = now.fault.error;
    return false;
  }
  if (now.fault.kind == Fault::kPowerLoss) lose_power();
  _exit(kCrashed);
}

void changed(const Name& name, std::function<void()> undo) {
  if (state().is_active) state().changes.push_back({inode_of(name.folder), std::move(undo)});
}

void created(const char* path, int flags) {
  changed(Name(path), [name = Name(path), flags] {
    syscall(SYS_unlinkat, name.folder, name.name.c_str(), flags);
  });
}

}  // namespace

void set_fault(const Fault& fault) {
  state().fault = fault;
  state().is_active = true;
}

int steps_taken() { return state().steps; }

}  // namespace pipewright::tests

using pipewright::tests::changed;
using pipewright::tests::created;
using pipewright::tests::Name;
using pipewright::tests::state;
using pipewright::tests::take_step;

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  const bool creates = (flags & O_CREAT) != 0 && access(path, F_OK) != 0;
  if (creates && !take_step()) return -1;
  const int descriptor = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  if (creates && descriptor >= 0) created(path, 0);
  return descriptor;
}

ssize_t write(int descriptor, const void* data, size_t size) {
  if (!state().is_active || descriptor <= 2) return syscall(SYS_write, descriptor, data, size);
  if (!take_step()) return -1;
  auto& unsynced = state().unsynced;
  const auto inode = pipewright::tests::inode_of(descriptor);
  if (!unsynced.contains(inode)) unsynced[inode] = dup(descriptor);
  // A torn write: the first half of it is a step of its own.
  const ssize_t half = size > 1 ? syscall(SYS_write, descriptor, data, size / 2) : 0;
  if (half < 0 || !take_step()) return -1;
  const ssize_t rest = syscall(SYS_write, descriptor, static_cast<const char*>(data) + half,
                               size - static_cast<size_t>(half));
  return rest < 0 ? rest : half + rest;
}

int fsync(int descriptor) {
  if (!take_step()) return -1;
  const auto inode = pipewright::tests::inode_of(descriptor);
  auto& unsynced = state().unsynced;
  if (const auto found = unsynced.find(inode); found != unsynced.end()) {
    close(found->second);
    unsynced.erase(found);
  }
  std::erase_if(state().changes, [&](const auto& change) { return change.folder == inode; });
  return 0;  // the disk is not what is tested
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned int flags) noexcept {
  if (!take_step()) return -1;
  const int result =
      static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
  if (result == 0)
    changed(Name(to), [old_name = Name(from), new_name = Name(to), flags] {
      syscall(SYS_renameat2, new_name.folder, new_name.name.c_str(), old_name.folder,
              old_name.name.c_str(), flags);
    });
  return result;
}

int rename(const char* from, const char* to) noexcept {
  return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int mkdir(const char* path, mode_t mode) noexcept {
  if (!take_step()) return -1;
  const int result = static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
  if (result == 0) created(path, AT_REMOVEDIR);
  return result;
}

int unlink(const char* path) noexcept {
  return take_step() ? static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0)) : -1;
}

int rmdir(const char* path) noexcept {
  return take_step() ? static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR)) : -1;
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  return take_step() ? static_cast<int>(syscall(SYS_unlinkat, folder, path, flags)) : -1;
}

}  // extern "C"
