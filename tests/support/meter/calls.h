#ifndef PIPEWRIGHT_TESTS_SUPPORT_METER_CALLS_H_
#define PIPEWRIGHT_TESTS_SUPPORT_METER_CALLS_H_

#include <ATen/record_function.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

namespace pipewright::tests {

using Calls = std::map<std::string, int>;

// The operators that `work` calls on this thread, in forward and backward, by name.
inline Calls calls_of(const std::function<void()>& work) {
  thread_local Calls* calls = nullptr;  // a callback has no state of its own
  Calls counted;
  calls = &counted;
  const at::CallbackHandle handle = at::addThreadLocalCallback(at::RecordFunctionCallback(
      [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
        ++(*calls)[call.name()];
        return nullptr;
      }));
  work();
  at::removeCallback(handle);
  return counted;
}

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SUPPORT_METER_CALLS_H_
