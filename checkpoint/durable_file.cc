#include "pipewright/checkpoint/durable_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <libdeflate.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "pipewright/ir/printable.h"

namespace pipewright::checkpoint {

uint32_t crc32(std::span<const std::byte> bytes, uint32_t before) {
  // libdeflate takes a null buffer as a request for the initial value.
  return bytes.empty() ? before : libdeflate_crc32(before, bytes.data(), bytes.size());
}

std::string crc32_text(uint32_t crc) { return fmt::format("{:08x}", crc); }

std::optional<uint32_t> parse_crc32(std::string_view text) {
  uint32_t crc = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), crc, 16);
  if (error != std::errc() || crc32_text(crc) != text) return std::nullopt;
  return crc;
}

namespace {

// Data are checksummed and stored in pieces of this size, which stay in the processor's cache.
constexpr size_t kPiece = 1 << 20;
// The disk starts to write after each of these, instead of with the fsync at the end.
constexpr uint64_t kWindow = 16 * kPiece;

}  // namespace

FileError::FileError(std::string_view what, std::string_view path, int error)
    : std::runtime_error(
          fmt::format("cannot {} `{}`: {}", what, ir::printable(path), std::strerror(error))) {}

DurableFile::DurableFile(std::filesystem::path path)
    : path_(std::move(path)),
      temporary_(path_.native() + ".tmp"),
      file_(::open(temporary_.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0666)) {
  if (file_.get() < 0) throw FileError("create", temporary_.native(), errno);
}

DurableFile::~DurableFile() {
  if (!is_committed_) ::unlink(temporary_.c_str());
}

void DurableFile::write(std::span<const std::byte> bytes) {
  size_ += bytes.size();
  if (buffer_.size() + bytes.size() >= kPiece && !buffer_.empty()) {
    store(buffer_);
    buffer_.clear();
  }
  if (bytes.size() >= kPiece) {
    store(bytes);
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void DurableFile::store(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kPiece));
    crc32_ = checkpoint::crc32(piece, crc32_);
    for (size_t done = 0; done < piece.size();) {
      const ssize_t written = ::write(file_.get(), piece.data() + done, piece.size() - done);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw FileError("write", temporary_.native(), errno);
      done += static_cast<size_t>(written);
    }
    const uint64_t before = stored_;
    stored_ += piece.size();
    // Only a hint, whose errors do not matter: fsync follows.
    if (stored_ / kWindow != before / kWindow)
      (void)::sync_file_range(file_.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
    bytes = bytes.subspan(piece.size());
  }
}

void DurableFile::commit() {
  store(buffer_);
  buffer_.clear();
  if (::fsync(file_.get()) != 0) throw FileError("write", temporary_.native(), errno);
  if (!file_.close()) throw FileError("write", temporary_.native(), errno);
  rename_file(temporary_, path_);
  is_committed_ = true;
}

void write_durably(const std::filesystem::path& path, std::string_view text) {
  DurableFile file(path);
  file.write(text);
  file.commit();
  sync_folder(path.parent_path());
}

void rename_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw FileError("rename", from.native(), errno);
}

void sync_folder(const std::filesystem::path& folder) {
  const Descriptor descriptor(
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.get() < 0 || ::fsync(descriptor.get()) != 0)
    throw FileError("write", folder.native(), errno);
}

}  // namespace pipewright::checkpoint
