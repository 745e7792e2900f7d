// Opening goes from the outside in: the manifest, then each file that it lists (or the folder has),
// then the tensors that the files have parts of. Each step reports all that it finds, and the next
// one runs only if it found nothing: a missing file would make every tensor in it incomplete.
#include "pipewright/checkpoint/stored_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "pipewright/checkpoint/crc32.h"
#include "pipewright/checkpoint/folder.h"
#include "pipewright/checkpoint/in_backticks.h"
#include "pipewright/checkpoint/sharding_info.h"
#include "pipewright/ir/counted.h"
#include "pipewright/ir/text/spelling.h"

namespace pipewright::checkpoint {
namespace {

namespace fs = std::filesystem;
using ir::Rule;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kExtension = ".safetensors";

std::string shape_text(DType dtype, std::span<const int64_t> shape) {
  return fmt::format("{}[{}]", name(dtype), fmt::join(shape, ", "));
}

// The names of the safetensors files of a folder, sorted.
std::vector<std::string> list_files(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.ends_with(kExtension)) names.push_back(name);
  }
  if (error) throw FileError("read", folder.native(), error.value());
  std::ranges::sort(names);
  return names;
}

}  // namespace

void CheckpointReport::add(FileReport file) {
  if (file.diagnostics.has_errors()) files.push_back(std::move(file));
}

class CheckpointOpener {
 public:
  explicit CheckpointOpener(CheckpointReport* report) : report_(*report) {}

  std::optional<StoredCheckpoint> open(const fs::path& path) {
    const size_t before = report_.files.size();
    const auto failed = [&] { return report_.files.size() != before; };
    list(path);
    if (!failed()) open_files();
    if (!failed()) place_tensors(path);
    if (!failed()) check_manifest_tensors(path);
    if (failed()) return std::nullopt;
    return std::move(checkpoint_);
  }

 private:
  // Finds the names of the files.
  void list(const fs::path& path) {
    checkpoint_.path_ = path;
    if (!fs::is_directory(path)) {
      checkpoint_.folder_ = path.parent_path();
      checkpoint_.names_ = {path.filename()};
      return;
    }
    checkpoint_.folder_ = path;
    const std::vector<std::string> there = list_files(path);
    if (path.extension() == ".tmp" && step_of(path.stem())) {
      FileReport file{{path.native(), {}}, {}};
      file.diagnostics.error(Rule::kManifest, "the checkpoint was never finished");
      report_.add(std::move(file));
    } else if (fs::exists(path / kManifestName)) {
      list_by_manifest(path, there);
    } else if (fs::exists(path / kIndexName)) {
      list_by_index(path, there);
    } else {
      checkpoint_.names_ = there;
      if (there.empty()) {
        FileReport file{{path.native(), {}}, {}};
        file.diagnostics.error(Rule::kCheckpointFile, fmt::format("expected {} or *{}, got neither",
                                                                  kManifestName, kExtension));
        report_.add(std::move(file));
      }
    }
  }

  void list_by_manifest(const fs::path& path, const std::vector<std::string>& there) {
    FileReport file;
    file.text = {path / kManifestName, std::string(MappedFile(path / kManifestName).text())};
    checkpoint_.manifest_ = parse_manifest(file.text, &file.diagnostics);
    if (checkpoint_.manifest_) {
      for (const ManifestFile& one : checkpoint_.manifest_->files)
        checkpoint_.names_.push_back(one.name);
      check_presence(there, checkpoint_.names_, &file.diagnostics);
    }
    report_.add(std::move(file));
  }

  // Hugging Face's index of a model in several files.
  void list_by_index(const fs::path& path, const std::vector<std::string>& there) {
    FileReport file;
    file.text = {path / kIndexName, std::string(MappedFile(path / kIndexName).text())};
    const auto json = nlohmann::json::parse(file.text.text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
      file.diagnostics.error(Rule::kManifest, "expected a JSON object with a `weight_map`");
    } else {
      for (const auto& [tensor, in] : json["weight_map"].items()) {
        if (!in.is_string() || in.get<std::string>().find('/') != std::string::npos) {
          file.diagnostics.error(
              Rule::kManifest,
              fmt::format("weight_map: {}: expected the name of a file in the folder, got {}",
                          in_backticks(tensor), in_backticks(in.dump())));
        } else {
          checkpoint_.names_.push_back(in);
          index_.emplace(tensor, in);
        }
      }
      std::ranges::sort(checkpoint_.names_);
      checkpoint_.names_.erase(std::unique(checkpoint_.names_.begin(), checkpoint_.names_.end()),
                               checkpoint_.names_.end());
      check_presence(there, checkpoint_.names_, &file.diagnostics);
    }
    report_.add(std::move(file));
  }

  static void check_presence(const std::vector<std::string>& there,
                             const std::vector<std::string>& listed, ir::Diagnostics* diagnostics) {
    for (const std::string& name : listed) {
      if (std::ranges::find(there, name) == there.end())
        diagnostics->error(Rule::kCheckpointFile,
                           fmt::format("expected file {}, got none", in_backticks(name)));
    }
    for (const std::string& name : there) {
      if (std::ranges::find(listed, name) == listed.end())
        diagnostics->error(
            Rule::kCheckpointFile,
            fmt::format("file {} is in the folder, but not listed", in_backticks(name)));
    }
  }

  void open_files() {
    for (size_t index = 0; index < checkpoint_.names_.size(); ++index) {
      const fs::path path = checkpoint_.folder_ / checkpoint_.names_[index];
      FileReport file{{path.native(), {}}, {}};
      // The size first: a truncated file has one error, not two.
      if (!has_expected_size(index, path, &file.diagnostics)) {
        report_.add(std::move(file));
        continue;
      }
      auto opened = SafetensorsFile::open(path, &file.diagnostics, &file.text);
      if (opened) {
        check_save_id(opened->header(), &file.diagnostics);
        add_boxes(opened->header(), index, &file.diagnostics);
        checkpoint_.files_.push_back(*std::move(opened));
      }
      report_.add(std::move(file));
    }
  }

  bool has_expected_size(size_t index, const fs::path& path, ir::Diagnostics* diagnostics) const {
    if (!checkpoint_.manifest_) return true;
    std::error_code error;
    const uint64_t size = fs::file_size(path, error);
    if (error) throw FileError("open", path.native(), error.value());
    const uint64_t expected = checkpoint_.manifest_->files[index].size;
    if (size == expected) return true;
    diagnostics->error(Rule::kCheckpointFile,
                       fmt::format("expected {}, as the manifest says, got {}",
                                   ir::counted(expected, "byte", "bytes"), size));
    return false;
  }

  void check_save_id(const SafetensorsHeader& header, ir::Diagnostics* diagnostics) const {
    if (!checkpoint_.manifest_) return;
    const auto id = header.metadata.find(kSaveIdKey);
    if (id != header.metadata.end() && id->second == checkpoint_.manifest_->save_id) return;
    diagnostics->error(
        Rule::kCheckpointFile,
        fmt::format("the file belongs to another checkpoint: expected {} {}, got {}", kSaveIdKey,
                    checkpoint_.manifest_->save_id,
                    id == header.metadata.end() ? "none" : in_backticks(id->second)));
  }

  void add_boxes(const SafetensorsHeader& header, size_t index, ir::Diagnostics* diagnostics) {
    const auto offsets = saved_offsets(header, diagnostics);
    if (!offsets) return;
    for (const StoredTensor& tensor : header.tensors) {
      const Box box{offsets->at(tensor.name), tensor.shape};
      const auto [entry, is_new] = checkpoint_.tensors_.try_emplace(
          tensor.name, WholeTensor{tensor.dtype, std::vector<int64_t>(tensor.shape.size()), {}});
      WholeTensor& whole = entry->second;
      if (whole.dtype != tensor.dtype || whole.shape.size() != tensor.shape.size()) {
        diagnostics->error(Rule::kTensorMismatch,
                           fmt::format("tensor {}: expected {} and {}, as in {}, got {}",
                                       in_backticks(tensor.name), name(whole.dtype),
                                       ir::counted(whole.shape.size(), "dimension", "dimensions"),
                                       checkpoint_.names_[whole.boxes.front().file],
                                       shape_text(tensor.dtype, tensor.shape)));
        continue;
      }
      for (size_t dim = 0; dim < whole.shape.size(); ++dim)
        whole.shape[dim] = std::max(whole.shape[dim], box.begin[dim] + box.sizes[dim]);
      whole.boxes.push_back({box, index, header.data_begin + tensor.begin});
    }
  }

  // Sorts the parts of each tensor, and checks that they cover it.
  void place_tensors(const fs::path& path) {
    FileReport file{{path.native(), {}}, {}};
    if (checkpoint_.manifest_) {
      // A tensor of which a part is missing at the end would look smaller.
      for (const ManifestTensor& tensor : checkpoint_.manifest_->tensors) {
        const auto found = checkpoint_.tensors_.find(tensor.name);
        if (found == checkpoint_.tensors_.end()) continue;
        std::vector<int64_t>& shape = found->second.shape;
        if (shape.size() != tensor.shape.size()) continue;
        for (size_t dim = 0; dim < shape.size(); ++dim)
          shape[dim] = std::max(shape[dim], tensor.shape[dim]);
      }
    }
    for (auto& [name, tensor] : checkpoint_.tensors_) {
      std::ranges::stable_sort(tensor.boxes, [](const StoredBox& left, const StoredBox& right) {
        return left.box.begin < right.box.begin;
      });
      check_coverage(name, tensor, &file.diagnostics);
    }
    report_.add(std::move(file));
  }

  void check_coverage(const std::string& name, const WholeTensor& tensor,
                      ir::Diagnostics* diagnostics) const {
    const std::string what =
        fmt::format("tensor {} of {}", in_backticks(name), shape_text(tensor.dtype, tensor.shape));
    if (!bytes_of(tensor.dtype, tensor.shape)) {
      diagnostics->error(Rule::kCoverage,
                         fmt::format("{}: expected a whole number of bytes below 2^61", what));
      return;
    }
    std::vector<Box> boxes;
    for (const StoredBox& stored : tensor.boxes) boxes.push_back(stored.box);
    const Coverage coverage = cover(tensor.shape, boxes);
    if (!coverage.gaps.empty())
      diagnostics->error(
          Rule::kCoverage,
          fmt::format("{}: no file has elements {}{}", what, text(coverage.gaps.front()),
                      coverage.gaps.size() == 1
                          ? ""
                          : fmt::format(" and {}", ir::counted(coverage.gaps.size() - 1, "more box",
                                                               "more boxes"))));
    if (coverage.overlaps.empty()) return;
    const auto [later, first] = coverage.overlaps.front();
    diagnostics->error(Rule::kCoverage,
                       fmt::format("{}: two files have elements {}: {} and {}", what,
                                   text(*intersection(boxes[later], boxes[first])),
                                   checkpoint_.names_[tensor.boxes[first].file],
                                   checkpoint_.names_[tensor.boxes[later].file]));
  }

  // The tensors are those that the manifest or the index lists.
  void check_manifest_tensors(const fs::path& path) {
    FileReport file{{path.native(), {}}, {}};
    if (checkpoint_.manifest_) {
      const auto& tensors = checkpoint_.manifest_->tensors;
      check_tensors(checkpoint_.tensors_, std::vector<TensorSpec>(tensors.begin(), tensors.end()),
                    /*allow_others=*/false, &file.diagnostics);
    }
    for (const auto& [tensor, name] : index_) {
      const auto found = checkpoint_.tensors_.find(tensor);
      if (found == checkpoint_.tensors_.end() ||
          checkpoint_.names_[found->second.boxes.front().file] != name)
        file.diagnostics.error(Rule::kTensorMismatch,
                               fmt::format("expected tensor {} in {}, as the index says, got none",
                                           in_backticks(tensor), in_backticks(name)));
    }
    report_.add(std::move(file));
  }

  CheckpointReport& report_;
  StoredCheckpoint checkpoint_;
  std::map<std::string, std::string> index_;  // Hugging Face's: file by tensor
};

std::optional<StoredCheckpoint> StoredCheckpoint::open(const fs::path& path,
                                                       CheckpointReport* report) {
  return CheckpointOpener(report).open(path);
}

uint64_t StoredCheckpoint::size() const {
  uint64_t total = 0;
  for (const SafetensorsFile& file : files_) total += file.bytes().size();
  return total;
}

void StoredCheckpoint::verify(CheckpointReport* report,
                              const std::function<void(uint64_t)>& on_progress, size_t rank,
                              size_t ranks) const {
  if (!manifest_) return;
  constexpr size_t kPiece = 8 << 20;
  uint64_t done = 0;
  for (size_t index = rank; index < files_.size(); index += ranks) {
    uint32_t crc = 0;
    std::span<const std::byte> rest = files_[index].bytes();
    while (!rest.empty()) {
      const auto piece = rest.first(std::min(rest.size(), kPiece));
      files_[index].will_read(files_[index].bytes().size() - rest.size(), piece.size());
      crc = crc32(piece, crc);
      rest = rest.subspan(piece.size());
      done += piece.size();
      if (on_progress) on_progress(done);
    }
    const uint32_t expected = manifest_->files[index].crc32;
    if (crc == expected) continue;
    FileReport file{{folder_ / names_[index], {}}, {}};
    file.diagnostics.error(Rule::kCheckpointFile,
                           fmt::format("the data are damaged: expected CRC-32 {}, got {}",
                                       crc32_text(expected), crc32_text(crc)));
    report->add(std::move(file));
  }
}

void check_tensors(const std::map<std::string, WholeTensor>& tensors,
                   std::span<const TensorSpec> expected, bool allow_others,
                   ir::Diagnostics* diagnostics) {
  std::vector<std::string_view> names;
  for (const auto& [name, tensor] : tensors) names.emplace_back(name);
  std::map<std::string_view, const TensorSpec*> wanted;
  for (const TensorSpec& tensor : expected) {
    wanted.emplace(tensor.name, &tensor);
    const auto found = tensors.find(tensor.name);
    if (found == tensors.end()) {
      ir::Diagnostic& error = diagnostics->error(
          Rule::kTensorMismatch,
          fmt::format("expected tensor {} of {}, got none", in_backticks(tensor.name),
                      shape_text(tensor.dtype, tensor.shape)));
      // Quadratic in the length of names, so only for a few.
      if (diagnostics->total() < 20) error.help = ir::did_you_mean(tensor.name, names);
    } else if (found->second.dtype != tensor.dtype || found->second.shape != tensor.shape) {
      diagnostics->error(Rule::kTensorMismatch,
                         fmt::format("tensor {}: expected {}, got {}", in_backticks(tensor.name),
                                     shape_text(tensor.dtype, tensor.shape),
                                     shape_text(found->second.dtype, found->second.shape)));
    }
  }
  if (allow_others) return;
  for (const auto& [name, tensor] : tensors) {
    if (!wanted.contains(name))
      diagnostics->error(Rule::kTensorMismatch,
                         fmt::format("unexpected tensor {} of {}", in_backticks(name),
                                     shape_text(tensor.dtype, tensor.shape)));
  }
}

}  // namespace pipewright::checkpoint
