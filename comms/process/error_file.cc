#include "pipewright/comms/process/error_file.h"

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

namespace pipewright::comms {

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
