#ifndef PIPEWRIGHT_TESTS_CHECKPOINT_SCRATCH_H_
#define PIPEWRIGHT_TESTS_CHECKPOINT_SCRATCH_H_

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace pipewright::tests {

// An empty folder of that name.
inline std::filesystem::path scratch_folder(const std::string& name) {
  const char* base = std::getenv("TEST_TMPDIR");
  const std::filesystem::path folder = std::filesystem::path(base ? base : "/tmp") / name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_CHECKPOINT_SCRATCH_H_
