#include "pipewright/ir/text/recording_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <set>

#include "pipewright/ir/printable.h"
#include "pipewright/ir/text/action_text.h"

namespace pipewright::ir {
namespace {

constexpr std::string_view kUnits = "\"s\", \"ms\", \"us\" or \"ns\"";
constexpr std::string_view kIntervalInWords = "[start, end], or null for an idle slot";
constexpr std::string_view kWorkInWords = "[rank, track, action, start, end]";
constexpr size_t kNumWorkValues = 5;
constexpr double kLatest = 1e18;

bool is_time(double value) { return value >= 0 && value <= kLatest; }

double number_of(const std::string& text) {
  double number = -1;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// Calls `refuse(expected, got)` if these are not the times of anything.
template <typename Refuse>
void check_times(const Interval& one, const Refuse& refuse) {
  const std::string got = fmt::format("{} to {}", one.start, one.end);
  if (!is_time(one.start) || !is_time(one.end))
    refuse("times from 0 to 1e+18", got);
  else if (one.end < one.start)
    refuse("an end that is not before the start", got);
}

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
  } else if (in_ == In::kObject && array && key_ == "work") {
    work_.emplace();
    in_ = In::kWorkList;
  } else if (in_ == In::kWorkList && array) {
    work_->push_back({place});
    in_ = In::kWork;
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
    case In::kWork:
      end_work();
      in_ = In::kWorkList;
      break;
    case In::kTimes:
    case In::kWorkList:
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
  if ((key == "unit" && unit_) || (key == "times" && ranks_) || (key == "work" && work_)) {
    diagnostics_.error(Rule::kDuplicateKey, fmt::format("duplicate key {}", backticked(key)),
                       key_place_);
  } else if (key != "unit" && key != "times" && key != "work") {
    diagnostics_
        .error(Rule::kUnknownKey, fmt::format("unknown key {}", backticked(key)), key_place_)
        .help = "the keys of `recording` are unit, times, work";
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
    numbers_.push_back(number_of(text));
  } else if (in_ == In::kWork) {
    work_value(kind, text, place);
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
  intervals.back() = {numbers_[0], numbers_[1]};
  check_times(intervals.back(), refuse);
}

void RecordingReader::work_value(JsonKind kind, const std::string& text, const Place& place) {
  PlacedWork& one = work_->back();
  const size_t value = one.num_values;
  const bool is_text = value == 1 || value == 2;
  if (kind != (is_text ? JsonKind::kString : JsonKind::kNumber)) return wrong_type(kind, place);
  ++one.num_values;
  const auto refuse = [&](const std::string& expected) {
    diagnostics_.error(Rule::kRecording,
                       fmt::format("`recording`: work {}: expected {}, got {}", work_->size() - 1,
                                   expected, backticked(text)),
                       place);
  };
  if (value == 0) {
    one.rank = number_of(text);
  } else if (value == 1) {
    const auto track = std::ranges::find(kWorkTracks, text);
    if (track == std::end(kWorkTracks))
      return refuse(fmt::format("{}", fmt::join(kWorkTracks, ", ")));
    one.work.track = static_cast<WorkTrack>(track - std::begin(kWorkTracks));
  } else if (value == 2) {
    Action action;
    if (parse_action(text, &action) || action.is_compound() || !is_compute(action.kind()))
      return refuse("F, B, I or W of a microbatch");
    one.work.part = action.parts()[0];
  } else if (value == 3) {
    one.work.time.start = number_of(text);
  } else {
    one.work.time.end = number_of(text);
  }
}

void RecordingReader::end_work() {
  const PlacedWork& one = work_->back();
  const auto refuse = [&](std::string_view expected, const std::string& got) {
    diagnostics_.error(
        Rule::kRecording,
        fmt::format("`recording`: work {}: expected {}, got {}", work_->size() - 1, expected, got),
        one.place);
  };
  if (one.num_values != kNumWorkValues)
    return refuse(kWorkInWords, counted(one.num_values, "value", "values"));
  check_times(one.work.time, refuse);
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
      } else if (key_ == "work") {
        work_.emplace();
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
    case In::kWorkList:
      error(kWorkInWords);
      break;
    case In::kWork: {
      const size_t value = work_->back().num_values++;
      error(name(value == 1 || value == 2 ? JsonKind::kString : JsonKind::kNumber));
      break;
    }
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

bool RecordingReader::work_fits(const Rows& rows) const {
  if (!work_) return true;
  const size_t before = diagnostics_.total();
  std::vector<std::set<ActionPart>> parts(rows.size());
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    for (const Action& action : rows[rank])
      parts[rank].insert(action.parts().begin(), action.parts().end());
  }
  for (size_t number = 0; number < work_->size(); ++number) {
    const PlacedWork& one = (*work_)[number];
    const auto refuse = [&](const std::string& expected, const std::string& got) {
      diagnostics_.error(
          Rule::kRecording,
          fmt::format("`recording`: work {}: expected {}, got {}", number, expected, got),
          one.place);
    };
    const bool is_rank = one.rank >= 0 && one.rank < static_cast<double>(rows.size()) &&
                         one.rank == std::floor(one.rank);
    if (!is_rank)
      refuse(fmt::format("a rank from 0 to {}", rows.size() - 1), fmt::format("{}", one.rank));
    else if (!parts[static_cast<size_t>(one.rank)].contains(one.work.part))
      refuse(fmt::format("an action of rank {}", one.rank), backticked(to_string(one.work.part)));
  }
  return diagnostics_.total() == before;
}

std::optional<Recording> RecordingReader::finish(const Rows& rows) const {
  const bool has_unit = unit_ || missing("unit");
  const bool has_times = ranks_ || missing("times");
  if (!has_unit || !has_times || !fits(rows) || !work_fits(rows)) return std::nullopt;
  Recording recording{*unit_, Timeline(rows)};
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    for (size_t step = 0; step < rows[rank].size(); ++step) {
      if (!rows[rank][step].is_idle())
        recording.timeline.at(rank, step) = (*ranks_)[rank].intervals[step];
    }
  }
  for (PlacedWork one : work_.value_or(std::vector<PlacedWork>())) {
    one.work.rank = static_cast<uint32_t>(one.rank);
    recording.timeline.add(one.work);
  }
  return recording;
}

}  // namespace pipewright::ir
