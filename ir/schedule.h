#ifndef PIPEWRIGHT_IR_SCHEDULE_H_
#define PIPEWRIGHT_IR_SCHEDULE_H_

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "pipewright/ir/action.h"
#include "pipewright/ir/lowering.h"
#include "pipewright/ir/placement.h"

// What each rank does, at two levels over the same rows:
//
//   ComputeOrder   compute actions and idle slots: which stage runs which microbatch when
//   Program        any list of actions, with SEND, RECV, UNSHARD, ...; no idle slots
//
// PyTorch calls them compute_only and compute_comms, and so do files and the command line.
//
// The first lowering pass makes a Program of a ComputeOrder. These are plain values that promise no
// more than their fields say: the verifier tells whether a schedule is complete and safe.

namespace pipewright::ir {

// The actions of one rank, in their order. A step is an index into it, idle slots included.
using Row = std::vector<Action>;
// One row a rank. Rows may differ in length.
using Rows = std::vector<Row>;

struct Schedule {
  std::string name;          // "Interleaved1F1B"; empty where unknown
  Placement placement;       // says how many ranks and stages there are
  int num_microbatches = 0;  // indices are below this
  Lowering lowering;         // how it was made, where known
  Rows rows;                 // placement.num_ranks() of them

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

struct ComputeOrder : Schedule {};
struct Program : Schedule {};

// Whether there is any B, I or W, in compounds too. A schedule without one is forward-only: it
// evaluates and keeps no activations. Linear in the actions before the first backward.
bool has_backward(const Row& row);
bool has_backward(const Schedule& schedule);

enum class Level { kComputeOnly, kComputeComms };

// "compute_only", "compute_comms".
std::string_view name(Level level);
std::optional<Level> parse_level(std::string_view text);

using AnySchedule = std::variant<ComputeOrder, Program>;

AnySchedule make_schedule(Level level, Schedule schedule);

Level level_of(const AnySchedule& schedule);
const Schedule& schedule_of(const AnySchedule& schedule);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_SCHEDULE_H_
