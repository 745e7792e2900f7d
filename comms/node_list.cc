#include "pipewright/comms/node_list.h"

namespace pipewright::comms {
namespace {

constexpr const char* kSeparators = ", \t\n";
constexpr const char* kDigits = "0123456789";

}  // namespace

// Each pair of brackets stands for the first number in it, with its leading zeros.
std::string first_host(const std::string& list) {
  std::string host;
  size_t at = list.find_first_not_of(kSeparators);
  while (at < list.size()) {
    const size_t stop = list.find_first_of(std::string(kSeparators) + "[]", at);
    host += list.substr(at, stop - at);
    if (stop == std::string::npos) return host;
    if (list[stop] != '[') return list[stop] == ']' ? "" : host;
    const size_t end = list.find_first_not_of(kDigits, stop + 1);
    const size_t close = list.find_first_not_of(std::string(kDigits) + "-,", stop + 1);
    const bool is_number = end != stop + 1;
    if (!is_number || close == std::string::npos || list[close] != ']') return "";
    host += list.substr(stop + 1, end - stop - 1);
    at = close + 1;
  }
  return host;
}

}  // namespace pipewright::comms
