#ifndef PIPEWRIGHT_EXECUTOR_HANG_HANG_H_
#define PIPEWRIGHT_EXECUTOR_HANG_HANG_H_

#include <optional>
#include <string>
#include <vector>

#include "pipewright/executor/hang/rank_report.h"
#include "pipewright/ir/schedule.h"

// Who causes a hang: a wait-for graph of ranks. Each rank says where it is and what it waits for; a
// rank that waits for nobody, or a transfer that both of its ends have posted, is the culprit, and
// the ranks on the way to it are its victims. Pure functions, torch-free.
//
//   rank 0 `0F3` runs  <--  rank 1 `1F3` waits for `0SEND_F3`  <--  rank 2 waits for `1SEND_F3`
//
// The culprit is rank 0, action `0F3`.

namespace pipewright::executor {

struct Culprit {
  std::vector<int> ranks;  // of the world: one, or both ends of a transfer, or a deadlocked cycle
  std::string problem;     // "step 1, action 3 `0F1` has not ended for 4.1 s"
};

// Reports by world rank; nullopt for ranks that do not answer.
using RankReports = std::vector<std::optional<RankReport>>;

// The programs that a report may be of: what steps run, and what evaluation runs.
struct HangPrograms {
  std::string digest;
  const ir::Program& steps;
  const ir::Program& evaluation;
};

// The culprits of a hang, each once. Linear in the number of ranks and of their groups' members.
std::vector<Culprit> find_culprits(const RankReports& reports, const HangPrograms& programs);

// "step 1, action 3 `1F1`".
std::string place_of(const RankReport& report, const HangPrograms& programs);

// "step 1, action 3 `1F1`, waits for `0SEND_F1` of rank 0, for 4.1 s".
std::string describe(const RankReport& report, const HangPrograms& programs);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_HANG_HANG_H_
