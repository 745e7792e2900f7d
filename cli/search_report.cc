#include "pipewright/cli/search_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "pipewright/cli/input.h"
#include "pipewright/cli/search_request.h"
#include "pipewright/cli/simulation.h"

namespace pipewright::cli {
namespace {

namespace search = schedule::search;

std::string memory_text(const search::SearchRequest& request) {
  if (request.memory.bytes)
    return fmt::format("{} bytes per rank", number_text(*request.memory.bytes));
  if (request.memory.activations)
    return activations_text(*request.memory.activations) + " per rank";
  return "no memory limit";
}

// Peaks per rank in the unit of the limit: bytes, of activations only, or activations of one
// microbatch on all stages of the rank.
std::vector<double> memory_per_rank(const search::SearchRequest& request,
                                    const search::SearchResult& result) {
  const schedule::Problem& problem = result.problem;
  std::vector<double> peaks;
  for (int rank = 0; rank < problem.num_ranks(); ++rank) {
    const auto peak = static_cast<double>(result.peak_memory[static_cast<size_t>(rank)]);
    peaks.push_back(request.memory.bytes ? peak * problem.memory_unit
                                         : peak / static_cast<double>(problem.activation_of(rank)));
  }
  return peaks;
}

std::string bound_text(const schedule::Bound& bound) {
  std::string name(bound.name);
  std::ranges::replace(name, '_', ' ');
  std::string text = bound.rank < 0 ? name : fmt::format("{}, rank {}", name, bound.rank);
  if (bound.other >= 0) text += fmt::format(" around rank {}", bound.other);
  return text;
}

std::string gap_text(const search::SearchResult& result) {
  return result.cost_in_ticks == result.bound.value
             ? "optimal"
             : fmt::format("at most {:.2f}% above the optimum", 100 * result.gap());
}

std::string bound_json(const schedule::Problem& problem, const schedule::Bound& bound) {
  std::string terms;
  for (const schedule::BoundTerm& term : bound.terms)
    terms +=
        fmt::format("{}\"{}\": {}", terms.empty() ? "" : ", ", term.name, problem.time(term.value));
  return fmt::format(
      "{{\"value\": {}, \"name\": \"{}\", \"rank\": {}, \"other\": {}, \"terms\": {{{}}}}}",
      problem.time(bound.value), bound.name, bound.rank < 0 ? "null" : std::to_string(bound.rank),
      bound.other < 0 ? "null" : std::to_string(bound.other), terms);
}

std::string robustness_json(const search::SearchResult& result) {
  if (!result.robustness) return "null";
  const search::Robustness& robust = *result.robustness;
  return fmt::format(
      "{{\"mean\": {}, \"percentile_95\": {}, \"slow_rank\": {}, \"slow_links\": {}}}", robust.mean,
      robust.percentile_95, robust.slow_rank, robust.slow_links);
}

}  // namespace

void print_result(const std::string& placement, const search::SearchRequest& request,
                  const search::SearchResult& result, std::ostream& out) {
  const std::string unit = request.costs.unit.empty() ? "" : " " + request.costs.unit;
  out << fmt::format("{}: {}, {}\n", placement, shape_text(result.order), memory_text(request));
  out << fmt::format("cost           {}{}, {}\n", number_text(result.cost), unit, gap_text(result));
  out << fmt::format("bound          {}{}: {}\n",
                     number_text(result.problem.time(result.bound.value)), unit,
                     bound_text(result.bound));
  out << fmt::format("makespan       {}{}\n", number_text(result.makespan), unit);
  out << fmt::format("bubble rate    {:.4f}\n", result.bubble_rate);
  const std::vector<double> peaks = memory_per_rank(request, result);
  const auto [least, most] = std::ranges::minmax(peaks);
  const std::string last =
      request.memory.bytes ? number_text(most) + " bytes of activations" : activations_text(most);
  out << fmt::format("peak memory    {} per rank\n",
                     least == most ? last : fmt::format("{} to {}", number_text(least), last));
  if (request.may_recompute)
    out << fmt::format("recompute      {}\n", recompute_text(result.order));
  out << fmt::format("found by       {}, {} evaluations\n", result.found_by, result.evaluations);
  if (result.robustness) {
    const search::Robustness& robust = *result.robustness;
    out << fmt::format(
        "robustness     noise of {}: makespan +{} on average, 95% below +{}; a rank 5% slower "
        "+{}, transfers twice as slow +{}\n",
        number_text(request.noise), percent_text(robust.mean), percent_text(robust.percentile_95),
        percent_text(robust.slow_rank), percent_text(robust.slow_links));
  }
}

std::string result_json(const std::string& placement, const search::SearchRequest& request,
                        const search::SearchResult& result, std::string_view indent) {
  const std::string members[] = {
      fmt::format("\"cost\": {}", result.cost),
      fmt::format("\"makespan\": {}", result.makespan),
      fmt::format("\"bubble_rate\": {}", result.bubble_rate),
      fmt::format("\"bound\": {}", bound_json(result.problem, result.bound)),
      fmt::format("\"gap\": {}", result.gap()),
      fmt::format("\"evaluations\": {}", result.evaluations),
      fmt::format("\"placement\": \"{}\"", placement),
      fmt::format("\"stages\": {}", result.order.placement.num_stages()),
      fmt::format("\"recompute\": [{}]", fmt::join(result.order.recompute, ", ")),
      fmt::format("\"memory_per_rank\": [{}]", fmt::join(memory_per_rank(request, result), ", ")),
      fmt::format("\"memory_unit\": \"{}\"", request.memory.bytes ? "bytes" : "activations"),
      fmt::format("\"found_by\": \"{}\"", result.found_by),
      fmt::format("\"robustness\": {}", robustness_json(result)),
      fmt::format("\"interrupted\": {}", result.is_cancelled),
  };
  return fmt::format("{}{}", indent, fmt::join(members, fmt::format(",\n{}", indent)));
}

void print_front(const std::vector<search::FrontPoint>& points, std::ostream& out) {
  out << fmt::format("  {:>12}  {:<9}  {:>6}  {:>10}  {:>10}  {:>6}  {:>6}\n", "memory",
                     "placement", "stages", "cost", "bound", "gap", "bubble");
  for (const search::FrontPoint& point : points) {
    const search::SearchResult& result = point.result;
    const double memory =
        point.memory.bytes ? *point.memory.bytes : point.memory.activations.value_or(0);
    const auto bar = static_cast<size_t>(50 * result.bubble_rate + 0.5);
    out << fmt::format("{} {:>12}  {:<9}  {:>6}  {:>10}  {:>10}  {:>6}  {:>6}{}{}\n",
                       point.is_best ? "*" : " ", memory > 0 ? number_text(memory) : "unlimited",
                       point.option.name, point.option.placement.num_stages(),
                       number_text(result.cost), number_text(result.cost / (1 + result.gap())),
                       fmt::format("{:.2f}%", 100 * result.gap()), percent_text(result.bubble_rate),
                       bar > 0 ? "  " : "", std::string(bar, '#'));
  }
  out << "* nothing else found needs no more memory and costs less\n";
}

}  // namespace pipewright::cli
