#ifndef PIPEWRIGHT_EXECUTOR_RANK_REPORT_H_
#define PIPEWRIGHT_EXECUTOR_RANK_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/executor/progress.h"

namespace pipewright::executor {

// Where one rank is when a step hangs.
struct RankReport {
  // A SEND or RECV of this step, or between two steps of the last one, that the rank has passed,
  // and yet not posted.
  struct Unposted {
    int action;      // index in the rank's row
    bool is_queued;  // waits in its queue; otherwise the rank has left it out
  };
  // A process group with collectives.
  struct Group {
    std::string name;  // the same on all members
    std::vector<int> members;
    int64_t issued = 0;     // collectives that this rank has called
    int64_t joined = 0;     // of those, how many its device has come to; on a CPU all
    int64_t waits_for = 0;  // the number, from 1, of the one it waits for; 0: none
    std::string op;         // of that one
  };

  std::string program;     // a digest
  int rank = 0;            // of the program
  std::vector<int> ranks;  // the world rank of each program rank
  Phase phase = Phase::kIdle;
  int64_t step = 0;
  bool evaluates = false;
  int action = -1;     // index in the row; -1: none
  int waits_for = -1;  // a SEND or RECV of this rank, likewise
  double seconds = 0;  // since the rank has last made progress
  std::vector<Unposted> unposted;
  std::vector<Group> groups;
};

std::string to_text(const RankReport& report);
// The inverse; nullopt for other text.
std::optional<RankReport> parse_report(const std::string& text);

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_RANK_REPORT_H_
