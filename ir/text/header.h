#ifndef PIPEWRIGHT_IR_TEXT_HEADER_H_
#define PIPEWRIGHT_IR_TEXT_HEADER_H_

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/schedule.h"

// What a .plan and a JSON file say of a schedule before its rows: the same keys and values, in two
// syntaxes. The list of keys is the table in header.cc, followed by the lowering policies.

namespace pipewright::ir {

struct HeaderKey {
  std::string_view name;
  bool required;
  std::string_view values;  // for people: "compute_only|compute_comms"
  // The value as text; none where the schedule has none.
  std::optional<std::string> (*get)(const Schedule&, Level);
};

// A values column in words: "a number from 1", "pytorch or farthest".
std::string values_in_words(std::string_view values);

// The keys that are not lowering policies, in the order in which files list them.
std::span<const HeaderKey> header_keys();

// Collects the keys of one file and makes a schedule of them.
class HeaderReader {
 public:
  // Takes one key with its value as text. Adds an error for an unknown key and for one that was
  // there before.
  void set(std::string_view key, std::string_view value, const Place& key_place,
           const Place& value_place, Diagnostics* diagnostics);

  // Takes note of a key whose value the caller has refused already, so that it is not missed.
  void refuse(std::string_view key) {
    entries_.try_emplace(std::string(key)).first->second.refused = true;
  }

  // The schedule without its rows, and its level. None, with errors, where a key is missing or a
  // value is not one of its key's. `place` is where missing keys are reported.
  struct Result {
    Level level;
    Schedule schedule;
  };
  std::optional<Result> finish(const Place& place, Diagnostics* diagnostics) const;

 private:
  struct Entry {
    std::string value;
    Place key_place;
    Place value_place;
    bool refused = false;
  };

  // The entry of a key, unless it is missing or refused.
  const Entry* find(std::string_view key) const;

  std::optional<int> number(std::string_view key, int most, Diagnostics* diagnostics) const;
  std::optional<Placement> placement(int ranks, int stages, Diagnostics* diagnostics) const;

  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TEXT_HEADER_H_
