#ifndef PIPEWRIGHT_TP_INPUT_CHECK_H_
#define PIPEWRIGHT_TP_INPUT_CHECK_H_

#include <memory>
#include <string>

#include "pipewright/comms/world.h"
#include "pipewright/modules/forward.h"

namespace pipewright::tp {

// Compares the inputs of each forward of a module, shapes, dtypes and all bits, between the ranks
// of `group`. If they differ, all ranks throw the same std::invalid_argument, which names the first
// input that differs and the rank. So do the ranks of `copies`, which may be null, with `place` of
// the ranks that differ before the message.
std::shared_ptr<modules::ForwardHook> input_check(comms::BackendPtr group, comms::BackendPtr copies,
                                                  std::string place);

}  // namespace pipewright::tp

#endif  // PIPEWRIGHT_TP_INPUT_CHECK_H_
