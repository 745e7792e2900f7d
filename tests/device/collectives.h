#ifndef PIPEWRIGHT_TESTS_DEVICE_COLLECTIVES_H_
#define PIPEWRIGHT_TESTS_DEVICE_COLLECTIVES_H_

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "tests/device/communicator.h"

// How the operations of a communicator move data, between host aliases of all ranks' tensors. Each
// works on lists of tensors: element i of all ranks' lists belong together. Reductions run in the
// order of ranks, so results are bitwise reproducible.

namespace pipewright::testdevice {

Body transfer(int from, int to);
Body all_gather();
Body reduce_scatter(c10d::ReduceOp::RedOpType op);
Body all_reduce(c10d::ReduceOp::RedOpType op);
Body broadcast(int root);

// "SUM". Throws std::invalid_argument for an operation that is not supported.
std::string name_of(c10d::ReduceOp::RedOpType op);

}  // namespace pipewright::testdevice

#endif  // PIPEWRIGHT_TESTS_DEVICE_COLLECTIVES_H_
