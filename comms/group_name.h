#ifndef PIPEWRIGHT_COMMS_GROUP_NAME_H_
#define PIPEWRIGHT_COMMS_GROUP_NAME_H_

#include <string>
#include <vector>

namespace pipewright::comms {

// The world ranks of a process group's members, in the order of their ranks in the group. World
// puts them into the name that a backend receives: {0, 4} for "dp[0,4]#0". Throws
// std::invalid_argument if the name has none.
std::vector<int> members_of(const std::string& group_name);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_GROUP_NAME_H_
