#ifndef PIPEWRIGHT_IR_TEXT_RECORDING_READER_H_
#define PIPEWRIGHT_IR_TEXT_RECORDING_READER_H_

#include <optional>
#include <string>
#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/text/json_scanner.h"
#include "pipewright/ir/timeline.h"

namespace pipewright::ir {

// Reads the value of the key `recording` of a schedule as JSON:
//
//   {"unit": "ms", "times": [[[0, 1.5], [1.5, 4.25]], [null, [1.5, 3]]],
//    "work": [[0, "to host", "0F0", 1.5, 2]]}
//
// The reader of the schedule forwards the events of that object. Include it in .cc files only.
class RecordingReader : public JsonEvents {
 public:
  // Both must outlive the reader.
  RecordingReader(JsonCursor* cursor, Diagnostics* diagnostics)
      : cursor_(*cursor), diagnostics_(*diagnostics) {}

  bool enter(JsonKind kind) override;  // first the object itself
  void leave(JsonKind kind) override;
  bool key(const std::string& key) override;
  bool scalar(JsonKind kind, const std::string& text) override;
  // Whether the object has ended.
  bool is_at_end() const { return in_ == In::kOutside; }

  // The recording of a schedule with these rows; nullopt, and errors are added, if it does not fit
  // them. Call it after the whole file, if that has no errors yet.
  std::optional<Recording> finish(const Rows& rows) const;

 private:
  enum class In { kOutside, kObject, kTimes, kRank, kInterval, kWorkList, kWork };

  struct Rank {
    Place place;
    std::vector<Interval> intervals;  // kNull for null
  };
  static constexpr Interval kNull = {0, -1};
  struct PlacedWork {
    Place place;
    size_t num_values = 0;
    double rank = 0;
    Work work = {};
  };

  void end_interval();
  void work_value(JsonKind kind, const std::string& text, const Place& place);
  void end_work();
  void wrong_type(JsonKind kind, const Place& place);
  bool missing(std::string_view key) const;
  bool fits(const Rows& rows) const;
  bool work_fits(const Rows& rows) const;

  JsonCursor& cursor_;
  Diagnostics& diagnostics_;
  In in_ = In::kOutside;
  std::string key_;
  Place key_place_, place_, interval_place_;
  std::optional<std::string> unit_;
  std::optional<std::vector<Rank>> ranks_;
  std::optional<std::vector<PlacedWork>> work_;
  std::vector<double> numbers_;  // of the interval that is being read
};

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_RECORDING_READER_H_
