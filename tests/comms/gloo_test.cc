// Tests of collectives_test on ranks that are processes, over Gloo.
#include "tests/support/training/over_gloo.h"

namespace pipewright::tests {
namespace {

TEST(CommsOverGloo, Collectives) {
  expect_over_gloo(3, "tests/comms/collectives_test", "*ReduceScatterOfSeveral", 1);
  expect_over_gloo(2, "tests/comms/collectives_test", "*ReduceScatterThatDoesNotFit", 1);
}

}  // namespace
}  // namespace pipewright::tests
