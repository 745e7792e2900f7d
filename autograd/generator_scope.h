#ifndef PIPEWRIGHT_AUTOGRAD_GENERATOR_SCOPE_H_
#define PIPEWRIGHT_AUTOGRAD_GENERATOR_SCOPE_H_

#include <ATen/core/Generator.h>

#include <cstdint>

namespace pipewright::autograd {

// A random generator of the calling thread, for ranks that are threads of one process. LibTorch has
// one default generator of the CPU per process. While a scope lives, operators that its thread
// calls on the CPU without a generator (dropout, randn, normal_) draw from that of the scope:
//
//   std::jthread([&] {
//     const GeneratorScope generator(seed + rank);
//     ...  // random numbers do not depend on what other threads draw, or when
//   });
//
// Scopes nest. A device has a default generator of its own, which a scope does not replace. A scope
// ends on the thread that began it. Operators with a generator as an argument find out through
// LibTorch's dispatcher (DispatchKey::TESTING_ONLY_GenericMode); others are not slowed down.
class GeneratorScope {
 public:
  explicit GeneratorScope(uint64_t seed);
  explicit GeneratorScope(at::Generator generator);
  ~GeneratorScope();
  GeneratorScope(const GeneratorScope&) = delete;
  GeneratorScope& operator=(const GeneratorScope&) = delete;

 private:
  at::Generator outer_;
};

// The generator that operators of this thread draw from on the CPU: that of the innermost scope, or
// the default one of the process.
at::Generator cpu_generator();

// How many operators of this thread have drawn from the generator of a scope so far.
int64_t draw_count();

}  // namespace pipewright::autograd

#endif  // PIPEWRIGHT_AUTOGRAD_GENERATOR_SCOPE_H_
