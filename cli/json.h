#ifndef PIPEWRIGHT_CLI_JSON_H_
#define PIPEWRIGHT_CLI_JSON_H_

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "pipewright/ir/channel.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/schedule/graph/peaks.h"

// The JSON that commands print: one form for each value that several of them have.

namespace pipewright::cli {

using Json = nlohmann::ordered_json;

// Prints a document with a line per member. What is small is on one line: objects, lists of numbers
// and words, and the rows of tables, such as the ranks of a simulation. A number has as many digits
// as it needs: 9, 0.3333333333333333.
//
//   {
//     "version": 1,
//     "bound": {"value": 9, "name": "work"},
//     "ranks": [
//       {"span": 9, "busy": 6},
//       {"span": 6, "busy": 6}
//     ]
//   }
void print_json(const Json& document, std::ostream& out);

// null if there is no value; for a text, if it is empty; for a rank, if it is negative.
template <typename Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}
inline Json or_null(std::string_view text) { return text.empty() ? Json(nullptr) : Json(text); }
inline Json rank_json(int rank) { return rank < 0 ? Json(nullptr) : Json(rank); }

// A list of `to_json(item)`.
template <typename Items, typename ToJson>
Json list_json(const Items& items, const ToJson& to_json) {
  Json list = Json::array();
  for (const auto& item : items) list.push_back(to_json(item));
  return list;
}

// A number, or "inf".
Json capacity_json(ir::ChannelCapacity capacity);
// As ir::diagnostics_json().
Json diagnostics_json(const ir::Diagnostics& diagnostics);
// {"pooled": 2, "separate": 3, "stages": [{"stage": 0, "forward": 1, "backward": 2}]}
Json receive_slots_json(const schedule::ReceiveSlots& slots);

// {"value": 9, "name": "nested_window", "rank": 0, "other": 1, "terms": {"head": 1, "work": 8}}, of
// a schedule::Bound or ScheduleBound whose values are times after `time`.
template <typename Bound, typename Time>
Json bound_json(const Bound& bound, const Time& time) {
  Json terms = Json::object();
  for (const auto& [name, value] : bound.terms) terms[std::string(name)] = time(value);
  return {{"value", time(bound.value)},
          {"name", bound.name},
          {"rank", rank_json(bound.rank)},
          {"other", rank_json(bound.other)},
          {"terms", terms}};
}

}  // namespace pipewright::cli

#endif  // PIPEWRIGHT_CLI_JSON_H_
