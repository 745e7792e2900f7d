// Reads a header as a stream of JSON events, so that memory is bounded by the size of the header
// and duplicate keys are seen. Each tensor is checked when its object ends, against itself; after
// the last one, the tensors are sorted by their data and checked against each other.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "pipewright/checkpoint/in_backticks.h"
#include "pipewright/checkpoint/safetensors.h"
#include "pipewright/checkpoint/safetensors_file.h"
#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/json_scanner.h"
#include "pipewright/ir/text/spelling.h"

namespace pipewright::checkpoint {
namespace {

using ir::JsonKind;
using ir::Rule;

constexpr std::string_view kMetadata = "__metadata__";
constexpr std::string_view kEntryKeys[] = {"dtype", "shape", "data_offsets"};

std::optional<uint64_t> parse_size(std::string_view digits) {
  uint64_t number = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, number);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

struct Entry {
  StoredTensor tensor{};
  bool has_dtype = false, has_shape = false, has_offsets = false;
  ir::Place place;          // its name
  ir::Place offsets_place;  // [BEGIN, END]
};

// Whether the data of a tensor have the size that its type and shape demand.
void check_size(const Entry& entry, ir::Diagnostics* diagnostics) {
  const StoredTensor& tensor = entry.tensor;
  const std::optional<uint64_t> bytes = bytes_of(tensor.dtype, tensor.shape);
  const std::string what = fmt::format("tensor {} of {}[{}]", in_backticks(tensor.name),
                                       name(tensor.dtype), fmt::join(tensor.shape, ", "));
  if (!bytes) {
    diagnostics->error(Rule::kSafetensorsBytes,
                       fmt::format("{}: expected a whole number of bytes below 2^61", what),
                       entry.offsets_place);
  } else if (*bytes != tensor.end - tensor.begin) {
    diagnostics->error(Rule::kSafetensorsBytes,
                       fmt::format("{}: expected {}, got {}", what,
                                   ir::counted(*bytes, "byte", "bytes"), tensor.end - tensor.begin),
                       entry.offsets_place);
  }
}

// Whether the tensors tile the data. Sorts them by their data.
void check_tiling(std::vector<Entry>* entries, uint64_t data_size, ir::Diagnostics* diagnostics) {
  std::ranges::sort(*entries, [](const Entry& left, const Entry& right) {
    return std::tuple(left.tensor.begin, left.tensor.end, *left.place.offset) <
           std::tuple(right.tensor.begin, right.tensor.end, *right.place.offset);
  });
  uint64_t end = 0;
  const Entry* before = nullptr;
  for (const Entry& entry : *entries) {
    const StoredTensor& tensor = entry.tensor;
    if (tensor.begin < end)
      diagnostics
          ->error(Rule::kSafetensorsTiling,
                  fmt::format("tensor {} overlaps {}: expected its data at byte {}, got {}",
                              in_backticks(tensor.name), in_backticks(before->tensor.name), end,
                              tensor.begin),
                  entry.offsets_place)
          .notes.push_back({"the other tensor", before->offsets_place});
    if (tensor.begin > end)
      diagnostics->error(
          Rule::kSafetensorsTiling,
          fmt::format("bytes {} to {} of the data belong to no tensor", end, tensor.begin - 1),
          entry.offsets_place);
    if (tensor.end >= end) before = &entry;
    end = std::max(end, tensor.end);
  }
  if (end == data_size) return;
  const ir::Place place = before == nullptr ? ir::Place{} : before->offsets_place;
  diagnostics->error(
      Rule::kSafetensorsTiling,
      end > data_size
          ? fmt::format("the file is truncated: expected {} of data, got {}",
                        ir::counted(end, "byte", "bytes"), data_size)
          : fmt::format("expected {} of data, got {}: the last tensor ends before the file",
                        ir::counted(end, "byte", "bytes"), data_size),
      place);
}

class HeaderReader : public ir::JsonEvents {
 public:
  HeaderReader(const ir::Source& source, ir::Diagnostics* diagnostics)
      : text_(source.text), cursor_(source), diagnostics_(*diagnostics) {}

  // Returns nullopt if something is wrong.
  std::optional<SafetensorsHeader> read(uint64_t data_size) {
    const size_t before = diagnostics_.total();
    if (!ir::scan_json(&cursor_, this, &diagnostics_)) return std::nullopt;
    check_padding();
    // Offsets that are wrong by themselves would make each neighbour look wrong.
    if (diagnostics_.total() == before) check_tiling(&entries_, data_size, &diagnostics_);
    if (diagnostics_.total() != before) return std::nullopt;
    for (Entry& entry : entries_) header_.tensors.push_back(std::move(entry.tensor));
    return std::move(header_);
  }

  bool scalar(JsonKind kind, const std::string& text) override {
    switch (place_) {
      case Where::kStart:
        error(Rule::kSafetensorsEntry, "expected a JSON object", value_place(kind));
        break;
      case Where::kRoot:
        error(Rule::kSafetensorsEntry,
              fmt::format("{}: expected an object, got {}", in_backticks(key_), ir::name(kind)),
              value_place(kind));
        break;
      case Where::kMetadataValues:
        if (kind == JsonKind::kString) {
          header_.metadata.emplace(key_, text);
        } else {
          error(Rule::kSafetensorsEntry,
                fmt::format("metadata {}: expected a string, got {}", in_backticks(key_),
                            ir::name(kind)),
                value_place(kind));
        }
        break;
      case Where::kEntry:
        if (key_ == "dtype" && kind == JsonKind::kString) {
          read_dtype(text);
        } else {
          wrong_type(kind);
        }
        break;
      case Where::kNumbers:
        read_number(kind, text);
        break;
    }
    return true;
  }

  bool key(const std::string& key) override {
    key_ = key;
    key_place_ = cursor_.string();
    const bool is_new =
        place_ == Where::kRoot ? names_.insert(key).second : keys_.insert(key).second;
    if (!is_new)
      error(Rule::kSafetensorsEntry, fmt::format("expected one key {}, got two", in_backticks(key)),
            key_place_);
    if (place_ == Where::kEntry &&
        std::ranges::find(kEntryKeys, key) == std::ranges::end(kEntryKeys)) {
      error(Rule::kSafetensorsEntry,
            fmt::format("expected {}, got key {}", fmt::join(kEntryKeys, ", "), in_backticks(key)),
            key_place_)
          .help = ir::did_you_mean(key, kEntryKeys);
    }
    return true;
  }

  bool enter(JsonKind kind) override {
    const bool is_object = kind == JsonKind::kObject;
    switch (place_) {
      case Where::kStart:
        if (is_object) {
          place_ = Where::kRoot;
          return true;
        }
        break;  // cannot be: the text starts with `{`
      case Where::kRoot:
        if (!is_object) {
          scalar(kind, "");
          return false;
        }
        keys_.clear();
        place_ = key_ == kMetadata ? Where::kMetadataValues : Where::kEntry;
        entry_ = {};
        errors_before_ = diagnostics_.total();
        entry_.tensor.name = key_;
        entry_.place = key_place_;
        return true;
      case Where::kEntry:
        if (!is_object && (key_ == "shape" || key_ == "data_offsets")) {
          place_ = Where::kNumbers;
          numbers_.clear();
          numbers_are_valid_ = true;
          numbers_begin_ = cursor_.token(1);
          return true;
        }
        wrong_type(kind);
        return false;
      case Where::kMetadataValues:
      case Where::kNumbers:
        scalar(kind, "");
        return false;
    }
    return false;
  }

  void leave(JsonKind) override {
    switch (place_) {
      case Where::kNumbers:
        end_numbers();
        place_ = Where::kEntry;
        break;
      case Where::kEntry:
        end_entry();
        place_ = Where::kRoot;
        break;
      case Where::kMetadataValues:
        place_ = Where::kRoot;
        break;
      case Where::kStart:
      case Where::kRoot:
        place_ = Where::kStart;
        header_end_ = cursor_.token_end();
        break;
    }
  }

 private:
  enum class Where { kStart, kRoot, kMetadataValues, kEntry, kNumbers };

  ir::Diagnostic& error(Rule rule, std::string message, const ir::Place& place) {
    return diagnostics_.error(rule, std::move(message), place);
  }

  // The place of a scalar, or of the bracket that opens an array or object.
  ir::Place value_place(JsonKind kind) {
    if (kind == JsonKind::kString) return cursor_.string();
    return kind == JsonKind::kArray || kind == JsonKind::kObject ? cursor_.token(1)
                                                                 : cursor_.word();
  }

  void wrong_type(JsonKind kind) {
    if (std::ranges::find(kEntryKeys, key_) == std::ranges::end(kEntryKeys)) return;  // reported
    error(
        Rule::kSafetensorsEntry,
        fmt::format("{} of tensor {}: expected {}, got {}", key_, in_backticks(entry_.tensor.name),
                    key_ == "dtype" ? "a string" : "an array", ir::name(kind)),
        value_place(kind));
    // The value is there, if of the wrong type, so it is not reported as missing.
    (key_ == "dtype"   ? entry_.has_dtype
     : key_ == "shape" ? entry_.has_shape
                       : entry_.has_offsets) = true;
  }

  void read_dtype(const std::string& text) {
    entry_.has_dtype = true;
    if (const auto dtype = parse_dtype(text)) {
      entry_.tensor.dtype = *dtype;
      return;
    }
    error(Rule::kSafetensorsEntry,
          fmt::format("dtype of tensor {}: expected one of {}, got {}",
                      in_backticks(entry_.tensor.name), fmt::join(dtype_names(), ", "),
                      in_backticks(text)),
          cursor_.string())
        .help = ir::did_you_mean(text, dtype_names());
  }

  void read_number(JsonKind kind, const std::string& text) {
    // A size is also a size of a tensor in memory, which is signed.
    const std::optional<uint64_t> number =
        kind == JsonKind::kNumber ? parse_size(text) : std::nullopt;
    const bool fits = number && (key_ != "shape" || *number <= INT64_MAX);
    const ir::Place place = value_place(kind);
    if (fits && text_[*place.offset] != '-') {
      numbers_.push_back(*number);
      return;
    }
    numbers_are_valid_ = false;
    error(Rule::kSafetensorsEntry,
          fmt::format("{} of tensor {}: expected whole numbers below 2^{}, got {}", key_,
                      in_backticks(entry_.tensor.name), key_ == "shape" ? 63 : 64,
                      kind == JsonKind::kNumber
                          ? in_backticks(text_.substr(*place.offset, place.length))
                          : std::string(ir::name(kind))),
          place);
  }

  void end_numbers() {
    ir::Place place = numbers_begin_;
    place.length = cursor_.token_end() - *place.offset;
    if (key_ == "shape") {
      entry_.has_shape = true;
      entry_.tensor.shape.assign(numbers_.begin(), numbers_.end());
      return;
    }
    entry_.has_offsets = true;
    entry_.offsets_place = place;
    if (!numbers_are_valid_) return;
    if (numbers_.size() != 2 || numbers_[0] > numbers_[1]) {
      error(Rule::kSafetensorsEntry,
            fmt::format("data_offsets of tensor {}: expected [BEGIN, END] with BEGIN <= END, got "
                        "[{}]",
                        in_backticks(entry_.tensor.name),
                        numbers_.size() > 4 ? ir::counted(numbers_.size(), "number", "numbers")
                                            : fmt::format("{}", fmt::join(numbers_, ", "))),
            place);
      return;
    }
    entry_.tensor.begin = numbers_[0];
    entry_.tensor.end = numbers_[1];
  }

  void end_entry() {
    std::vector<std::string_view> missing;
    if (!entry_.has_dtype) missing.push_back(kEntryKeys[0]);
    if (!entry_.has_shape) missing.push_back(kEntryKeys[1]);
    if (!entry_.has_offsets) missing.push_back(kEntryKeys[2]);
    if (!missing.empty())
      error(Rule::kSafetensorsEntry,
            fmt::format("tensor {} has no {}", in_backticks(entry_.tensor.name),
                        fmt::join(missing, ", no ")),
            entry_.place);
    entries_.push_back(std::move(entry_));
    if (diagnostics_.total() == errors_before_) check_size(entries_.back(), &diagnostics_);
  }

  void check_padding() {
    const size_t other = text_.find_first_not_of(' ', header_end_);
    if (other != std::string_view::npos)
      error(Rule::kSafetensorsFile, "expected only spaces after the JSON of the header",
            cursor_.at(other, 1));
  }

  std::string_view text_;
  ir::JsonCursor cursor_;
  ir::Diagnostics& diagnostics_;
  SafetensorsHeader header_;
  std::vector<Entry> entries_;
  size_t header_end_ = 0;

  Where place_ = Where::kStart;
  std::string key_;
  ir::Place key_place_;
  std::unordered_set<std::string> names_;
  std::set<std::string> keys_;  // of the current tensor or of the metadata
  Entry entry_;
  size_t errors_before_ = 0;  // the entry
  std::vector<uint64_t> numbers_;
  bool numbers_are_valid_ = true;
  ir::Place numbers_begin_;
};

}  // namespace

ParsedSafetensors parse_safetensors(std::string file_name, std::string_view file,
                                    ir::Diagnostics* diagnostics) {
  ParsedSafetensors parsed;
  parsed.text.name = std::move(file_name);
  constexpr size_t kSizeBytes = 8;
  const auto fail = [&](std::string message) {
    diagnostics->error(Rule::kSafetensorsFile, std::move(message));
    return std::move(parsed);
  };
  if (file.size() < kSizeBytes)
    return fail(fmt::format("expected 8 bytes with the size of the header, got {}",
                            ir::counted(file.size(), "byte", "bytes")));
  uint64_t size = 0;
  for (size_t index = kSizeBytes; index-- > 0;)
    size = size << 8 | static_cast<unsigned char>(file[index]);
  if (size > kMaxHeaderSize)
    return fail(fmt::format("expected a header of at most {} bytes, got {}: not a safetensors file",
                            kMaxHeaderSize, size));
  if (size > file.size() - kSizeBytes)
    return fail(fmt::format("the file is truncated in its header: expected {}, got {}",
                            ir::counted(size, "byte", "bytes"), file.size() - kSizeBytes));
  parsed.text.text = file.substr(kSizeBytes, size);
  if (!parsed.text.text.starts_with('{')) return fail("expected a header that starts with `{`");
  HeaderReader reader(parsed.text, diagnostics);
  parsed.header = reader.read(file.size() - kSizeBytes - size);
  if (parsed.header) parsed.header->data_begin = kSizeBytes + size;
  return parsed;
}

}  // namespace pipewright::checkpoint
