// Tests of tensor parallelism with ranks as processes, over Gloo.
#include "tests/support/training/over_gloo.h"

namespace pipewright::tests {
namespace {

// One error on both ranks, not the end of a process; with and without check_inputs.
TEST(TensorParallelOverGloo, WrongBatch) {
  expect_over_gloo(2, "tests/tp/batch_test", "*WithoutAPipeline", 2);
}

}  // namespace
}  // namespace pipewright::tests
