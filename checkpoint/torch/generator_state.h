#ifndef PIPEWRIGHT_CHECKPOINT_TORCH_GENERATOR_STATE_H_
#define PIPEWRIGHT_CHECKPOINT_TORCH_GENERATOR_STATE_H_

#include <ATen/core/Generator.h>

#include <string>

// The state of a random number generator as text, for the manifest of a checkpoint.
//
//   snapshot.state["generator.cpu." + std::to_string(rank)] = generator_state(generator);

namespace pipewright::checkpoint {

// The bytes of the generator's state, in hexadecimal: about 10,000 characters for a CPU generator.
std::string generator_state(at::Generator generator);
// Throws std::invalid_argument if the text is not the state of a generator of that kind.
void set_generator_state(at::Generator generator, const std::string& text);

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_TORCH_GENERATOR_STATE_H_
