#include "pipewright/ir/text/schedule_json.h"

#include <fmt/format.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <utility>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/ir/text/header.h"
#include "pipewright/ir/text/json_cursor.h"
#include "pipewright/ir/text/shape.h"

namespace pipewright::ir {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kVersion = "1";

enum class Kind { kNull, kBoolean, kNumber, kString, kArray, kObject };

std::string_view name(Kind kind) {
  constexpr std::string_view kNames[] = {"null",     "true or false", "a number",
                                         "a string", "an array",      "an object"};
  return kNames[static_cast<size_t>(kind)];
}

// The JSON type of a key whose values are described so in the tables: "K", "N|inf", "true|false",
// or words.
bool is_kind(std::string_view values, Kind kind) {
  if (values.size() == 1) return kind == Kind::kNumber;
  if (values == "N|inf") return kind == Kind::kNumber || kind == Kind::kString;
  if (values == "true|false") return kind == Kind::kBoolean;
  return kind == Kind::kString;
}

Json to_json(std::string_view values, const std::string& text) {
  if (is_kind(values, Kind::kBoolean)) return text == "true";
  const bool digits = text.find_first_not_of("0123456789") == std::string::npos;
  if (digits && is_kind(values, Kind::kNumber)) return std::stoll(text);
  return text;
}

// The values column of a header key or a policy; empty if there is no such key.
std::string_view values_of(std::string_view key) {
  for (const HeaderKey& row : header_keys()) {
    if (row.name == key) return row.values;
  }
  const LoweringPolicy* policy = find_lowering_policy(key);
  return policy == nullptr ? "" : policy->values;
}

// Reads the events of the JSON parser, so that no tree of values is ever built.
class JsonReader : public nlohmann::json_sax<Json> {
 public:
  JsonReader(const Source& source, Diagnostics* diagnostics)
      : source_(source), text_(source.text), cursor_(source), diagnostics_(diagnostics) {}

  std::optional<ParsedSchedule> parse() {
    const size_t errors_before = diagnostics_->total();
    parsed_.cells = CellIndex(source_, CellStyle::kStrings);
    if (!cursor_.parse(this)) return std::nullopt;
    if (!has_version_) missing("version", "\"version\": 1");
    if (!has_rows_) missing("rows", "\"rows\": [[\"0F0\"]]");
    std::optional<HeaderReader::Result> header = header_.finish(first_place_, diagnostics_);
    if (!header || diagnostics_->total() > errors_before) return std::nullopt;
    return finish(std::move(*header));
  }

  bool null() override { return scalar(Kind::kNull, "null"); }
  bool boolean(bool value) override { return scalar(Kind::kBoolean, value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override {
    return scalar(Kind::kNumber, std::to_string(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return scalar(Kind::kNumber, std::to_string(value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return scalar(Kind::kNumber, text);
  }
  bool string(string_t& value) override { return scalar(Kind::kString, value); }
  bool binary(binary_t&) override { return false; }  // JSON text has none

  bool start_object(std::size_t) override {
    if (skipped_ > 0) return skip_deeper();
    if (in_ == In::kFile) {
      first_place_ = cursor_.token(1);
      in_ = In::kObject;
    } else if (in_ == In::kObject && key_ == "lowering") {
      in_ = In::kLowering;
    } else {
      wrong_type(Kind::kObject, 1);
      return skip_deeper();
    }
    return true;
  }

  bool key(string_t& value) override {
    if (skipped_ > 0) return true;
    key_ = value;
    key_place_ = cursor_.string();
    if (in_ == In::kObject && key_ == "rows") return once(&has_rows_);
    if (in_ == In::kObject && key_ == "version") return once(&has_version_);
    if (in_ == In::kObject && key_ == "lowering") return once(&has_lowering_);
    return true;
  }

  bool end_object() override {
    if (skipped_ > 0) return skip_back();
    in_ = in_ == In::kLowering ? In::kObject : In::kDone;
    return true;
  }

  bool start_array(std::size_t) override {
    if (skipped_ > 0) return skip_deeper();
    if (in_ == In::kObject && key_ == "rows") {
      in_ = In::kRows;
    } else if (in_ == In::kRows) {
      in_ = In::kRow;
      const Place place = cursor_.token(1);
      // Rows of one line share its start: looking for it again would cost the line's length each
      // time.
      if (place.line != row_line_) {
        const size_t newline = text_.substr(0, *place.offset).rfind('\n');
        row_line_offset_ = newline == std::string_view::npos ? source_.mark_size() : newline + 1;
        row_line_ = place.line;
      }
      parsed_.cells.add_row({place.line, row_line_offset_, cursor_.token_end()});
      rows_.emplace_back();
    } else if (in_ == In::kObject && key_ == "placement") {
      in_ = In::kPlacement;
      placement_.clear();
      placement_place_ = cursor_.token(1);
    } else {
      wrong_type(Kind::kArray, 1);
      return skip_deeper();
    }
    return true;
  }

  bool end_array() override {
    if (skipped_ > 0) return skip_back();
    if (in_ == In::kRow) {
      in_ = In::kRows;
    } else {
      if (in_ == In::kPlacement)
        header_.set("placement", placement_, key_place_, placement_place_, diagnostics_);
      in_ = In::kObject;
    }
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    cursor_.report(error, diagnostics_);
    return false;
  }

 private:
  enum class In { kFile, kObject, kLowering, kPlacement, kRows, kRow, kDone };

  // Everything inside a value that is of no use is passed over, however deep.
  bool skip_deeper() { return ++skipped_ > 0; }
  bool skip_back() { return --skipped_ >= 0; }

  // The place of a scalar.
  Place place_of_scalar(Kind kind) {
    return kind == Kind::kString ? cursor_.string() : cursor_.word();
  }

  bool once(bool* seen) {
    if (std::exchange(*seen, true))
      diagnostics_->error(Rule::kDuplicateKey,
                          fmt::format("the key {} stands twice", backticked(key_)), key_place_);
    return true;
  }

  void missing(std::string_view key, std::string_view example) {
    diagnostics_->error(Rule::kMissingKey, fmt::format("the header has no `{}`", key), first_place_)
        .help = fmt::format("write it as `{}`", example);
  }

  std::string wanted() const {
    switch (in_) {
      case In::kFile:
      case In::kDone:
        return std::string(name(Kind::kObject));
      case In::kObject:
        if (key_ == "rows") return std::string(name(Kind::kArray));
        if (key_ == "lowering") return std::string(name(Kind::kObject));
        if (key_ == "version") return std::string(name(Kind::kNumber));
        if (key_ == "placement") return "\"loop\", \"v\" or an array";
        return values_in_words(values_of(key_));
      case In::kLowering:
        return values_in_words(values_of(key_));
      case In::kPlacement:
        return "a rank, a whole number";
      case In::kRows:
        return "an array for each rank";
      case In::kRow:
        return "an action as a string, or null";
    }
    return "";
  }

  // An object or array of a key that does not exist is an unknown key, not a wrong type.
  void wrong_type(Kind found, size_t size) { wrong_type_at(found, cursor_.token(size)); }

  void wrong_type_at(Kind found, const Place& place) {
    const bool has_key = in_ == In::kObject || in_ == In::kLowering;
    if (has_key && !is_known_key()) {
      header_.set(key_, "", key_place_, place, diagnostics_);
      return;
    }
    if (in_ == In::kObject) header_.refuse(key_);
    const std::string of = has_key ? fmt::format("`{}` wants", key_) : std::string("want");
    diagnostics_->error(Rule::kJsonType, fmt::format("{} {}, found {}", of, wanted(), name(found)),
                        place);
  }

  bool is_known_key() const {
    if (in_ == In::kLowering) return find_lowering_policy(key_) != nullptr;
    return key_ == "rows" || key_ == "lowering" || key_ == "version" ||
           (!values_of(key_).empty() && find_lowering_policy(key_) == nullptr);
  }

  bool scalar(Kind kind, const std::string& text) {
    if (skipped_ > 0) return true;
    switch (in_) {
      case In::kRow:
        return cell(kind, text);
      case In::kPlacement:
        if (kind != Kind::kNumber || text.find_first_not_of("0123456789") != std::string::npos) {
          wrong_type_at(kind, place_of_scalar(kind));
        } else {
          placement_ += (placement_.empty() ? "" : " ") + text;
        }
        return true;
      case In::kObject:
        if (key_ == "version") return version(kind, text);
        if (key_ == "placement" && text != "loop" && text != "v") break;
        if (key_ == "rows" || key_ == "lowering") break;
        return header_value(kind, text);
      case In::kLowering:
        return header_value(kind, text);
      case In::kFile:
      case In::kRows:
      case In::kDone:
        break;
    }
    wrong_type_at(kind, place_of_scalar(kind));
    return true;
  }

  bool header_value(Kind kind, const std::string& text) {
    const Place place = place_of_scalar(kind);
    // A policy stands inside "lowering" and nothing else does: elsewhere it is a key that is not
    // known.
    if (!is_known_key()) {
      diagnostics_
          ->error(Rule::kUnknownKey, fmt::format("there is no key {} here", backticked(key_)),
                  key_place_)
          .help = fmt::format("keys {} are {}",
                              in_ == In::kLowering ? "of `lowering`" : "of a schedule", key_list());
    } else if (!is_kind(values_of(key_), kind)) {
      wrong_type_at(kind, place);
    } else {
      header_.set(key_, text, key_place_, place, diagnostics_);
    }
    return true;
  }

  std::string key_list() const {
    std::string list;
    const auto add = [&](std::string_view key) {
      list += (list.empty() ? "" : ", ") + std::string(key);
    };
    if (in_ == In::kLowering) {
      for (const LoweringPolicy& policy : lowering_policies()) add(policy.name);
    } else {
      add("version");
      for (const HeaderKey& key : header_keys()) add(key.name);
      add("lowering");
      add("rows");
    }
    return list;
  }

  bool version(Kind kind, const std::string& text) {
    const Place place = place_of_scalar(kind);
    if (kind != Kind::kNumber) {
      wrong_type_at(kind, place);
    } else if (text != kVersion) {
      diagnostics_->error(
          Rule::kVersion,
          fmt::format("version {} is not known, want {}", backticked(text), kVersion), place);
      return false;
    }
    return true;
  }

  bool cell(Kind kind, const std::string& text) {
    Action& action = rows_.back().emplace_back();
    if (kind == Kind::kNull) return true;
    if (kind != Kind::kString || text.find_first_not_of(" \t") == std::string::npos) {
      wrong_type_at(kind, place_of_scalar(kind));
    } else if (auto error = parse_action(text, &action)) {
      const Place string = cursor_.string();
      const bool plain =
          string.length == text.size() + 2;  // no escapes, so offsets are those of the file
      const Place place =
          plain ? cursor_.at(*string.offset + 1 + error->offset, error->length) : string;
      diagnostics_->error(error->rule, std::move(error->message), place).help =
          std::move(error->help);
    }
    return true;
  }

  std::optional<ParsedSchedule> finish(HeaderReader::Result header) {
    Schedule& schedule = header.schedule;
    schedule.rows = std::move(rows_);
    if (!check_declared_shape(schedule, header.level, parsed_.cells, first_place_, diagnostics_))
      return std::nullopt;
    parsed_.schedule = make_schedule(header.level, std::move(schedule));
    return std::move(parsed_);
  }

  const Source& source_;
  std::string_view text_;
  JsonCursor cursor_;
  Diagnostics* diagnostics_;

  In in_ = In::kFile;
  int skipped_ = 0;  // depth inside a value that is passed over
  std::string key_;
  Place key_place_, first_place_, placement_place_;
  std::string placement_;
  size_t row_line_ = 0, row_line_offset_ = 0;  // the line of the row before
  bool has_version_ = false, has_rows_ = false, has_lowering_ = false;
  HeaderReader header_;
  Rows rows_;
  ParsedSchedule parsed_;
};

Json placement_json(const Placement& placement) {
  const std::string pattern = placement.to_string();
  if (pattern == "loop" || pattern == "v") return pattern;
  Json ranks = Json::array();
  for (int stage = 0; stage < placement.num_stages(); ++stage)
    ranks.push_back(placement.rank_of(stage));
  return ranks;
}

}  // namespace

std::optional<ParsedSchedule> parse_json(const Source& source, Diagnostics* diagnostics) {
  return JsonReader(source, diagnostics).parse();
}

void print_json(const AnySchedule& any, std::ostream& out) {
  const Schedule& schedule = schedule_of(any);
  out << "{\n  \"version\": " << kVersion;
  for (const HeaderKey& key : header_keys()) {
    const auto value = key.get(schedule, level_of(any));
    if (!value) continue;
    const Json json =
        key.name == "placement" ? placement_json(schedule.placement) : to_json(key.values, *value);
    out << ",\n  \"" << key.name << "\": " << json.dump();
  }
  Json lowering = Json::object();
  for (const LoweringPolicy& policy : lowering_policies()) {
    if (const auto value = policy.get(schedule.lowering))
      lowering[std::string(policy.name)] = to_json(policy.values, *value);
  }
  if (!lowering.empty()) out << ",\n  \"lowering\": " << lowering.dump();
  // Rows are written by hand: tokens need no escapes, and a tree of all cells would take many times
  // their room.
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
  out << "\n  ]\n}\n";
}

}  // namespace pipewright::ir
