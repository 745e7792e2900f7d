#include "pipewright/executor/nvtx_ranges.h"

#include <nvtx3/nvToolsExt.h>

#include <memory>

namespace pipewright::executor {
namespace {

std::unique_ptr<at::ObserverContext> push(const at::RecordFunction& scope) {
  nvtxRangePushA(scope.name());
  return nullptr;
}

void pop(const at::RecordFunction& /*scope*/, at::ObserverContext* /*context*/) { nvtxRangePop(); }

}  // namespace

NvtxRanges::NvtxRanges()
    : handle_(at::addGlobalCallback(
          at::RecordFunctionCallback(push, pop).scopes({at::RecordScope::USER_SCOPE}))) {}

NvtxRanges::~NvtxRanges() { at::removeCallback(handle_); }

}  // namespace pipewright::executor
