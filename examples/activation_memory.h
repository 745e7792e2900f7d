#ifndef PIPEWRIGHT_EXAMPLES_ACTIVATION_MEMORY_H_
#define PIPEWRIGHT_EXAMPLES_ACTIVATION_MEMORY_H_

#include <optional>
#include <string>
#include <vector>

// How many activations fit into the memory of the hosts. Torch-free.

namespace pipewright::examples {

// The memory of one rank, in bytes.
struct ActivationMemory {
  std::string host;
  double available = 0;       // on the host, for all of its ranks
  double reserved = 0;        // of that, what this rank will take for other things
  double per_activation = 0;  // of one microbatch
};

// How many activations fit on the rank that has the least room, at least 1; nullopt if as many fit
// as there are microbatches. Ranks of one host share what is available there equally.
std::optional<double> activations_that_fit(const std::vector<ActivationMemory>& ranks,
                                           int microbatches);

// For other ranks, and back.
std::string to_text(const ActivationMemory& memory);
ActivationMemory activation_memory_from_text(const std::string& text);

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_ACTIVATION_MEMORY_H_
