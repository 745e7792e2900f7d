#ifndef PIPEWRIGHT_COMMS_AGREEMENT_H_
#define PIPEWRIGHT_COMMS_AGREEMENT_H_

#include <string>
#include <vector>

#include "pipewright/comms/world.h"

namespace pipewright::comms {

// Checks that every rank of `group` passes the same lines, such as "`weight`, Float [3, 4]". If
// not, throws the same std::invalid_argument on every rank: it shows the first line that differs
// from rank 0's, on the first such rank. Lines may name `device`: its index does not count, as each
// rank may have its own. Collective and blocking; communicates through `device`, which the group's
// backend must support.
void compare_lines(const std::vector<std::string>& lines, c10d::Backend& group, at::Device device);

// The text of the first rank of `group` whose text is not empty, on every rank; empty if all are.
// Collective and blocking, as above.
std::string first_text(const std::string& text, c10d::Backend& group, at::Device device);

// Copies rank 0's values of `tensors` to all ranks of `group`. Shapes and dtypes must be the same
// on every rank. Collective and blocking.
void broadcast_values(const std::vector<at::Tensor>& tensors, c10d::Backend& group);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_AGREEMENT_H_
