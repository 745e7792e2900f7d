#include "pipewright/cli/drift_report.h"

#include <fmt/format.h>

#include <cmath>
#include <ostream>

#include "pipewright/ir/text/action_text.h"

namespace pipewright::cli {
namespace {

using schedule::Drift;

Drift drift_of(const RunPair& runs) {
  return schedule::drift_of(runs.schedule, runs.predicted.timeline, runs.measured.timeline,
                            runs.baseline);
}

// "+4.2%"; "new" for what was predicted to take no time.
std::string deviation(double predicted, double measured) {
  if (ir::without_rounding(measured - predicted, measured) == 0) return "=";
  if (predicted == 0) return "new";
  return fmt::format("{:+.1f}%", 100 * (measured / predicted - 1));
}

const ir::Action& action_at(const RunPair& runs, const Drift::Outlier& one) {
  return runs.schedule.rows[static_cast<size_t>(one.rank)][static_cast<size_t>(one.step)];
}

void print_totals(const RunPair& runs, std::ostream& out) {
  const std::string& unit = runs.measured.costs.unit;
  out << fmt::format("{:<22}  {:>10}  {:>10}  {:>9}\n", "", runs.first_name, runs.second_name,
                     "deviation");
  const auto line = [&](const std::string& what, double predicted, double measured) {
    out << fmt::format("{:<22}  {:>10}  {:>10}  {:>9}\n", what, number_text(predicted),
                       number_text(measured), deviation(predicted, measured));
  };
  const schedule::Report &before = runs.predicted.report, &after = runs.measured.report;
  line(fmt::format("makespan ({})", unit), before.makespan, after.makespan);
  line(fmt::format("cost ({})", unit), before.cost, after.cost);
  const auto rounded = [](double rate) { return std::round(1e4 * rate) / 1e4; };
  line("bubble rate", rounded(before.bubble_rate), rounded(after.bubble_rate));
}

// "12.5", or "<=12.5" for an upper bound.
std::string time_text(double time, bool is_bound) {
  return (is_bound ? "<=" : "") + number_text(time);
}

// A deviation says something only of times that are known, and if it adds up to at least 0.1% of
// the makespan.
std::string group_deviation(const Drift::Group& group, double makespan) {
  if (group.predicted_is_bound || group.measured_is_bound) return "-";
  const std::string text = deviation(group.predicted, group.measured);
  const double in_all =
      static_cast<double>(group.actions) * std::abs(group.measured - group.predicted);
  return text == "=" || in_all >= 1e-3 * makespan ? text : "~";
}

void print_groups(const RunPair& runs, const Drift& drift, std::ostream& out) {
  out << fmt::format("\n{:<12}  {:>5}  {:>7}  {:>10}  {:>10}  {:>9}\n", "mean time of", "rank",
                     "actions", runs.first_name, runs.second_name, "deviation");
  bool sends = false;
  for (const Drift::Group& group : drift.groups) {
    const bool is_send = group.to >= 0;
    if (group.predicted == 0 && group.measured == 0) continue;
    if (is_send && !sends) out << "shortest transfer\n";
    sends |= is_send;
    out << fmt::format(
        "{:<12}  {:>5}  {:>7}  {:>10}  {:>10}  {:>9}\n", ir::info(group.kind).token,
        is_send ? fmt::format("{}->{}", group.rank, group.to) : std::to_string(group.rank),
        group.actions, time_text(group.predicted, group.predicted_is_bound),
        time_text(group.measured, group.measured_is_bound),
        group_deviation(group, runs.measured.report.makespan));
  }
}

void print_outliers(const RunPair& runs, const Drift& drift, std::ostream& out) {
  if (drift.outliers.empty()) return;
  out << fmt::format("\n{:<22}  {:>4}  {:>4}  {:>10}  {:>10}  {:>10}\n", "largest differences",
                     "rank", "step", runs.first_name, runs.second_name, "difference");
  for (const Drift::Outlier& one : drift.outliers)
    out << fmt::format("{:<22}  {:>4}  {:>4}  {:>10}  {:>10}  {:>+10.4g}\n",
                       ir::to_string(action_at(runs, one)), one.rank, one.step,
                       number_text(one.predicted), number_text(one.measured),
                       one.measured - one.predicted);
}

void print_slow_links(const RunPair& runs, const Drift& drift, std::ostream& out) {
  if (!drift.slow_links.empty()) out << '\n';
  for (const Drift::Group& link : drift.slow_links) {
    const std::string& unit = runs.measured.costs.unit;
    out << fmt::format(
        "slow link: rank {} to rank {}: the shortest {} takes {}{}, {:.1f}x as long as {}\n",
        link.rank, link.to, ir::info(link.kind).token, number_text(link.measured), unit_text(unit),
        link.measured / link.predicted, runs.first_name);
  }
}

}  // namespace

void print_drift(const RunPair& runs, std::ostream& out) {
  const Drift drift = drift_of(runs);
  print_totals(runs, out);
  print_groups(runs, drift, out);
  print_outliers(runs, drift, out);
  print_slow_links(runs, drift, out);
  const bool has_prediction = runs.baseline != schedule::Baseline::kMedianOfKind;
  const std::string than = has_prediction
                               ? fmt::format("{}, relative to the median rank", runs.first_name)
                               : "the median rank";
  if (drift.straggler) {
    // Without a prediction, only other stages of the rank could tell.
    const bool is_certain =
        has_prediction || runs.schedule.placement.stages_of(*drift.straggler).size() > 1;
    out << fmt::format("\nstraggler: rank {} computes {:.2f}x as long as {}{}\n", *drift.straggler,
                       drift.slowness[static_cast<size_t>(*drift.straggler)], than,
                       is_certain ? "" : ", unless its only stage has more work");
  } else {
    out << fmt::format("\nno straggler: no rank computes {}x as long as {}\n",
                       schedule::kStragglerSlowness, than);
  }
}

Json drift_json(const RunPair& runs) {
  const Drift drift = drift_of(runs);
  const auto totals_json = [](const schedule::Report& report) {
    return Json{
        {"makespan", report.makespan}, {"cost", report.cost}, {"bubble_rate", report.bubble_rate}};
  };
  const auto group_json = [](const Drift::Group& one) {
    return Json{{"kind", ir::info(one.kind).token},
                {"rank", one.rank},
                {"to", rank_json(one.to)},
                {"actions", one.actions},
                {"predicted", one.predicted},
                {"measured", one.measured},
                {"predicted_is_bound", one.predicted_is_bound},
                {"measured_is_bound", one.measured_is_bound}};
  };
  const auto outlier_json = [&](const Drift::Outlier& one) {
    return Json{{"rank", one.rank},
                {"step", one.step},
                {"action", ir::to_string(action_at(runs, one))},
                {"predicted", one.predicted},
                {"measured", one.measured}};
  };
  return {{"unit", runs.measured.costs.unit},
          {"predicted", totals_json(runs.predicted.report)},
          {"measured", totals_json(runs.measured.report)},
          {"groups", list_json(drift.groups, group_json)},
          {"largest_differences", list_json(drift.outliers, outlier_json)},
          {"slow_links", list_json(drift.slow_links, group_json)},
          {"slowness", drift.slowness},
          {"straggler", or_null(drift.straggler)}};
}

}  // namespace pipewright::cli
