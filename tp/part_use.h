#ifndef PIPEWRIGHT_TP_PART_USE_H_
#define PIPEWRIGHT_TP_PART_USE_H_

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>

#include "pipewright/modules/forward.h"

// Finds parameters that a plan does not name although they meet this rank's part of an activation:
// the weights of an adapter between two layers of sequence parallelism, of a norm over a rank's
// heads, a scale. Every rank would keep the gradient of its part, and the copies would drift apart.

namespace pipewright::tp {

// The parameters of a parallelized module.
struct ParameterUses {
  enum class Use {
    kPart,     // split, or with a style that sums its gradient: what it meets becomes a part
    kCopy,     // with another style
    kUnnamed,  // with no style
  };
  struct Parameter {
    Use use;
    std::string name;
  };
  std::map<const at::TensorImpl*, Parameter> parameters;
};

// A hook of a module of path `path`. In each forward up to the first one that records a graph, it
// looks at what has been recorded for the inputs, and then for the outputs, and throws
// std::invalid_argument if an unnamed parameter meets a part there: the same on all ranks.
// `takes_parts`: the plan says that the inputs are parts, or copies whose gradients are partial.
std::shared_ptr<modules::ForwardHook> part_use_check(std::shared_ptr<const ParameterUses> uses,
                                                     std::string path, bool takes_parts);

}  // namespace pipewright::tp

#endif  // PIPEWRIGHT_TP_PART_USE_H_
