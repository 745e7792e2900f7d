#include "examples/recorded_step.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "pipewright/checkpoint/durable_file.h"
#include "pipewright/ir/text/schedule_json.h"
#include "pipewright/schedule/compile/compile.h"
#include "pipewright/schedule/simulate/recorded_costs.h"

namespace pipewright::examples {

void check_writable(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const bool is_folder = std::filesystem::is_directory(path);
  if (!is_folder && ::access(folder.empty() ? "." : folder.c_str(), W_OK) == 0) return;
  throw std::runtime_error("cannot write `" + path +
                           "`: " + std::strerror(is_folder ? EISDIR : errno));
}

RecordedStep take_recording(const std::string& path, int64_t step, const ir::Program& program,
                            ir::Timeline measured) {
  const ir::Recording recording = ir::recording_of_seconds(std::move(measured));
  if (!path.empty()) {
    std::ostringstream text;
    ir::print_json(program, recording, text);
    checkpoint::write_durably(path, text.str());
  }

  const schedule::Costs costs = schedule::recorded_costs(program, recording);
  const schedule::CompileResult compiled = schedule::compile({.source = ir::AnySchedule(program)});
  const schedule::SimulateResult predicted =
      schedule::simulate(compiled, {.costs = costs, .with_copies = false});
  if (!predicted.ok()) throw std::runtime_error(predicted.diagnostics.kept().front().message);
  const schedule::Report report = schedule::report_on(program, costs, recording.timeline);
  return {step, report.makespan * *ir::seconds_per(recording.unit), report.bubble_rate,
          predicted.simulation->report.bubble_rate};
}

}  // namespace pipewright::examples
