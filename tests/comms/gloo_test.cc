// Runs collectives_test on ranks that are processes, over Gloo.
#include "tests/support/training/over_gloo.h"

namespace pipewright::tests {
namespace {

TEST(CommsOverGloo, Collectives) {
  expect_over_gloo(3, "tests/comms/collectives_test", "*CoalescedReduceScatter", 1);
  expect_over_gloo(2, "tests/comms/collectives_test", "*ReduceScatterOfWrongSize", 1);
  expect_over_gloo(3, "tests/comms/collectives_test", "*ThatDiffer", 3);
  expect_over_gloo(3, "tests/comms/gloo_collectives", "*", 5);
}

}  // namespace
}  // namespace pipewright::tests
