#ifndef PIPEWRIGHT_CHECKPOINT_SAFETENSORS_FILE_H_
#define PIPEWRIGHT_CHECKPOINT_SAFETENSORS_FILE_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pipewright/checkpoint/durable_file.h"
#include "pipewright/checkpoint/safetensors.h"
#include "pipewright/ir/diagnostic.h"

// Safetensors files on disk.

namespace pipewright::checkpoint {

// A whole file, mapped into memory read-only: only the pages that are touched are read, in pieces
// that will_read() announces. A program that touches a page of a file that was truncated meanwhile,
// or that the disk cannot read, is ended by SIGBUS. Immutable; any thread.
class MappedFile {
 public:
  // Throws FileError.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  // Begins to read a part of the file from the disk, in as few requests as possible. A page that is
  // touched before is read by itself, without its neighbours.
  void will_read(uint64_t begin, uint64_t size) const;
  std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }

 private:
  std::span<const std::byte> bytes_;
};

// A safetensors file whose header is valid. Immutable; any thread.
//
//   ir::Diagnostics diagnostics;
//   const auto file = SafetensorsFile::open("model.safetensors", &diagnostics, &text);
//   for (const StoredTensor& tensor : file->header().tensors) use(file->data(tensor));
class SafetensorsFile {
 public:
  // Returns nullopt, with errors added to the diagnostics and the header's text in `text` to show
  // them with, if the file is not valid. Throws FileError if it cannot be read.
  static std::optional<SafetensorsFile> open(const std::filesystem::path& path,
                                             ir::Diagnostics* diagnostics, ir::Source* text);

  const SafetensorsHeader& header() const { return header_; }
  // `tensor` is one of the header's.
  std::span<const std::byte> data(const StoredTensor& tensor) const;
  std::span<const std::byte> bytes() const { return file_.bytes(); }
  void will_read(uint64_t begin, uint64_t size) const { file_.will_read(begin, size); }

 private:
  SafetensorsFile(MappedFile file, SafetensorsHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}

  MappedFile file_;
  SafetensorsHeader header_;
};

// Writes a file from front to back, durably and atomically (folder.h).
//
//   SafetensorsWriter writer(path, lay_out_safetensors(tensors, metadata));
//   for (const StoredTensor& tensor : writer.header().tensors) writer.write(bytes_of(tensor));
//   writer.commit();
class SafetensorsWriter {
 public:
  // `header` is one of lay_out_safetensors. Throws FileError, as do the other functions.
  SafetensorsWriter(std::filesystem::path path, SafetensorsHeader header);

  const SafetensorsHeader& header() const { return header_; }
  // The next bytes of the data, in the order of the header's tensors.
  void write(std::span<const std::byte> bytes) { file_.write(bytes); }
  // Throws std::invalid_argument if more or fewer bytes were written than the tensors have.
  void commit();

  uint64_t size() const { return file_.size(); }
  uint32_t crc32() const { return file_.crc32(); }  // after commit()

 private:
  SafetensorsHeader header_;
  DurableFile file_;
};

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_SAFETENSORS_FILE_H_
