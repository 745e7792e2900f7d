#ifndef PIPEWRIGHT_SCHEDULE_LOWERING_LIMIT_SENDS_H_
#define PIPEWRIGHT_SCHEDULE_LOWERING_LIMIT_SENDS_H_

#include <optional>

#include "pipewright/ir/schedule.h"

namespace pipewright::schedule {

// Moves WAIT_SENDs forward so that at most `most` SENDs of a rank are pending at a time, as PyTorch
// 2.15 does with `max_outstanding_sends` (_add_wait_send_budget). Before a SEND that would be one
// too many, a pending one is awaited: the first whose RECV is certainly posted by then, or else the
// first whose RECV does not depend on what follows, for which the rank may have to wait. Ranks of
// stages 0 and 1, `most` 1:
//
//   before  0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0WAIT_SEND_F0 ...
//   after   0F0 0SEND_F0 0F1 0WAIT_SEND_F0 0SEND_F1 0RECV_B0 0B0 ...
//
// The program is one of add_wait_send(). The result records the policy; nullopt if no WAIT can be
// moved where one must be. A pure function. Each WAIT that may be moved costs a search through the
// actions that run meanwhile.
std::optional<ir::Program> limit_sends(const ir::Program& program, int most);

// The smallest limit, at least 1, for which limit_sends() succeeds.
int least_pending_sends(const ir::Program& program);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_LOWERING_LIMIT_SENDS_H_
