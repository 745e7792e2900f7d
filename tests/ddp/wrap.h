#ifndef PIPEWRIGHT_TESTS_DDP_WRAP_H_
#define PIPEWRIGHT_TESTS_DDP_WRAP_H_

#include <memory>
#include <vector>

#include "pipewright/ddp/replicate.h"
#include "tests/support/training/modules.h"

namespace pipewright::tests {

// Calls replicate() for each part of `module`, then for the whole, whose result comes last.
inline std::vector<std::shared_ptr<ddp::Replicated>> wrap(TestModule& module,
                                                          const comms::BackendPtr& group,
                                                          const ddp::Options& options = {}) {
  std::vector<std::shared_ptr<ddp::Replicated>> units;
  for (const auto& part : module.parts()) units.push_back(replicate(*part, group, options));
  units.push_back(replicate(module, group, options));
  return units;
}

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_DDP_WRAP_H_
