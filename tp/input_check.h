#ifndef PIPEWRIGHT_TP_INPUT_CHECK_H_
#define PIPEWRIGHT_TP_INPUT_CHECK_H_

#include <memory>

#include "pipewright/comms/world.h"
#include "pipewright/modules/forward.h"

namespace pipewright::tp {

// Compares the inputs of each forward of a module, shapes, dtypes and all bits, between the ranks
// of `group`. If they differ, all ranks throw the same std::invalid_argument, which names the first
// input that differs and the rank.
std::shared_ptr<modules::ForwardHook> input_check(comms::BackendPtr group);

}  // namespace pipewright::tp

#endif  // PIPEWRIGHT_TP_INPUT_CHECK_H_
