#ifndef PIPEWRIGHT_COMMS_NODE_LIST_H_
#define PIPEWRIGHT_COMMS_NODE_LIST_H_

#include <string>

namespace pipewright::comms {

// The first host of a Slurm node list, which `scontrol show hostnames` prints first: node03 of
// "node[03-05,9],x1", rack1n3 of "rack[1-2]n[3-4]". Empty if `list` has no host or is malformed.
std::string first_host(const std::string& list);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_NODE_LIST_H_
