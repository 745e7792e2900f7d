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

// A schedule: one list of actions per rank, at one of two levels.
//
//   ComputeOrder   compute actions and idle slots: which stage runs which microbatch in which step
//   Program        compute and communication (SEND, RECV, UNSHARD, ...); no idle slots
//
// Files and the command line use PyTorch's names for the levels: compute_only and compute_comms.
// Lowering (pipewright/schedule/lowering) turns a ComputeOrder into a Program.
//
// Schedules are plain values without invariants beyond the comments on their fields. Whether a
// schedule is complete and free of deadlocks is for the verifier to decide
// (pipewright/schedule/verify).

namespace pipewright::ir {

// The actions of one rank in execution order. A step is an index into the row; idle slots count.
using Row = std::vector<Action>;
// One row per rank. Rows may differ in length.
using Rows = std::vector<Row>;

struct Schedule {
  std::string name;          // "Interleaved1F1B"; empty if unknown
  Placement placement;       // also the number of ranks and stages
  int num_microbatches = 0;  // microbatches are 0 to num_microbatches - 1
  Lowering lowering;         // the known policies that it was lowered with
  // Stages that recompute, ascending: their F keeps a checkpoint only, and each of their B or I
  // runs the forward again (activation checkpointing).
  std::vector<int> recompute = {};
  // Stages that offload, ascending: what their F saves is copied to the host, and back before their
  // B or I.
  std::vector<int> offload = {};
  // Layers of the model per stage, if the schedule was made for a cut of a model; else empty.
  std::vector<int> cut = {};
  // The slices that each microbatch is cut into along its sequence. With more than one, a slice has
  // the place of a microbatch: num_microbatches counts all slices, and the microbatch u of an
  // action is slice u mod `slices` of microbatch u div `slices` (slice_before() in dependencies.h).
  int slices = 1;
  Rows rows;  // placement.num_ranks() rows

  friend bool operator==(const Schedule&, const Schedule&) = default;
};

struct ComputeOrder : Schedule {};
struct Program : Schedule {};

// Whether a stage is one of schedule.recompute, or of schedule.offload.
bool recomputes(const Schedule& schedule, int stage);
bool offloads(const Schedule& schedule, int stage);
// Whether these are different stages in ascending order, of `num_stages`, as those two lists have.
bool are_ascending_stages(const std::vector<int>& stages, int num_stages);

// Whether there is any B, I or W, in compounds too. A schedule without one is forward-only: it
// evaluates and keeps no activations. Linear in the actions before the first backward.
bool has_backward(const Row& row);
bool has_backward(const Schedule& schedule);

// The kinds of all actions; a compound counts as kOverlapFB. Linear.
KindSet kinds_in(const Rows& rows);

enum class Level { kComputeOnly, kComputeComms };

// "compute_only" or "compute_comms".
std::string_view name(Level level);
// The inverse of name(), or nullopt.
std::optional<Level> parse_level(std::string_view text);

// A schedule whose level is known only at run time, such as one read from a file.
using AnySchedule = std::variant<ComputeOrder, Program>;

AnySchedule make_schedule(Level level, Schedule schedule);

Level level_of(const AnySchedule& schedule);
const Schedule& schedule_of(const AnySchedule& schedule);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_SCHEDULE_H_
