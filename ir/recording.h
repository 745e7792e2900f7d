#ifndef PIPEWRIGHT_IR_RECORDING_H_
#define PIPEWRIGHT_IR_RECORDING_H_

#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "pipewright/ir/timeline.h"

namespace pipewright::ir {

// A measured run of a schedule: when each of its actions really ran, from the start of the first.
// The JSON form of a schedule stores it (text/schedule_json.h). A plain value.
struct Recording {
  std::string unit = {};  // of the times: "s", "ms", "us" or "ns"
  Timeline timeline = {};

  friend bool operator==(const Recording&, const Recording&) = default;
};

// "s", "ms", "us" and "ns" in seconds; nullopt for another unit.
inline std::optional<double> seconds_per(std::string_view unit) {
  if (unit == "s") return 1;
  if (unit == "ms") return 1e-3;
  if (unit == "us") return 1e-6;
  if (unit == "ns") return 1e-9;
  return std::nullopt;
}

// A recording from times in seconds, as executor::Executor::recording() returns them: in
// milliseconds, rounded to nanoseconds, which is all that a clock can tell.
inline Recording recording_of_seconds(Timeline timeline) {
  const auto milliseconds = [](double seconds) { return std::round(seconds * 1e9) / 1e6; };
  for (size_t cell = 0; cell < timeline.size(); ++cell)
    timeline[cell] = {milliseconds(timeline[cell].start), milliseconds(timeline[cell].end)};
  return {"ms", std::move(timeline)};
}

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_RECORDING_H_
