#ifndef PIPEWRIGHT_IR_TEXT_HEADER_H_
#define PIPEWRIGHT_IR_TEXT_HEADER_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/ir/schedule.h"

// The header of a .plan or JSON file: what the file states about a schedule besides its rows. Both
// formats have the same keys and values in two syntaxes:
//
//   name: GPipe                 "name": "GPipe"
//   microbatches: 2             "microbatches": 2
//
// The list of keys is the table in header.cc, followed by the lowering policies
// (pipewright/ir/lowering.h). header_reader.h reads headers. Constant data and pure functions; any
// thread.

namespace pipewright::ir {

struct HeaderKey {
  std::string_view name;
  bool required;
  std::string_view values;  // "compute_only|compute_comms"; one capital letter: a positive integer
  // Returns the value as text, or nullopt if the schedule has none.
  std::optional<std::string> (*get)(const Schedule&, Level);
};

// The keys that are not lowering policies, in the order in which files list them.
std::span<const HeaderKey> header_keys();

// The names of all keys: header_keys() and the lowering policies.
std::vector<std::string_view> header_names();

// A value in words: "P" is "a positive integer", a channel model has its meaning in parentheses.
std::string value_in_words(std::string_view value);
// A `values` column in words: "pytorch|farthest" is "pytorch or farthest".
std::string values_in_words(std::string_view values);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_HEADER_H_
