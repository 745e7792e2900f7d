#pragma once

// Declarations of Gloo for torch/csrc/distributed/c10d/ProcessGroupGloo.hpp. LibTorch holds Gloo's
// code, but none of its headers, and distributions package a version of years ago or none. That
// header needs no more than this: it keeps pointers to these classes, and calls one function. What
// is called here exists in LibTorch with this name (tests/libtorch/gloo_symbols_test.sh); nothing
// here may be constructed, and no virtual function called.
#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace transport {

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};

}  // namespace transport
}  // namespace gloo
