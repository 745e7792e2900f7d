#ifndef PIPEWRIGHT_CHECKPOINT_DURABLE_FILE_H_
#define PIPEWRIGHT_CHECKPOINT_DURABLE_FILE_H_

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// The CRC-32 of zlib, gzip and PNG, as Python's zlib.crc32. It finds every change of up to 32
// adjacent bits. Pure functions; any thread.

namespace pipewright::checkpoint {

// The checksum of `before`'s bytes followed by `bytes`.
uint32_t crc32(std::span<const std::byte> bytes, uint32_t before = 0);

// Eight hexadecimal digits: "cbf43926".
std::string crc32_text(uint32_t crc);
std::optional<uint32_t> parse_crc32(std::string_view text);

// Thrown if a file or folder cannot be opened, read or written; what() contains its name and the
// reason: "cannot write `ckpt/step-000010.tmp/shard-...`: No space left on device".
class FileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  // `what` is a verb, and `error` a value of errno.
  FileError(std::string_view what, std::string_view path, int error);
};

// Owns a file descriptor. Move-only; negative if it has none.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }
  // Returns false, with errno set, if written data could not be stored.
  bool close() { return ::close(std::exchange(number_, -1)) == 0; }

 private:
  int number_;
};

// Files that survive a crash of the program, and of the machine.

// A file that is written under the name PATH.tmp, and appears as PATH when it is whole:
//
//   DurableFile file("model.safetensors");
//   file.write(header);
//   file.write(data);
//   file.commit();            // fsync, then rename; an older file of that name is replaced
//   sync_folder(".");         // the name is durable too
//
// Without commit(), the destructor removes what was written. All functions throw FileError. Not
// thread-safe.
class DurableFile {
 public:
  explicit DurableFile(std::filesystem::path path);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  // Small pieces are collected, so that each need not be a system call.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();

  // The size and checksum of what was written so far.
  uint64_t size() const { return size_; }
  uint32_t crc32() const { return crc32_; }

 private:
  void store(std::span<const std::byte> bytes);

  std::filesystem::path path_, temporary_;
  Descriptor file_;
  std::vector<std::byte> buffer_;
  uint64_t size_ = 0;
  uint64_t stored_ = 0;
  uint32_t crc32_ = 0;
  bool is_committed_ = false;
};

// Writes a whole file durably and atomically, its name included.
void write_durably(const std::filesystem::path& path, std::string_view text);

// Renames a file or folder. A file that has the new name is replaced.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);

// Makes the names in a folder durable: those of files created, renamed or removed before.
void sync_folder(const std::filesystem::path& folder);

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_DURABLE_FILE_H_
