#ifndef PIPEWRIGHT_PYTHON_TORCH_INTERRUPTS_H_
#define PIPEWRIGHT_PYTHON_TORCH_INTERRUPTS_H_

#include <csignal>
#include <functional>
#include <thread>

namespace pipewright::python {

// Ctrl-C while the main thread waits in C++. Python's signal handler only sets a flag, which the
// interpreter looks at before its next instruction. So while a Scope lives, SIGINT also calls a
// function that ends the wait:
//
//   Interrupts interrupts([&] { world.fail("KeyboardInterrupt"); });
//   {
//     const Interrupts::Scope scope(interrupts);
//     executor.step(batch);
//   }
//   if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
//
// Other handlers than Python's own, which raises KeyboardInterrupt, are left alone: only they know
// whether the step must end.
class Interrupts {
 public:
  // `end_wait` is called on a thread of this object.
  explicit Interrupts(std::function<void()> end_wait);
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // One at a time. Without effect on threads other than the main one. With the GIL.
  class Scope {
   public:
    explicit Scope(const Interrupts& interrupts);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    bool is_armed_ = false;
    struct sigaction python_ {};
  };

 private:
  const std::function<void()> end_wait_;
  const int event_;  // an eventfd: 1 is an interrupt, kStop the end
  std::thread thread_;
};

}  // namespace pipewright::python

#endif  // PIPEWRIGHT_PYTHON_TORCH_INTERRUPTS_H_
