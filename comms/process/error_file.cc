#include "pipewright/comms/process/error_file.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace pipewright::comms {

namespace {

// A signal handler can reach nothing else: signals belong to the process.
std::atomic<int> requested = 0;
static_assert(std::atomic<int>::is_always_lock_free);

}  // namespace

void dump_on_signal(int signal) {
  struct sigaction action {};
  action.sa_handler = [](int) { requested.fetch_add(1, std::memory_order_relaxed); };
  action.sa_flags = SA_RESTART;
  if (sigaction(signal, &action, nullptr) != 0)
    throw std::runtime_error("cannot handle signal " + std::to_string(signal));
}

int dumps_requested() { return requested.load(std::memory_order_relaxed); }

void write_error_file(std::string_view message, const Variables& variables) {
  const std::optional<std::string> path = variables("TORCHELASTIC_ERROR_FILE");
  if (!path || path->empty()) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  const nlohmann::json report = {
      {"message",
       {{"message", message},
        // torchrun prints the call stack if there is one, and the message only without it.
        {"extraInfo", {{"py_callstack", message}, {"timestamp", std::to_string(seconds)}}}}}};
  std::ofstream(*path) << report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                       << '\n';
}

void write_error_file(std::string_view message) {
  write_error_file(message, variables_of_process());
}

}  // namespace pipewright::comms
