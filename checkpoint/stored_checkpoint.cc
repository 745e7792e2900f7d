// Opening goes from the outside in: the manifest, then each file that it lists (or the folder has),
// then the tensors that the files have parts of. Each step reports all that it finds, and the next
// one runs only if it found nothing: a missing file would make every tensor in it incomplete.
#include "pipewright/checkpoint/stored_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "pipewright/checkpoint/durable_file.h"
#include "pipewright/checkpoint/folder.h"
#include "pipewright/checkpoint/in_backticks.h"
#include "pipewright/checkpoint/manifest.h"
#include "pipewright/checkpoint/safetensors_file.h"
#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/spelling.h"
#include "pipewright/layout/boxes.h"

namespace pipewright::checkpoint {
namespace {

namespace fs = std::filesystem;
using ir::Rule;

std::string shape_text(DType dtype, std::span<const int64_t> shape) {
  return fmt::format("{}[{}]", name(dtype), fmt::join(shape, ", "));
}

}  // namespace

void CheckpointReport::add(FileReport file) {
  if (file.diagnostics.has_errors()) files.push_back(std::move(file));
}

class CheckpointOpener {
 public:
  CheckpointOpener(CheckpointReport* report, Gaps gaps) : report_(*report), gaps_(gaps) {}

  std::optional<StoredCheckpoint> open(const fs::path& path) {
    const size_t before = report_.files.size();
    const auto failed = [&] { return report_.files.size() != before; };
    list(path);
    if (!failed()) open_files();
    checkpoint_.files_ = std::make_shared<const std::vector<SafetensorsFile>>(std::move(opened_));
    if (!failed()) place_tensors(path);
    if (!failed()) check_manifest_tensors(path);
    if (failed()) return std::nullopt;
    find_unknown();
    return std::move(checkpoint_);
  }

 private:
  void list(const fs::path& path) {
    files_ = list_checkpoint_files(path, &report_);
    checkpoint_.path_ = path;
    checkpoint_.folder_ = files_.folder;
    checkpoint_.names_ = files_.names;
    checkpoint_.manifest_ = files_.manifest;
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
        opened_.push_back(*std::move(opened));
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
    const auto infos = part_infos(header, diagnostics);
    if (!infos) return;
    for (size_t at = 0; at < infos->size(); ++at) {
      const StoredTensor& tensor = header.tensors[at];
      const PartInfo& info = (*infos)[at];
      const Box box{info.offset, tensor.shape};
      const auto [entry, is_new] = checkpoint_.tensors_.try_emplace(
          info.tensor, WholeTensor{tensor.dtype, std::vector<int64_t>(tensor.shape.size()), {}});
      WholeTensor& whole = entry->second;
      if (whole.dtype != tensor.dtype || whole.shape.size() != tensor.shape.size()) {
        diagnostics->error(Rule::kTensorMismatch,
                           fmt::format("tensor {}: expected {} and {}, as in {}, got {}",
                                       in_backticks(info.tensor), name(whole.dtype),
                                       ir::counted(whole.shape.size(), "dimension", "dimensions"),
                                       checkpoint_.names_[whole.boxes.front().file],
                                       shape_text(tensor.dtype, tensor.shape)));
        continue;
      }
      for (size_t dim = 0; dim < whole.shape.size(); ++dim)
        whole.shape[dim] = std::max(whole.shape[dim], box.begin[dim] + box.sizes[dim]);
      whole.boxes.push_back({box, index, header.data_begin + tensor.begin});
      if (info.whole_shape) {
        check_same_shape(info.tensor, tensor.dtype, *info.whole_shape, index, diagnostics);
      } else if (!tensor.shape.empty()) {
        unsized_.insert(info.tensor);
      }
    }
  }

  // All files that say how large a tensor is as a whole agree on it.
  void check_same_shape(const std::string& tensor, DType dtype, const std::vector<int64_t>& shape,
                        size_t index, ir::Diagnostics* diagnostics) {
    const auto [said, is_first] = said_.try_emplace(tensor, SaidShape{shape, index});
    if (said->second.shape == shape) return;
    diagnostics->error(
        Rule::kTensorMismatch,
        fmt::format("tensor {}: expected a part of {}, as in {}, got one of {}",
                    in_backticks(tensor), shape_text(dtype, said->second.shape),
                    checkpoint_.names_[said->second.file], shape_text(dtype, shape)));
  }

  // Sorts the parts of each tensor, and checks that they cover it.
  void place_tensors(const fs::path& path) {
    FileReport file{{path.native(), {}}, {}};
    if (checkpoint_.manifest_) {
      // A tensor of which a part is missing at the end would look smaller.
      for (const ManifestTensor& tensor : checkpoint_.manifest_->tensors)
        enlarge(tensor.name, tensor.shape);
    }
    for (const auto& [name, said] : said_) {
      enlarge(name, said.shape);
      const WholeTensor& tensor = checkpoint_.tensors_.at(name);
      if (tensor.shape != said.shape && !checkpoint_.manifest_)
        file.diagnostics.error(
            Rule::kTensorMismatch,
            fmt::format("tensor {}: expected parts of {}, as in {}, got parts up to {}",
                        in_backticks(name), shape_text(tensor.dtype, said.shape),
                        checkpoint_.names_[said.file], shape_text(tensor.dtype, tensor.shape)));
      unsized_.erase(name);
    }
    for (auto& [name, tensor] : checkpoint_.tensors_) {
      std::ranges::stable_sort(tensor.boxes, [](const StoredBox& left, const StoredBox& right) {
        return left.box.begin < right.box.begin;
      });
      check_coverage(name, tensor, &file.diagnostics);
    }
    report_.add(std::move(file));
  }

  void enlarge(const std::string& name, const std::vector<int64_t>& least) {
    const auto found = checkpoint_.tensors_.find(name);
    if (found == checkpoint_.tensors_.end()) return;
    std::vector<int64_t>& shape = found->second.shape;
    if (shape.size() != least.size()) return;
    for (size_t dim = 0; dim < shape.size(); ++dim) shape[dim] = std::max(shape[dim], least[dim]);
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
    const layout::Coverage coverage = layout::cover(tensor.shape, boxes);
    if (!coverage.gaps.empty() && gaps_ == Gaps::kErrors)
      diagnostics->error(
          Rule::kCoverage,
          fmt::format("{}: no file has elements {}{}", what, text(coverage.gaps.front()),
                      coverage.gaps.size() == 1
                          ? ""
                          : fmt::format(" and {}", ir::counted(coverage.gaps.size() - 1, "more box",
                                                               "more boxes"))));
    if (coverage.overlaps.empty()) return;
    const auto [later, first] = coverage.overlaps.front();
    const std::string both = text(*intersection(boxes[later], boxes[first]));
    const std::string& one = checkpoint_.names_[tensor.boxes[first].file];
    const std::string& other = checkpoint_.names_[tensor.boxes[later].file];
    diagnostics->error(
        Rule::kCoverage,
        one == other
            ? fmt::format("{}: two parts have elements {}, both in {}", what, both, one)
            : fmt::format("{}: two files have elements {}: {} and {}", what, both, one, other));
  }

  // The tensors are those that the manifest or the index lists.
  void check_manifest_tensors(const fs::path& path) {
    FileReport file{{path.native(), {}}, {}};
    if (checkpoint_.manifest_) {
      const auto& tensors = checkpoint_.manifest_->tensors;
      check_tensors(checkpoint_.tensors_, std::vector<TensorSpec>(tensors.begin(), tensors.end()),
                    /*allow_others=*/false, &file.diagnostics);
    }
    for (const auto& [tensor, name] : files_.index) {
      const auto found = checkpoint_.tensors_.find(tensor);
      if (found == checkpoint_.tensors_.end() ||
          checkpoint_.names_[found->second.boxes.front().file] != name)
        file.diagnostics.error(Rule::kTensorMismatch,
                               fmt::format("expected tensor {} in {}, as the index says, got none",
                                           in_backticks(tensor), in_backticks(name)));
    }
    if (files_.total_size) check_total_size(path, &file.diagnostics);
    report_.add(std::move(file));
  }

  // Tools that write other tensors than they count are common, so fewer bytes are an error only if
  // parts can be missing.
  void check_total_size(const fs::path& path, ir::Diagnostics* diagnostics) {
    uint64_t bytes = 0;
    for (const auto& [name, file] : files_.index) {
      const auto found = checkpoint_.tensors_.find(name);
      if (found == checkpoint_.tensors_.end()) return;  // which is an error already
      bytes += *bytes_of(found->second.dtype, found->second.shape);
    }
    if (bytes >= *files_.total_size) return;
    const std::string text =
        fmt::format("expected {} of tensors, the total_size of {}, got {}",
                    ir::counted(*files_.total_size, "byte", "bytes"), kIndexName, bytes);
    if (unsized_.empty())
      report_.notes.push_back({path.native(), text});
    else
      diagnostics->error(Rule::kCoverage,
                         fmt::format("{}: parts are missing at the end of {}{}", text,
                                     in_backticks(*unsized_.begin()),
                                     unsized_.size() == 1 ? "" : " or another tensor"));
  }

  void find_unknown() {
    if (files_.manifest || !files_.index.empty()) return;
    checkpoint_.unknown_.sizes.assign(unsized_.begin(), unsized_.end());
    checkpoint_.unknown_.tensors = !files_.are_all;
  }

  struct SaidShape {
    std::vector<int64_t> shape;
    size_t file;
  };

  CheckpointReport& report_;
  const Gaps gaps_;
  StoredCheckpoint checkpoint_;
  CheckpointFiles files_;
  std::vector<SafetensorsFile> opened_;
  std::map<std::string, SaidShape> said_;  // of whole tensors, by the first file that says it
  std::set<std::string> unsized_;          // tensors with a part whose file does not say it
};

std::optional<StoredCheckpoint> StoredCheckpoint::open(const fs::path& path,
                                                       CheckpointReport* report, Gaps gaps) {
  return CheckpointOpener(report, gaps).open(path);
}

uint64_t StoredCheckpoint::size() const {
  uint64_t total = 0;
  for (const SafetensorsFile& file : files()) total += file.bytes().size();
  return total;
}

void StoredCheckpoint::verify(CheckpointReport* report,
                              const std::function<void(uint64_t)>& on_progress, size_t rank,
                              size_t ranks) const {
  if (!manifest_) return;
  constexpr size_t kPiece = 8 << 20;
  uint64_t done = 0;
  for (size_t index = rank; index < files().size(); index += ranks) {
    uint32_t crc = 0;
    std::span<const std::byte> rest = files()[index].bytes();
    while (!rest.empty()) {
      const auto piece = rest.first(std::min(rest.size(), kPiece));
      files()[index].will_read(files()[index].bytes().size() - rest.size(), piece.size());
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
