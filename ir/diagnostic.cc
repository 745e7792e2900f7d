#include "pipewright/ir/diagnostic.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "pipewright/ir/printable.h"

namespace pipewright::ir {

std::string_view name(Severity severity) {
  switch (severity) {
    case Severity::kError:
      return "error";
  }
  return "";
}

Diagnostic& Diagnostics::error(Rule rule, std::string message, Place place) {
  ++total_;
  Diagnostic& added = kept_.size() < kMaxKept ? kept_.emplace_back() : overflow_ = {};
  added.rule = rule;
  added.message = std::move(message);
  added.place = place;
  return added;
}

void Diagnostics::append(Diagnostics&& other) {
  for (Diagnostic& one : other.kept_) {
    if (kept_.size() < kMaxKept) kept_.push_back(std::move(one));
  }
  total_ += other.total_;
}

void Diagnostics::find_places(const std::function<Place(int rank, int step)>& place_of) {
  std::vector<Place*> open;
  const auto add = [&](Place* place) {
    if (place->rank && place->step && !place->offset) open.push_back(place);
  };
  for (Diagnostic& diagnostic : kept_) {
    add(&diagnostic.place);
    for (Note& note : diagnostic.notes) add(&note.place);
  }
  // A CellIndex scans each row once if it is asked in ascending order.
  std::ranges::sort(open, {}, [](const Place* place) {
    return std::pair(place->rank.value_or(0), place->step.value_or(0));
  });
  for (Place* place : open) *place = place_of(place->rank.value_or(0), place->step.value_or(0));
}

void Diagnostics::sort() {
  const auto key = [](const Diagnostic& diagnostic) {
    const Place& place = diagnostic.place;
    return std::tuple(place.line, place.column, place.rank.value_or(-1), place.step.value_or(-1));
  };
  std::ranges::stable_sort(kept_, {}, key);
}

std::string backticked(std::string_view text) {
  constexpr size_t kLongest = 40;
  std::string shown = "`";
  size_t characters = 0;
  while (!text.empty()) {
    if (++characters > kLongest) {
      shown += "...";
      break;
    }
    shown += take_printable(&text);
  }
  return shown + "`";
}

}  // namespace pipewright::ir
