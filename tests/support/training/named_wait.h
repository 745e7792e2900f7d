#ifndef PIPEWRIGHT_TESTS_SUPPORT_TRAINING_NAMED_WAIT_H_
#define PIPEWRIGHT_TESTS_SUPPORT_TRAINING_NAMED_WAIT_H_

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "pipewright/comms/group.h"
#include "pipewright/comms/process/sockets.h"
#include "tests/support/training/on_ranks.h"

namespace pipewright::tests {

// Expects that a rank whose peer does not come is seen to wait for `op`, the first collective of
// `function`, so that the report of a hang names it.
inline void expect_named_wait(const std::string& op,
                              const std::function<void(const comms::BackendPtr&)>& function) {
  std::atomic<const comms::Group*> waiting = nullptr;
  on_ranks(2, [&](Rank& self) {
    const comms::BackendPtr group = self.world->make_group("named", std::vector{0, 1});
    if (self.rank == 0) {
      waiting = dynamic_cast<const comms::Group*>(group.get());
    } else {
      comms::GroupState state;
      comms::poll(std::chrono::seconds(20), 4, [&] {
        const comms::Group* other = waiting;
        if (other) state = other->log()->state();
        return state.waits_for > 0;
      });
      EXPECT_GT(state.waits_for, 0);
      EXPECT_FALSE(state.last.empty());
      if (!state.last.empty()) {
        EXPECT_EQ(state.last.back().op, op);
      }
    }
    function(group);
  });
}

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SUPPORT_TRAINING_NAMED_WAIT_H_
