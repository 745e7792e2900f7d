#ifndef PIPEWRIGHT_EXECUTOR_PROGRAM_PROGRAM_H_
#define PIPEWRIGHT_EXECUTOR_PROGRAM_PROGRAM_H_

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/ir/schedule.h"

// Data that the executor derives from a program before running it, by pure functions, linear in the
// number of actions. Torch-free.

namespace pipewright::executor {

struct PlannedAction {
  ir::Action action;
  int step = 0;  // its index in the row
  // The action's B or W is the last one of its stage before the stage's next REDUCE_GRAD.
  bool last_backward = false;
  // By part: whether it runs on the side stream. See plan_streams().
  std::array<bool, 2> on_side = {};
};

// A copy of what F of one microbatch saved on one stage.
struct PlannedCopy {
  bool is_back = false;  // from the host; otherwise to it
  int stage = 0, microbatch = 0;
  int before = 0;        // the step in the row that it is posted just before
  bool on_side = false;  // whether its microbatch runs on the side stream
};

// One rank's row of a program.
struct RowPlan {
  std::vector<PlannedAction> actions;  // without idle slots
  std::vector<PlannedCopy> copies;     // in the order in which they are posted
  bool has_backward = false;
  bool has_residency = false;  // contains UNSHARD or RESHARD
};

RowPlan plan_row(const ir::Row& row);

// Gives the two parts of each compound to different streams, so that they run at the same time on a
// device: one to the stream of the step, the other to a side stream. All parts of a microbatch on a
// stage run on one stream, so what its F saves is allocated, used and freed on that. This is always
// possible: the F of a compound is new, so it can take the stream that its backward does not have.
// What is copied to the host and back belongs to that stream too.
void plan_streams(RowPlan* plan);

// The copies of a rank whose stages offload, at the places where the simulator has them
// (schedule/simulate/memory_model.h) if a copy takes as long as a forward, or half of a backward.
std::vector<PlannedCopy> plan_copies(const ir::Program& program, int rank);

// The ordered pairs of ranks along which a program sends, each once, in ascending order.
std::vector<std::pair<int, int>> edges_of(const ir::Program& program);

// The executor's calls into the compiler: the verification of a program, and the lowering of its
// forwards alone. Torch-free.

enum class Check {
  kShape,   // actions are inside the program's placement and microbatches
  kVerify,  // the program also passes the verifier, under its own channel model and policies
};

// The rendered diagnostics of a program that fails the check; empty if it passes.
std::string problems_of(const ir::Program& program, Check check);

// Returns the program that evaluation runs: the forwards of `program`, lowered again with its
// policies and verified. Throws std::invalid_argument with the diagnostics if lowering or
// verification fails.
ir::Program forward_only(const ir::Program& program);

// A short digest of the program and options that must be equal on all ranks of a pipeline. Ranks
// compare it before the first step, because ranks with different programs would deadlock.
// Torch-free.

struct DigestPart {
  std::string name;   // "program"
  std::string value;  // text, or a 64-bit hash
};

// The program, its placement, number of microbatches and channel model, followed by `options`.
std::vector<DigestPart> digest_of(const ir::Program& program, std::vector<DigestPart> options);

// To and from one line of text.
std::string to_string(const std::vector<DigestPart>& digest);
std::vector<DigestPart> parse_digest(const std::string& text);

// The first difference, such as "program is 9f.. on rank 0 and 3b.. on rank 2"; empty if they are
// equal.
std::string difference(const std::vector<DigestPart>& left, int left_rank,
                       const std::vector<DigestPart>& right, int right_rank);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_PROGRAM_PROGRAM_H_
