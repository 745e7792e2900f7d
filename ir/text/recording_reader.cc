#include "pipewright/ir/text/recording_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/action_text.h"

namespace pipewright::ir {
namespace {

constexpr std::string_view kUnits = "\"s\", \"ms\", \"us\" or \"ns\"";
constexpr std::string_view kIntervalInWords = "[start, end], or null for an idle slot";
constexpr double kLatest = 1e18;

bool is_time(double value) { return value >= 0 && value <= kLatest; }

}  // namespace

bool RecordingReader::enter(JsonKind kind) {
  const Place place = cursor_.token(1);
  const bool array = kind == JsonKind::kArray;
  if (in_ == In::kOutside) {
    place_ = place;
    in_ = In::kObject;
  } else if (in_ == In::kObject && array && key_ == "times") {
    ranks_.emplace();
    in_ = In::kTimes;
  } else if (in_ == In::kTimes && array) {
    ranks_->push_back({place, {}});
    in_ = In::kRank;
  } else if (in_ == In::kRank && array) {
    interval_place_ = place;
    numbers_.clear();
    in_ = In::kInterval;
  } else {
    wrong_type(kind, place);
    return false;
  }
  return true;
}

void RecordingReader::leave(JsonKind) {
  switch (in_) {
    case In::kInterval:
      end_interval();
      in_ = In::kRank;
      break;
    case In::kRank:
      in_ = In::kTimes;
      break;
    case In::kTimes:
      in_ = In::kObject;
      break;
    case In::kObject:
    case In::kOutside:
      in_ = In::kOutside;
      break;
  }
}

bool RecordingReader::key(const std::string& key) {
  key_ = key;
  key_place_ = cursor_.string();
  if ((key == "unit" && unit_) || (key == "times" && ranks_)) {
    diagnostics_.error(Rule::kDuplicateKey, fmt::format("duplicate key {}", backticked(key)),
                       key_place_);
  } else if (key != "unit" && key != "times") {
    diagnostics_
        .error(Rule::kUnknownKey, fmt::format("unknown key {}", backticked(key)), key_place_)
        .help = "the keys of `recording` are unit, times";
  }
  return true;
}

bool RecordingReader::scalar(JsonKind kind, const std::string& text) {
  const Place place = kind == JsonKind::kString ? cursor_.string() : cursor_.word();
  if (in_ == In::kObject && key_ == "unit" && kind == JsonKind::kString) {
    unit_ = text;
    if (!seconds_per(text))
      diagnostics_.error(Rule::kBadValue,
                         fmt::format("`unit`: expected {}, got {}", kUnits, backticked(text)),
                         place);
  } else if (in_ == In::kRank && kind == JsonKind::kNull) {
    ranks_->back().intervals.push_back(kNull);
  } else if (in_ == In::kInterval && kind == JsonKind::kNumber) {
    double number = -1;
    std::from_chars(text.data(), text.data() + text.size(), number);
    numbers_.push_back(number);
  } else {
    wrong_type(kind, place);
    if (in_ == In::kInterval) numbers_.push_back(-1);
  }
  return true;
}

void RecordingReader::end_interval() {
  std::vector<Interval>& intervals = ranks_->back().intervals;
  const size_t step = intervals.size();
  intervals.push_back({});
  const auto refuse = [&](std::string_view expected, const std::string& got) {
    diagnostics_.error(Rule::kRecording,
                       fmt::format("`recording`: rank {}, step {}: expected {}, got {}",
                                   ranks_->size() - 1, step, expected, got),
                       interval_place_);
  };
  if (numbers_.size() != 2)
    return refuse("a start and an end", counted(numbers_.size(), "number", "numbers"));
  const auto [start, end] = std::pair(numbers_[0], numbers_[1]);
  if (!is_time(start) || !is_time(end))
    return refuse("times from 0 to 1e+18", fmt::format("{} to {}", start, end));
  if (end < start)
    return refuse("an end that is not before the start", fmt::format("{} to {}", start, end));
  intervals.back() = {start, end};
}

void RecordingReader::wrong_type(JsonKind kind, const Place& place) {
  const auto error = [&](std::string_view expected) {
    diagnostics_.error(Rule::kJsonType,
                       fmt::format("`recording`: expected {}, got {}", expected, name(kind)),
                       place);
  };
  switch (in_) {
    case In::kObject:
      if (key_ == "unit") {
        unit_ = "";
        error(kUnits);
      } else if (key_ == "times") {
        ranks_.emplace();
        error(name(JsonKind::kArray));
      }
      break;  // an unknown key is an error already
    case In::kTimes:
      error("an array for each rank");
      break;
    case In::kRank:
      ranks_->back().intervals.push_back({});
      error(kIntervalInWords);
      break;
    case In::kInterval:
      error(name(JsonKind::kNumber));
      break;
    case In::kOutside:
      break;
  }
}

bool RecordingReader::missing(std::string_view key) const {
  diagnostics_.error(Rule::kMissingKey, fmt::format("`recording` has no key `{}`", key), place_)
      .help = key == "unit" ? fmt::format("`unit` is {}", kUnits)
                            : "`times` has, per rank, [start, end] of each action";
  return false;
}

bool RecordingReader::fits(const Rows& rows) const {
  const size_t before = diagnostics_.total();
  if (ranks_->size() != rows.size()) {
    diagnostics_.error(Rule::kRecording,
                       fmt::format("`recording`: expected the times of {}, got {}",
                                   counted(rows.size(), "rank", "ranks"), ranks_->size()),
                       place_);
    return false;
  }
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    const auto& [place, intervals] = (*ranks_)[rank];
    if (intervals.size() != rows[rank].size()) {
      diagnostics_.error(
          Rule::kRecording,
          fmt::format("`recording`: rank {}: expected the times of {}, got {}", rank,
                      counted(rows[rank].size(), "action", "actions"), intervals.size()),
          place);
      continue;
    }
    for (size_t step = 0; step < intervals.size(); ++step) {
      const Action& action = rows[rank][step];
      if ((intervals[step] == kNull) == action.is_idle()) continue;
      diagnostics_.error(Rule::kRecording,
                         fmt::format("`recording`: rank {}, step {}: expected {}", rank, step,
                                     action.is_idle() ? "null for an idle slot, got times"
                                                      : fmt::format("the times of `{}`, got null",
                                                                    to_string(action))),
                         place);
    }
  }
  return diagnostics_.total() == before;
}

std::optional<Recording> RecordingReader::finish(const Rows& rows) const {
  const bool has_unit = unit_ || missing("unit");
  const bool has_times = ranks_ || missing("times");
  if (!has_unit || !has_times || !fits(rows)) return std::nullopt;
  Recording recording{*unit_, Timeline(rows)};
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    for (size_t step = 0; step < rows[rank].size(); ++step) {
      if (!rows[rank][step].is_idle())
        recording.timeline.at(rank, step) = (*ranks_)[rank].intervals[step];
    }
  }
  return recording;
}

}  // namespace pipewright::ir
