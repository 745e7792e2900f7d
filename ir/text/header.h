#ifndef PIPEWRIGHT_IR_TEXT_HEADER_H_
#define PIPEWRIGHT_IR_TEXT_HEADER_H_

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/schedule.h"
#include "pipewright/ir/text/shape.h"

// The header of a .plan or JSON file: what the file states about a schedule besides its rows. Both
// formats have the same keys and values in two syntaxes:
//
//   name: GPipe                 "name": "GPipe"
//   microbatches: 2             "microbatches": 2
//
// The list of keys is the table in header.cc, followed by the lowering policies
// (pipewright/ir/lowering.h). header.h reads headers. Constant data and pure functions; any
// thread.

namespace pipewright::ir {

struct HeaderKey {
  std::string_view name;
  bool required;
  bool is_number;           // in JSON
  std::string_view values;  // in words: "a positive integer"
  // Returns the value as text, or nullopt if the schedule has none.
  std::optional<std::string> (*get)(const Schedule&, Level);
};

// The keys that are not lowering policies, in the order in which files list them.
std::span<const HeaderKey> header_keys();

// The names of all keys: header_keys() and the lowering policies.
std::vector<std::string_view> header_names();

// A choice in words: a channel model has its meaning in parentheses.
std::string choice_in_words(std::string_view choice);
// The values of a policy: "pytorch or farthest", "a non-negative integer or inf".
std::string values_in_words(const LoweringPolicy& policy);

// Collects the header keys of one .plan or JSON file (pipewright/ir/text/header.h), checks them,
// and puts the schedule together. A parser calls set() for each key as it comes and finish() at the
// end of the file. All errors are reported as diagnostics. Not thread-safe.
class HeaderReader {
 public:
  // Stores one key with its value as text. Adds an error if the key is unknown or already set.
  void set(std::string_view key, std::string_view value, const Place& key_place,
           const Place& value_place, Diagnostics* diagnostics);

  // Records that the caller has already reported the value of `key`, so that the key does not count
  // as missing.
  void refuse(std::string_view key) {
    entries_.try_emplace(std::string(key)).first->second.refused = true;
  }

  // Makes the schedule from the header and the rows, and checks the rows against the header.
  // Returns nullopt if the file has any error: one added here, or one since the total was
  // `errors_before`. Missing keys are reported at `place`.
  std::optional<ParsedSchedule> finish(const Place& place, size_t errors_before, Rows rows,
                                       CellIndex cells, Diagnostics* diagnostics) const;

 private:
  struct Entry {
    std::string value;
    Place key_place;
    Place value_place;
    bool refused = false;
  };

  // The entry of a key; null if the key is missing or refused.
  const Entry* find(std::string_view key) const;

  // The value of one key, checked; nullopt after reporting an error, or if the key is missing.
  std::optional<Level> level(Diagnostics* diagnostics) const;
  std::optional<int> number(std::string_view key, int most, Diagnostics* diagnostics) const;
  // The map of one replica, under `key`.
  std::optional<Placement> map(std::string_view key, int ranks, int stages,
                               Diagnostics* diagnostics) const;
  // The maps of all replicas.
  std::optional<Placement> placement(const Schedule& schedule, int ranks, int stages,
                                     Diagnostics* diagnostics) const;
  std::vector<int> different_stages(std::string_view key, int stages,
                                    Diagnostics* diagnostics) const;
  std::vector<int> cut(int stages, Diagnostics* diagnostics) const;
  std::string schedule_name(Diagnostics* diagnostics) const;
  Lowering lowering(Diagnostics* diagnostics) const;

  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_HEADER_H_
