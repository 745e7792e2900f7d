// What remains of a step of a rank when its next one begins.
#include <gtest/gtest.h>

#include <cmath>

#include "pipewright/comms/process/steady_seconds.h"
#include "pipewright/executor/hang/rank_report.h"

namespace pipewright::executor {
namespace {

using Transfer = Progress::Transfer;

// Ranks that wait for the next step, while another has not ended this one, have called all of it.
TEST(Progress, KeepsAStepUntilAllRanksBeginTheNext) {
  Progress progress(2);
  progress.begin(0, false);
  progress.run(0);
  progress.transfer(0, Transfer::kPosted);
  progress.run(1);
  progress.end();
  progress.idle(1);
  progress.begin(1, true);

  const Progress::Moment waits = progress.now();
  EXPECT_EQ(waits.phase, Phase::kBegins);
  EXPECT_EQ(waits.step, 1);
  EXPECT_TRUE(waits.evaluates);
  EXPECT_FALSE(waits.ran_evaluation);
  EXPECT_EQ(waits.transfers[0], Transfer::kPosted);
  EXPECT_LE(waits.begun, waits.starts[0]);
  EXPECT_LE(waits.starts[0], waits.starts[1]);
  EXPECT_LE(waits.starts[1], waits.ended);

  const double before = comms::steady_seconds();
  progress.run(0);
  const Progress::Moment runs = progress.now();
  EXPECT_TRUE(runs.ran_evaluation);
  EXPECT_EQ(runs.transfers[0], Transfer::kNotCalled);
  EXPECT_GE(runs.begun, before);
  EXPECT_GE(runs.starts[0], runs.begun);
  EXPECT_TRUE(std::isinf(runs.starts[1]));
  EXPECT_TRUE(std::isinf(runs.ended));
}

}  // namespace
}  // namespace pipewright::executor
