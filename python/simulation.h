#ifndef PIPEWRIGHT_PYTHON_SIMULATION_H_
#define PIPEWRIGHT_PYTHON_SIMULATION_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/python/schedule.h"
#include "pipewright/schedule/compile/compile.h"

namespace pipewright::python {

// A simulated run: what `pipewright simulate` reports, the times of all actions, and pictures.
class Simulation {
 public:
  // Throws ScheduleFailure if the schedule is invalid or the costs do not fit it.
  Simulation(const Schedule& schedule, const schedule::Costs& costs,
             const std::map<std::string, double>& scale, const std::map<int, double>& slow,
             const std::vector<double>& memory);

  const schedule::Report& report() const { return simulation_.report; }
  const schedule::ScheduleBound& bound() const { return *simulation_.bound; }
  const ir::Timeline& timeline() const { return simulation_.timeline; }
  std::vector<double> slack() const;  // by action, along the rows
  std::string title() const;
  // "timeline", "svg", "trace"
  std::string picture(const std::string& format) const;
  // The interactive page, with another run on the same axis unless null.
  std::string html(const Simulation* against) const;

 private:
  const ir::Schedule& schedule() const { return ir::schedule_of(*compiled_.schedule); }
  schedule::ChannelGraph graph() const { return schedule::graph_of(*compiled_.schedule); }

  schedule::CompileResult compiled_;
  schedule::Simulation simulation_;
};

}  // namespace pipewright::python

#endif  // PIPEWRIGHT_PYTHON_SIMULATION_H_
