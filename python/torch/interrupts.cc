#include "pipewright/python/torch/interrupts.h"

#include <pybind11/pybind11.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

namespace pipewright::python {
namespace {

namespace py = pybind11;

constexpr uint64_t kInterrupt = 1, kStop = uint64_t{1} << 32;

// What a signal handler can reach: the event of the scope that lives, and Python's own handler.
std::atomic<int> armed_event = -1;
std::atomic<void (*)(int)> python_handler = nullptr;

void write_event(int event, uint64_t value) {
  if (write(event, &value, sizeof value) < 0) {  // an eventfd of so small numbers takes more
  }
}

void handle(int signal) {
  const int saved = errno;
  python_handler.load()(signal);
  write_event(armed_event, kInterrupt);
  errno = saved;
}

bool raises_keyboard_interrupt() {
  const py::module_ signal = py::module_::import("signal");
  return signal.attr("getsignal")(SIGINT).is(signal.attr("default_int_handler"));
}

int make_event() {
  const int event = eventfd(0, EFD_CLOEXEC);
  if (event < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  return event;
}

}  // namespace

Interrupts::Interrupts(std::function<void()> end_wait)
    : end_wait_(std::move(end_wait)), event_(make_event()), thread_([this] {
        uint64_t value = 0;
        while (value < kStop) {
          if (read(event_, &value, sizeof value) != sizeof value) continue;
          if (value < kStop) end_wait_();
        }
      }) {}

Interrupts::~Interrupts() {
  write_event(event_, kStop);
  thread_.join();
  close(event_);
}

Interrupts::Scope::Scope(const Interrupts& interrupts) {
  const bool is_main_thread = getpid() == gettid();
  if (!is_main_thread || armed_event >= 0 || !raises_keyboard_interrupt()) return;
  sigaction(SIGINT, nullptr, &python_);
  if ((python_.sa_flags & SA_SIGINFO) || python_.sa_handler == SIG_DFL ||
      python_.sa_handler == SIG_IGN)
    return;
  python_handler = python_.sa_handler;
  armed_event = interrupts.event_;
  struct sigaction own = python_;
  own.sa_handler = &handle;
  sigaction(SIGINT, &own, nullptr);
  is_armed_ = true;
}

Interrupts::Scope::~Scope() {
  if (!is_armed_) return;
  sigaction(SIGINT, &python_, nullptr);
  armed_event = -1;
}

}  // namespace pipewright::python
