#include "pipewright/python/simulation.h"

#include <fmt/format.h>

#include <sstream>
#include <stdexcept>

#include "pipewright/python/search.h"
#include "pipewright/schedule/simulate/simulate.h"
#include "pipewright/schedule/views/html.h"
#include "pipewright/schedule/views/svg.h"
#include "pipewright/schedule/views/timeline_text.h"
#include "pipewright/schedule/views/trace.h"

namespace pipewright::python {
namespace {

schedule::Simulation run(const schedule::CompileResult& compiled,
                         const schedule::SimulateRequest& request) {
  schedule::SimulateResult result = schedule::simulate(compiled, request);
  if (!result.ok()) throw ScheduleFailure(result.diagnostics, nullptr);
  return std::move(*result.simulation);
}

}  // namespace

Simulation::Simulation(const Schedule& schedule, const schedule::Costs& costs,
                       const std::map<std::string, double>& scale,
                       const std::map<int, double>& slow, const std::vector<double>& memory)
    : compiled_(schedule.compiled()),
      simulation_(run(compiled_, {.costs = costs,
                                  .scale = {scale.begin(), scale.end()},
                                  .slow = {slow.begin(), slow.end()},
                                  .memory = {.activations = per_rank(memory)}})) {}

std::vector<double> Simulation::slack() const {
  return schedule::slack_of(graph(), schedule(), simulation_.costs, simulation_.timeline);
}

std::string Simulation::title() const {
  const ir::Schedule& of = schedule();
  return fmt::format("{}: {} ranks, {} stages, {} microbatches; makespan {:.6g}, bubble {:.1f}%",
                     of.name.empty() ? "schedule" : of.name, of.placement.num_ranks(),
                     of.placement.num_stages(), of.num_microbatches / of.slices, report().makespan,
                     100 * report().bubble_rate);
}

std::string Simulation::picture(const std::string& format) const {
  std::ostringstream out;
  if (format == "timeline") {
    schedule::print_timeline(schedule(), timeline(), {}, out);
  } else if (format == "svg") {
    schedule::print_svg(schedule(), timeline(), title(), simulation_.costs.unit, out);
  } else if (format == "trace") {
    schedule::print_trace(schedule(), simulation_.costs, timeline(), out);
  } else {
    throw std::invalid_argument("format: expected timeline, svg or trace, got `" + format + "`");
  }
  return out.str();
}

std::string Simulation::html(const Simulation* against) const {
  std::vector<schedule::HtmlRun> runs;
  for (const Simulation* one : {this, against}) {
    if (one != nullptr)
      runs.push_back(
          {one->title(), one->schedule(), one->simulation_.costs, one->graph(), one->timeline()});
  }
  std::ostringstream out;
  schedule::print_html(runs, out);
  return out.str();
}

}  // namespace pipewright::python
