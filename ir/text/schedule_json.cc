// Reads the JSON form of a schedule: a state machine over the events of scan_json, in which the
// position in the document (`in_`) and the last key determine the meaning of an event. Cells are
// appended to rows directly, without a tree of values, to save memory.
#include "pipewright/ir/text/schedule_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/ir/text/header.h"
#include "pipewright/ir/text/json_scanner.h"
#include "pipewright/ir/text/recording_reader.h"

namespace pipewright::ir {
namespace {

constexpr std::string_view kJsonVersion = "1";

// Whether the value of a policy can be a JSON value of this kind.
bool is_kind(const PolicyValues& values, JsonKind kind) {
  switch (values.kind) {
    case PolicyKind::kFlag:
      return kind == JsonKind::kBoolean;
    case PolicyKind::kCount:
    case PolicyKind::kCounts:
      return kind == JsonKind::kNumber || (kind == JsonKind::kString && !values.choices.empty());
    case PolicyKind::kChoice:
      return kind == JsonKind::kString;
  }
  return false;
}
bool is_kind(const HeaderKey& key, JsonKind kind) {
  return kind == (key.is_number ? JsonKind::kNumber : JsonKind::kString);
}

// The key of that name, which is not a policy, or null.
const HeaderKey* find_header_key(std::string_view name) {
  const auto found = std::ranges::find(header_keys(), name, &HeaderKey::name);
  return found == header_keys().end() ? nullptr : &*found;
}

// The keys whose values are arrays of numbers; those of placements may also be patterns.
bool is_placement(std::string_view key) { return key.starts_with("placement"); }
bool is_array(std::string_view key) {
  return key == "recompute" || key == "offload" || key == "cut";
}

class ScheduleReader : public JsonEvents {
 public:
  ScheduleReader(const Source& source, Diagnostics* diagnostics)
      : text_(source.text),
        line_begin_(source.mark_size()),
        cursor_(source),
        diagnostics_(diagnostics),
        cells_(source, CellStyle::kStrings),
        recording_(&cursor_, diagnostics) {}

  std::optional<ParsedSchedule> parse() {
    const size_t errors_before = diagnostics_->total();
    if (!scan_json(&cursor_, this, diagnostics_)) return std::nullopt;
    if (!has_version_) missing("version", "\"version\": 1");
    if (!has_rows_) missing("rows", "\"rows\": [[\"0F0\"]]");
    auto parsed = header_.finish(first_place_, errors_before, std::move(rows_), std::move(cells_),
                                 diagnostics_);
    if (!parsed || !has_recording_) return parsed;
    parsed->recording = recording_.finish(schedule_of(parsed->schedule).rows);
    return parsed->recording ? std::move(parsed) : std::nullopt;
  }

 private:
  // kNumbers: in the array of a placement or of is_array().
  enum class In { kFile, kObject, kLowering, kNumbers, kRows, kRow, kRecording, kDone };

  bool enter(JsonKind kind) override {
    if (in_ == In::kRecording) return recording_.enter(kind);
    const Place place = cursor_.token(1);
    const bool object = kind == JsonKind::kObject;
    const auto at_key = [&](std::string_view key) { return in_ == In::kObject && key_ == key; };
    if (object && in_ == In::kFile) {
      first_place_ = place;
      in_ = In::kObject;
    } else if (object && at_key("lowering")) {
      in_ = In::kLowering;
    } else if (!object && in_ == In::kObject && (is_placement(key_) || is_array(key_))) {
      in_ = In::kNumbers;
      numbers_.clear();
      numbers_place_ = place;
    } else if (!object && at_key("rows")) {
      in_ = In::kRows;
    } else if (!object && in_ == In::kRows) {
      in_ = In::kRow;
      start_row(place);
    } else if (object && at_key("recording")) {
      in_ = In::kRecording;
      recording_.enter(kind);
    } else {
      wrong_type(kind, place);
      return false;
    }
    return true;
  }

  void leave(JsonKind kind) override {
    switch (in_) {
      case In::kRecording:
        recording_.leave(kind);
        if (recording_.is_at_end()) in_ = In::kObject;
        break;
      case In::kNumbers:
        header_.set(key_, numbers_, key_place_, numbers_place_, diagnostics_);
        in_ = In::kObject;
        break;
      case In::kLowering:
      case In::kRows:
        in_ = In::kObject;
        break;
      case In::kRow:
        in_ = In::kRows;
        break;
      case In::kObject:
      case In::kFile:
      case In::kDone:
        in_ = In::kDone;
        break;
    }
  }

  bool key(const std::string& key) override {
    if (in_ == In::kRecording) return recording_.key(key);
    key_ = key;
    key_place_ = cursor_.string();
    if (in_ != In::kObject) return true;
    if (key_ == "rows") once(&has_rows_);
    if (key_ == "version") once(&has_version_);
    if (key_ == "lowering") once(&has_lowering_);
    if (key_ == "recording") once(&has_recording_);
    return true;
  }

  bool scalar(JsonKind kind, const std::string& text) override {
    switch (in_) {
      case In::kRow:
        cell(kind, text);
        return true;
      case In::kRecording:
        return recording_.scalar(kind, text);
      case In::kNumbers:
        if (kind != JsonKind::kNumber ||
            text.find_first_not_of("0123456789") != std::string::npos) {
          wrong_type(kind, scalar_place(kind));
        } else {
          numbers_ += (numbers_.empty() ? "" : " ") + text;
        }
        return true;
      case In::kObject:
        if (key_ == "version") return version(kind, text);
        if (is_placement(key_) && text != "loop" && text != "v") break;
        if (key_ == "rows" || is_array(key_) || key_ == "lowering" || key_ == "recording") break;
        header_value(kind, text);
        return true;
      case In::kLowering:
        header_value(kind, text);
        return true;
      case In::kFile:
      case In::kRows:
      case In::kDone:
        break;
    }
    wrong_type(kind, scalar_place(kind));
    return true;
  }

  void start_row(const Place& place) {
    // Several rows may be on one line; searching its start for each would take quadratic time.
    if (place.line != row_line_) {
      const size_t newline = text_.substr(0, *place.offset).rfind('\n');
      if (newline != std::string_view::npos) line_begin_ = newline + 1;
      row_line_ = place.line;
    }
    cells_.add_row({place.line, line_begin_, cursor_.token_end()});
    rows_.emplace_back();
  }

  void cell(JsonKind kind, const std::string& text) {
    Action& action = rows_.back().emplace_back();
    if (kind == JsonKind::kNull) return;
    if (kind != JsonKind::kString || text.find_first_not_of(" \t") == std::string::npos) {
      wrong_type(kind, scalar_place(kind));
    } else if (auto error = parse_action(text, &action)) {
      Place place = scalar_place(kind);
      // Without escapes, offsets in the string are offsets in the file.
      const bool has_escapes = place.length != text.size() + 2;
      if (!has_escapes) place = cursor_.at(*place.offset + 1 + error->offset, error->length);
      report(std::move(*error), place, diagnostics_);
    }
  }

  // Returns false for an unknown version: the rest could mean anything.
  bool version(JsonKind kind, const std::string& text) {
    const Place place = scalar_place(kind);
    if (kind != JsonKind::kNumber) {
      wrong_type(kind, place);
      return true;
    }
    if (text == kJsonVersion) return true;
    diagnostics_->error(
        Rule::kVersion,
        fmt::format("unsupported version: expected {}, got {}", kJsonVersion, backticked(text)),
        place);
    return false;
  }

  void header_value(JsonKind kind, const std::string& text) {
    const Place place = scalar_place(kind);
    if (!is_known_key()) {
      diagnostics_
          ->error(Rule::kUnknownKey, fmt::format("unknown key {}", backticked(key_)), key_place_)
          .help = key_list();
    } else if (in_ == In::kLowering ? !is_kind(find_lowering_policy(key_)->values, kind)
                                    : !is_kind(*find_header_key(key_), kind)) {
      wrong_type(kind, place);
    } else {
      header_.set(key_, text, key_place_, place, diagnostics_);
    }
  }

  void once(bool* seen) {
    if (std::exchange(*seen, true))
      diagnostics_->error(Rule::kDuplicateKey, fmt::format("duplicate key {}", backticked(key_)),
                          key_place_);
  }

  void missing(std::string_view key, std::string_view example) {
    diagnostics_
        ->error(Rule::kMissingKey, fmt::format("the header has no key `{}`", key), first_place_)
        .help = fmt::format("write it as `{}`", example);
  }

  void wrong_type(JsonKind kind, const Place& place) {
    const bool has_key = in_ == In::kObject || in_ == In::kLowering;
    if (has_key && !is_known_key()) {  // an array or object is under an unknown key
      header_.set(key_, "", key_place_, place, diagnostics_);
      return;
    }
    if (in_ == In::kObject) header_.refuse(key_);
    diagnostics_->error(
        Rule::kJsonType,
        fmt::format("{}expected {}, got {}", has_key ? fmt::format("`{}`: ", key_) : "", expected(),
                    name(kind)),
        place);
  }

  std::string expected() const {
    switch (in_) {
      case In::kFile:
      case In::kDone:
        return std::string(name(JsonKind::kObject));
      case In::kObject:
        if (key_ == "rows" || is_array(key_)) return std::string(name(JsonKind::kArray));
        if (key_ == "lowering" || key_ == "recording") return std::string(name(JsonKind::kObject));
        if (key_ == "version") return std::string(name(JsonKind::kNumber));
        if (is_placement(key_)) return "\"loop\", \"v\" or an array";
        return std::string(find_header_key(key_)->values);
      case In::kLowering:
        return values_in_words(*find_lowering_policy(key_));
      case In::kNumbers:
        return is_placement(key_) ? "a rank as an integer"
               : key_ == "cut"    ? "a number of layers"
                                  : "a stage as an integer";
      case In::kRows:
        return "an array for each rank";
      case In::kRow:
        return "an action as a string, or null";
      case In::kRecording:
        break;  // RecordingReader says it
    }
    return "";
  }

  Place scalar_place(JsonKind kind) {
    return kind == JsonKind::kString ? cursor_.string() : cursor_.word();
  }

  // Policies are known inside "lowering" only, all other keys outside it only.
  bool is_known_key() const {
    if (in_ == In::kLowering) return find_lowering_policy(key_) != nullptr;
    return key_ == "rows" || key_ == "lowering" || key_ == "recording" || key_ == "version" ||
           find_header_key(key_) != nullptr;
  }

  std::string key_list() const {
    std::string list =
        in_ == In::kLowering ? "the keys of `lowering` are " : "the keys are version";
    bool first = in_ == In::kLowering;
    const auto add = [&](std::string_view key) {
      list += (std::exchange(first, false) ? "" : ", ") + std::string(key);
    };
    if (in_ == In::kLowering) {
      for (const LoweringPolicy& policy : lowering_policies()) add(policy.name);
    } else {
      for (const HeaderKey& key : header_keys()) add(key.name);
      add("lowering");
      add("rows");
      add("recording");
    }
    return list;
  }

  std::string_view text_;
  size_t row_line_ = 0, line_begin_;  // the line of the row read last, and its offset
  JsonCursor cursor_;
  Diagnostics* diagnostics_;

  In in_ = In::kFile;
  std::string key_;
  Place key_place_, first_place_, numbers_place_;
  std::string numbers_;
  bool has_version_ = false, has_rows_ = false, has_lowering_ = false, has_recording_ = false;

  HeaderReader header_;
  Rows rows_;
  CellIndex cells_;
  RecordingReader recording_;
};

// Looks for a key of the outermost object.
class KeyFinder : public JsonEvents {
 public:
  explicit KeyFinder(std::string_view wanted) : wanted_(wanted) {}
  bool found() const { return found_; }

  bool enter(JsonKind kind) override {
    return kind == JsonKind::kObject && !std::exchange(inside_, true);
  }
  void leave(JsonKind) override {}
  bool key(const std::string& key) override {
    found_ = key == wanted_;
    return !found_;
  }
  bool scalar(JsonKind, const std::string&) override { return true; }

 private:
  const std::string_view wanted_;
  bool inside_ = false, found_ = false;
};

}  // namespace

std::optional<ParsedSchedule> parse_json(const Source& source, Diagnostics* diagnostics) {
  return ScheduleReader(source, diagnostics).parse();
}

bool is_schedule_json(const Source& source) {
  JsonCursor cursor(source);
  KeyFinder rows("rows");
  Diagnostics ignored;
  scan_json(&cursor, &rows, &ignored);
  return rows.found();
}

// Writes the JSON form of a schedule. A tree of all cells would take many times their memory, so
// only the values of the header become one.

namespace {

using Json = nlohmann::json;

// The value of a header key or a policy as JSON.
template <typename Key>
Json to_json(const Key& key, const std::string& text) {
  if (is_kind(key, JsonKind::kNumber) && text.find_first_not_of("0123456789") == std::string::npos)
    return std::stoll(text);
  if (is_kind(key, JsonKind::kString)) return text;
  return text == "true";
}

// "0 1 1 0" as an array, or a pattern as a string.
Json array_json(const std::string& text) {
  if (text == "loop" || text == "v") return text;
  Json array = Json::array();
  std::istringstream numbers(text);
  for (int number = 0; numbers >> number;) array.push_back(number);
  return array;
}

// One line per rank.
void print_recording(const Rows& rows, const Recording& recording, std::ostream& out) {
  out << ",\n  \"recording\": {\n    \"unit\": " << Json(recording.unit).dump()
      << ",\n    \"times\": [";
  std::string text;
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    text = rank == 0 ? "\n      [" : ",\n      [";
    for (size_t step = 0; step < rows[rank].size(); ++step) {
      if (step > 0) text += ", ";
      const Interval& one = recording.timeline.at(rank, step);
      text += rows[rank][step].is_idle() ? "null" : fmt::format("[{}, {}]", one.start, one.end);
    }
    out << text << "]";
  }
  out << "\n    ]";
  for (bool first = true; const Work& work : recording.timeline.work()) {
    out << (std::exchange(first, false) ? ",\n    \"work\": [" : ",")
        << fmt::format("\n      [{}, \"{}\", \"{}\", {}, {}]", work.rank, name(work.track),
                       to_string(work.part), work.time.start, work.time.end);
  }
  out << (recording.timeline.work().empty() ? "\n  }" : "\n    ]\n  }");
}

void print(const AnySchedule& any, const Recording* recording, std::ostream& out) {
  const Schedule& schedule = schedule_of(any);
  out << "{\n  \"version\": " << kJsonVersion;
  for (const HeaderKey& key : header_keys()) {
    const auto value = key.get(schedule, level_of(any));
    if (!value) continue;
    const bool is_numbers = is_placement(key.name) || is_array(key.name);
    const Json json = is_numbers ? array_json(*value) : to_json(key, *value);
    out << ",\n  \"" << key.name << "\": " << json.dump();
  }
  Json lowering = Json::object();
  for (const LoweringPolicy& policy : lowering_policies()) {
    if (const auto value = policy.get(schedule.lowering))
      lowering[std::string(policy.name)] = to_json(policy.values, *value);
  }
  if (!lowering.empty()) out << ",\n  \"lowering\": " << lowering.dump();
  // Tokens need no escapes.
  out << ",\n  \"rows\": [";
  std::string text;
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    text = rank == 0 ? "\n    [" : ",\n    [";
    bool first = true;
    for (const Action& action : schedule.rows[rank]) {
      if (!std::exchange(first, false)) text += ", ";
      if (action.is_idle()) {
        text += "null";
      } else {
        text += '"';
        append_action(action, &text);
        text += '"';
      }
    }
    out << text << "]";
  }
  out << "\n  ]";
  if (recording != nullptr) print_recording(schedule.rows, *recording, out);
  out << "\n}\n";
}

}  // namespace

void print_json(const AnySchedule& any, std::ostream& out) { print(any, nullptr, out); }

void print_json(const AnySchedule& any, const Recording& recording, std::ostream& out) {
  print(any, &recording, out);
}

}  // namespace pipewright::ir
