#include "pipewright/comms/group_name.h"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <stdexcept>

namespace pipewright::comms {

std::vector<int> members_of(const std::string& group_name) {
  const size_t end = group_name.rfind(']');
  const size_t begin = end == std::string::npos ? end : group_name.rfind('[', end);
  std::vector<int> ranks;
  if (begin != std::string::npos) {
    std::istringstream list(group_name.substr(begin + 1, end - begin - 1));
    for (std::string rank; std::getline(list, rank, ',');) {
      const bool is_number =
          !rank.empty() && rank.size() < 10 && std::ranges::all_of(rank, [](char c) {
            return std::isdigit(static_cast<unsigned char>(c)) != 0;
          });
      if (!is_number) break;
      ranks.push_back(std::stoi(rank));
    }
  }
  if (!ranks.empty()) return ranks;
  throw std::invalid_argument("group `" + group_name +
                              "`: expected the ranks of its members, as in "
                              "`dp[0,4]`");
}

}  // namespace pipewright::comms
