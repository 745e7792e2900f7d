#ifndef PIPEWRIGHT_COMMS_HOST_NAME_H_
#define PIPEWRIGHT_COMMS_HOST_NAME_H_

#include <string>

namespace pipewright::comms {

// The name of this machine, as `uname -n` prints it, or "unknown" if it has none that fits into 255
// characters. No LibTorch.
std::string host_name();

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_HOST_NAME_H_
