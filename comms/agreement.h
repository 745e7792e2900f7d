#ifndef PIPEWRIGHT_COMMS_AGREEMENT_H_
#define PIPEWRIGHT_COMMS_AGREEMENT_H_

#include <string>
#include <vector>

#include "pipewright/comms/world.h"

namespace pipewright::comms {

// Compares lines of text over a group, for instance "weight: Float [3, 4]". Collective. Throws
// std::invalid_argument on every rank where one differs from rank 0's: it names the first such line
// of the first such rank.
void compare_lines(const std::vector<std::string>& lines, c10d::Backend& group, at::Device device);

// Gives all ranks of a group rank 0's values of tensors that have the same shapes. Collective.
void broadcast_values(const std::vector<at::Tensor>& tensors, c10d::Backend& group);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_AGREEMENT_H_
