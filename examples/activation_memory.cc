#include "examples/activation_memory.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

namespace pipewright::examples {

std::optional<double> activations_that_fit(const std::vector<ActivationMemory>& ranks,
                                           int microbatches) {
  std::map<std::string, int> ranks_of_host;
  for (const ActivationMemory& rank : ranks) ++ranks_of_host[rank.host];
  double least = microbatches;
  for (const ActivationMemory& rank : ranks) {
    const double room = rank.available / ranks_of_host[rank.host] - rank.reserved;
    least = std::min(least, room / rank.per_activation);
  }
  if (least >= microbatches) return std::nullopt;
  return std::max(1.0, std::floor(least));
}

std::string to_text(const ActivationMemory& memory) {
  std::ostringstream text;
  text.precision(17);
  text << memory.host << ' ' << memory.available << ' ' << memory.reserved << ' '
       << memory.per_activation;
  return text.str();
}

ActivationMemory activation_memory_from_text(const std::string& text) {
  ActivationMemory memory;
  std::istringstream words(text);
  words >> memory.host >> memory.available >> memory.reserved >> memory.per_activation;
  return memory;
}

}  // namespace pipewright::examples
