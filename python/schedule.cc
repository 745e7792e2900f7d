#include "pipewright/python/schedule.h"

#include <algorithm>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <variant>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/text/action_text.h"
#include "pipewright/ir/text/header.h"
#include "pipewright/ir/text/read.h"
#include "pipewright/ir/text/render.h"
#include "pipewright/ir/text/spelling.h"
#include "pipewright/schedule/problem/costs_json.h"
#include "pipewright/schedule/views/diff.h"
#include "pipewright/schedule/views/table.h"

namespace pipewright::python {
namespace {

ir::Lowering lowering_of(const Policies& policies) {
  ir::Lowering lowering;
  for (const auto& [name, value] : policies) {
    const ir::LoweringPolicy* policy = ir::find_lowering_policy(name);
    if (policy == nullptr) {
      std::vector<std::string_view> names;
      for (const ir::LoweringPolicy& one : ir::lowering_policies()) names.push_back(one.name);
      const std::string hint = ir::did_you_mean(name, names);
      throw std::invalid_argument("there is no policy " + ir::backticked(name) +
                                  (hint.empty() ? "" : "; " + hint));
    }
    if (!policy->set(lowering, value))
      throw std::invalid_argument(name + ": expected " + ir::values_in_words(*policy) + ", got " +
                                  ir::backticked(value));
  }
  return lowering;
}

std::vector<std::string> tokens(const std::vector<ir::Action>& actions) {
  std::vector<std::string> all;
  for (const ir::Action& action : actions)
    all.push_back(action.is_idle() ? "" : ir::to_string(action));
  return all;
}

}  // namespace

Schedule Schedule::make(const std::string& name, const schedules::Shape& shape,
                        const schedule::Costs& costs) {
  schedule::CompileResult result = schedule::compile({.source = name,
                                                      .shape = shape,
                                                      .costs = costs,
                                                      .level = std::nullopt,
                                                      .depth = schedule::Depth::kLower});
  if (!result.ok()) throw ScheduleFailure(result.diagnostics, nullptr);
  return Schedule(std::move(*result.schedule));
}

Schedule Schedule::read(const std::string& name, const std::string& text, int slices,
                        int replicas) {
  const auto source = std::make_shared<const ir::Source>(ir::Source{name, text});
  schedule::CompileResult result =
      schedule::compile({.source = source.get(),
                         .shape = {.slices = slices, .replicas = replicas},
                         .level = std::nullopt,
                         .depth = schedule::Depth::kLower});
  if (!result.ok()) throw ScheduleFailure(result.diagnostics, source.get());
  Schedule schedule(std::move(*result.schedule));
  schedule.source_ = source;
  return schedule;
}

ir::Level Schedule::level() const {
  return std::holds_alternative<ir::Program>(schedule_) ? ir::Level::kComputeComms
                                                        : ir::Level::kComputeOnly;
}

std::vector<std::vector<std::string>> Schedule::rows() const {
  std::vector<std::vector<std::string>> all;
  for (const ir::Row& row : base().rows) all.push_back(tokens(row));
  return all;
}

Policies Schedule::policies() const {
  Policies all;
  for (const ir::LoweringPolicy& policy : ir::lowering_policies()) {
    if (const auto value = policy.get(base().lowering)) all[std::string(policy.name)] = *value;
  }
  return all;
}

Schedule Schedule::with_stages(std::vector<int> recompute, std::vector<int> offload) const {
  ir::AnySchedule other = schedule_;
  std::visit(
      [&](ir::Schedule& schedule) {
        schedule.recompute = std::move(recompute);
        schedule.offload = std::move(offload);
      },
      other);
  return Schedule(std::move(other));
}

schedule::CompileResult Schedule::compile(const Policies& policies, std::optional<ir::Level> level,
                                          schedule::Depth depth) const {
  schedule::CompileRequest request;
  if (source_) {
    request.source = source_.get();
    // Which a CSV does not say.
    request.shape.slices = base().slices;
    request.shape.replicas = base().placement.num_replicas();
  } else {
    request.source = schedule_;
  }
  request.policies = lowering_of(policies);
  request.level = level;
  request.depth = depth;
  return schedule::compile(std::move(request));
}

Schedule Schedule::lower(const Policies& policies) const {
  schedule::CompileResult result =
      compile(policies, ir::Level::kComputeComms, schedule::Depth::kVerify);
  if (!result.ok()) throw ScheduleFailure(result.diagnostics, source_.get());
  return Schedule(std::move(*result.schedule));
}

Schedule Schedule::compute_order() const {
  schedule::CompileResult result = compile({}, ir::Level::kComputeOnly, schedule::Depth::kVerify);
  if (!result.ok()) throw ScheduleFailure(result.diagnostics, source_.get());
  return Schedule(std::move(*result.schedule));
}

Verdict Schedule::verify(const Policies& policies) const {
  const schedule::CompileResult result =
      compile(policies, ir::Level::kComputeComms, schedule::Depth::kCertify);
  return {diagnostics_of(result.diagnostics, source_.get()), result.certificate,
          ir::render(result.diagnostics, source_.get(), {})};
}

std::string Schedule::text(const std::string& format) const {
  std::ostringstream out;
  if (format == "table") {
    schedule::print_table(base(), {}, out);
    return out.str();
  }
  if (const ir::Format* const one = ir::find_format(format)) {
    one->print(schedule_, out);
    return out.str();
  }
  throw std::invalid_argument("format: expected csv, plan, json or table, got " +
                              ir::backticked(format));
}

std::vector<Change> Schedule::diff(const Schedule& other) const {
  std::vector<Change> all;
  for (const schedule::RowChange& change : schedule::changes_of(base().rows, other.base().rows))
    all.push_back({tokens(change.removed), tokens(change.added), tokens(change.moved)});
  return all;
}

schedule::CompileResult Schedule::compiled() const {
  schedule::CompileResult result = compile({}, std::nullopt, schedule::Depth::kVerify);
  if (!result.ok()) throw ScheduleFailure(result.diagnostics, source_.get());
  return result;
}

schedule::Costs costs_of(const std::string& name, const std::string& text) {
  const ir::Source source{name, text};
  ir::Diagnostics diagnostics;
  const auto parsed = schedule::parse_costs(source, &diagnostics);
  if (!parsed) throw ScheduleFailure(diagnostics, &source);
  return parsed->costs;
}

std::vector<schedule::LayerRange> cut_of(const schedule::Costs& costs, const Schedule& schedule) {
  if (costs.layers.empty()) throw std::invalid_argument("costs: expected `layers`, got none");
  ir::Diagnostics diagnostics;
  const std::optional<schedule::Cut> cut = schedule::cut_of(
      costs, schedule.base().cut, {}, schedule.base().placement.num_stages(), &diagnostics);
  if (!cut) throw ScheduleFailure(diagnostics, nullptr);
  return schedule::layer_ranges(*cut);
}

}  // namespace pipewright::python
