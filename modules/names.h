#ifndef PIPEWRIGHT_MODULES_NAMES_H_
#define PIPEWRIGHT_MODULES_NAMES_H_

#include <cstddef>
#include <string>

// Dotted paths of modules and parameters, as in torch::nn::Module::named_parameters().

namespace pipewright::modules {

// "block0" and "weight" make "block0.weight"; an empty part is left out.
inline std::string join_path(const std::string& outer, const std::string& inner) {
  if (outer.empty() || inner.empty()) return outer + inner;
  return outer + "." + inner;
}

// The path of a module in the list that is wrapped by one call: its index, or the empty string if
// it is the only one.
inline std::string path_in_list(size_t index, size_t count) {
  return count == 1 ? "" : std::to_string(index);
}

}  // namespace pipewright::modules

#endif  // PIPEWRIGHT_MODULES_NAMES_H_
