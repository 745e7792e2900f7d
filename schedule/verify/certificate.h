#ifndef PIPEWRIGHT_SCHEDULE_VERIFY_CERTIFICATE_H_
#define PIPEWRIGHT_SCHEDULE_VERIFY_CERTIFICATE_H_

#include <optional>
#include <vector>

#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

// The most that a rank holds of something at a time, and the first step at which it does.
struct Peak {
  int count = 0;
  std::optional<int> step;  // none where there never is any

  friend bool operator==(const Peak&, const Peak&) = default;
};

// What a verified program needs on one rank.
struct RankCertificate {
  // Microbatches of a stage: F starts one, B or W ends it; in a forward-only program its F does.
  Peak activations;
  // From a RECV to the end of what uses it.
  Peak receive_buffers;
  // From UNSHARD to RESHARD.
  Peak unsharded_stages;
};

// One for each rank, of a program that verify accepts. In a compound, F counts before B. A pure
// function, linear in the number of actions.
std::vector<RankCertificate> certify(const ir::Program& program);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_VERIFY_CERTIFICATE_H_
