#include "pipewright/checkpoint/safetensors_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <utility>

namespace pipewright::checkpoint {
namespace {

constexpr uint64_t kHeader = 64 << 10;  // more than most headers have

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0)
    throw FileError("open", path.native(), errno);
  if (S_ISDIR(status.st_mode)) throw FileError("open", path.native(), EISDIR);
  if (!S_ISREG(status.st_mode))
    throw FileError(fmt::format("cannot open `{}`: not a regular file", path.native()));
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return;
  void* begin = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (begin == MAP_FAILED) throw FileError("read", path.native(), errno);
  bytes_ = {static_cast<const std::byte*>(begin), size};
  // A hint, whose errors do not matter.
  (void)::madvise(begin, size, MADV_RANDOM);
  will_read(0, std::min<uint64_t>(size, kHeader));
}

void MappedFile::will_read(uint64_t begin, uint64_t size) const {
  static const auto kPage = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t before = begin % kPage;
  auto* const first = const_cast<std::byte*>(bytes_.data()) + (begin - before);
  (void)::madvise(first, before + size, MADV_WILLNEED);
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

std::optional<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path,
                                                     ir::Diagnostics* diagnostics,
                                                     ir::Source* text) {
  MappedFile file(path);
  ParsedSafetensors parsed = parse_safetensors(path.native(), file.text(), diagnostics);
  *text = std::move(parsed.text);
  if (!parsed.header) return std::nullopt;
  return SafetensorsFile(std::move(file), *std::move(parsed.header));
}

std::span<const std::byte> SafetensorsFile::data(const StoredTensor& tensor) const {
  return bytes().subspan(header_.data_begin + tensor.begin, tensor.end - tensor.begin);
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, SafetensorsHeader header)
    : header_(std::move(header)), file_(std::move(path)) {
  file_.write(safetensors_header_bytes(header_));
}

void SafetensorsWriter::commit() {
  const uint64_t expected = header_.data_begin + header_.data_size();
  if (file_.size() != expected)
    throw std::invalid_argument(fmt::format("expected {} bytes of data, got {}",
                                            header_.data_size(),
                                            file_.size() - header_.data_begin));
  file_.commit();
}

}  // namespace pipewright::checkpoint
