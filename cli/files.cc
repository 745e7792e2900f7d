#include "pipewright/cli/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <istream>
#include <optional>
#include <ostream>
#include <set>
#include <streambuf>
#include <system_error>
#include <utility>

#include "pipewright/checkpoint/durable_file.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/printable.h"

namespace pipewright::cli {
namespace {

using checkpoint::Descriptor;

// A stream buffer over a file descriptor that keeps the errno of a failed write.
class DescriptorBuffer : public std::streambuf {
 public:
  explicit DescriptorBuffer(int descriptor) : descriptor_(descriptor) {
    setp(buffer_.data(), buffer_.data() + buffer_.size());
  }
  int error() const { return error_; }

 protected:
  int_type overflow(int_type letter) override {
    if (!flush()) return traits_type::eof();
    if (!traits_type::eq_int_type(letter, traits_type::eof()))
      sputc(traits_type::to_char_type(letter));
    return traits_type::not_eof(letter);
  }
  int sync() override { return flush() ? 0 : -1; }

 private:
  bool flush() {
    const char* next = pbase();
    while (next < pptr()) {
      const ssize_t written = ::write(descriptor_, next, static_cast<size_t>(pptr() - next));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        error_ = errno;
        return false;
      }
      next += written;
    }
    setp(buffer_.data(), buffer_.data() + buffer_.size());
    return true;
  }

  int descriptor_;
  int error_ = 0;
  std::array<char, 1 << 16> buffer_;
};

void write_all(int descriptor, const std::string& path,
               const std::function<void(std::ostream&)>& write) {
  DescriptorBuffer buffer(descriptor);
  std::ostream stream(&buffer);
  write(stream);
  stream.flush();
  if (!stream) throw FileError("write", path, buffer.error());
}

// A file without a name in the folder of `target`, which it then replaces. It vanishes with the
// process, even if that is killed. On file systems without such files (O_TMPFILE) it has a
// temporary name, which only a kill leaves behind.
class ReplacementFile {
 public:
  explicit ReplacementFile(const std::string& target)
      : target_(target), file_(open_nameless(target)) {
    if (file_.get() >= 0) return;
    name_ = target_ + ".XXXXXX";
    file_ = Descriptor(::mkostemp(name_.data(), O_CLOEXEC));
    if (file_.get() < 0) name_.clear();
  }
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;
  ~ReplacementFile() {
    if (!name_.empty()) ::unlink(name_.c_str());
  }

  // Negative if the file could not be created.
  int descriptor() const { return file_.get(); }

  // Gives the file its name. Returns false, with errno set, if that failed.
  bool replace_target() {
    if (name_.empty() && !link()) return false;
    if (!file_.close()) return false;
    if (name_.empty()) return true;
    if (::rename(name_.c_str(), target_.c_str()) != 0) return false;
    name_.clear();
    return true;
  }

 private:
  static constexpr const char* kDescriptors = "/proc/self/fd";  // link() needs it

  static int open_nameless(const std::string& target) {
    if (::access(kDescriptors, X_OK) != 0) return -1;
    const std::filesystem::path folder = std::filesystem::path(target).parent_path();
    return ::open(folder.empty() ? "." : folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  }

  // Links the nameless file to the target, or to a temporary name if the target exists: a link does
  // not replace a file, but a rename does.
  bool link() {
    const std::string self = fmt::format("{}/{}", kDescriptors, file_.get());
    const auto link_to = [&](const std::string& path) {
      return ::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0;
    };
    if (link_to(target_)) return true;
    for (int attempt = 0; errno == EEXIST && attempt < 100; ++attempt) {
      std::string name = fmt::format("{}.{}.{}", target_, ::getpid(), attempt);
      if (!link_to(name)) continue;
      name_ = std::move(name);
      return true;
    }
    return false;
  }

  std::string target_;
  Descriptor file_;
  std::string name_;  // the temporary name; empty while there is none
};

// What a path refers to.
struct Target {
  std::string path;            // of a file: if the given one is a symbolic link, where that leads
  std::optional<mode_t> mode;  // of what is there; nullopt if nothing is

  bool is_special() const { return mode && !S_ISREG(*mode); }  // a pipe or a device
};

// Throws FileError for a folder, and for a file that may not be written.
Target target_of(const std::string& path) {
  Target target{path, std::nullopt};
  struct stat old {};
  if (::stat(path.c_str(), &old) == 0) {
    target.mode = old.st_mode;
    if (S_ISDIR(old.st_mode)) throw FileError("write", path, EISDIR);
    // Renaming needs no write permission on the old file, so check it here.
    if (::access(path.c_str(), W_OK) != 0) throw FileError("write", path, errno);
    // The link /dev/fd/3 to a pipe leads to no path.
    if (target.is_special()) return target;
  }
  std::filesystem::path resolved = path;
  std::error_code error;
  for (int links = 0; std::filesystem::is_symlink(resolved, error) && links < 40; ++links) {
    resolved = resolved.parent_path() / std::filesystem::read_symlink(resolved, error);
  }
  target.path = resolved.string();
  return target;
}

void replace_file(const std::string& path, const std::function<void(std::ostream&)>& write) {
  const Target target = target_of(path);
  if (target.is_special()) {
    Descriptor file(::open(target.path.c_str(), O_WRONLY | O_CLOEXEC));
    if (file.get() < 0) throw FileError("write", path, errno);
    write_all(file.get(), path, write);
    return;
  }
  ReplacementFile file(target.path);
  if (file.descriptor() < 0) throw FileError("write", path, errno);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  if (::fchmod(file.descriptor(), target.mode ? *target.mode & 07777 : 0666 & ~mask) != 0)
    throw FileError("write", path, errno);
  write_all(file.descriptor(), path, write);
  if (!file.replace_target()) throw FileError("write", path, errno);
}

}  // namespace

ir::Source read_source(const std::string& path, Console& console) {
  if (path == "-") {
    ir::Source source{"<stdin>", {}};
    std::array<char, 1 << 16> chunk;
    while (console.in.read(chunk.data(), chunk.size()) || console.in.gcount() > 0) {
      source.text.append(chunk.data(), static_cast<size_t>(console.in.gcount()));
    }
    if (console.in.bad()) throw FileError("cannot read stdin");
    return source;
  }
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) throw FileError("open", path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw FileError("open", path, errno);
  if (S_ISDIR(status.st_mode)) throw FileError("open", path, EISDIR);
  ir::Source source{path, {}};
  // One extra byte, so that the read that finds the end of the file needs no larger buffer.
  size_t size = 0;
  source.text.resize(S_ISREG(status.st_mode) ? static_cast<size_t>(status.st_size) + 1 : 1 << 16);
  for (;;) {
    if (size == source.text.size()) source.text.resize(2 * size);
    const ssize_t got = ::read(file.get(), source.text.data() + size, source.text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw FileError("read", path, errno);
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  source.text.resize(size);
  return source;
}

// The file that stdout is redirected to must be written through stdout, at its current offset, and
// not be replaced.
bool writes_to_stdout(const std::string& path) {
  if (path == "-") return true;
  struct stat named {
  }, standard{};
  return ::stat(path.c_str(), &named) == 0 && ::fstat(STDOUT_FILENO, &standard) == 0 &&
         named.st_dev == standard.st_dev && named.st_ino == standard.st_ino;
}

void write_output(const std::string& path, Console& console,
                  const std::function<void(std::ostream&)>& write) {
  if (writes_to_stdout(path)) {
    write(console.out);
  } else {
    replace_file(path, write);
  }
}

void require_writable(const std::string& path) {
  if (writes_to_stdout(path)) return;
  const Target target = target_of(path);
  if (target.is_special()) return;
  const ReplacementFile file(target.path);
  if (file.descriptor() < 0) throw FileError("write", path, errno);
}

void write_trace_folder(const std::string& folder, const schedule::KinetoTraces& traces,
                        Console& console) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw FileError(
        fmt::format("cannot create the folder {}: {}", ir::backticked(folder), error.message()));
  std::set<std::string> names;
  for (size_t rank = 0; rank < traces.num_ranks(); ++rank)
    names.insert(fmt::format("rank_{}.json", rank));
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string extension = entry.path().extension().string();
    if ((extension == ".json" || extension == ".gz") &&
        !names.contains(entry.path().filename().string()))
      throw FileError(
          fmt::format("cannot write traces to {}: expected no others there, got {}, which a reader "
                      "would take for that of a rank",
                      ir::backticked(folder), ir::backticked(entry.path().filename().string())));
  }
  for (size_t rank = 0; rank < traces.num_ranks(); ++rank) {
    write_output((std::filesystem::path(folder) / fmt::format("rank_{}.json", rank)).string(),
                 console, [&](std::ostream& out) { traces.print(rank, out); });
  }
}

}  // namespace pipewright::cli
