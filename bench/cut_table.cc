// The search for cuts on 24 problems: models with uneven heads, with sparse layers (MoE), and on
// ranks of different speed and memory. Prints a row per problem: the cost with the even cut, with
// that of least maximum and with the cut that was found, and the bound for all cuts.
//
//   bazel run //bench:cut_table             all problems, with a budget of 1e7 evaluated actions
//   bazel run //bench:cut_table -- moe      those with `moe` in their name
//   bazel run //bench:cut_table -- moe 1e8  with this budget
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/schedule/problem/layers.h"
#include "pipewright/schedule/search/cuts.h"

namespace pipewright::schedule::search {
namespace {

LayerRun layer(double work, double activation, int count = 1) {
  LayerRun run;
  run.count = count;
  run[&Costs::forward] = work;
  run[&Costs::backward_input] = 1.1 * work;
  run[&Costs::backward_weight] = 0.8 * work;
  run[&Costs::activation_bytes] = 10 * activation;
  run[&Costs::weight_input_bytes] = 4 * activation;
  return run;
}

struct Model {
  std::string name;
  std::vector<LayerRun> layers;
};

// The work of a layer is 1 unless it says otherwise; an embedding takes little and stores little.
std::vector<Model> models() {
  std::vector<LayerRun> alternating;
  for (int pair = 0; pair < 16; ++pair) {
    alternating.push_back(layer(1, 1));
    alternating.push_back(layer(2.2, 1.6));
  }
  alternating.push_back(layer(3, 1));
  return {{"head", {layer(1, 1, 23), layer(2.5, 0.7)}},
          {"dear_head", {layer(0.1, 0.1), layer(1, 1, 30), layer(6, 2)}},
          {"moe", {layer(0.1, 0.1), layer(1, 1, 3), layer(1.7, 1.8, 29), layer(2, 1)}},
          {"moe_alternating", alternating}};
}

struct Case {
  std::string name;
  SearchRequest request;
};

std::vector<Case> cases() {
  struct Shape {
    std::string name;
    ir::Placement placement;
    int microbatches;
    std::optional<double> memory;  // activations
  };
  const std::vector<Shape> shapes = {{"loop 4", ir::Placement::loop(4, 4), 8, {}},
                                     {"v 4 memory 3", ir::Placement::v(4, 8), 16, 3},
                                     {"loop 8 memory 8", ir::Placement::loop(8, 8), 16, 8},
                                     {"v 8 memory 5", ir::Placement::v(8, 16), 24, 5}};
  std::vector<Case> all;
  const auto add = [&](const Model& model, const Shape& shape) {
    SearchRequest request{.placement = shape.placement, .num_microbatches = shape.microbatches};
    request.costs.layers = model.layers;
    request.costs.link.latency = 0.2;
    if (shape.memory) request.memory.activations = *shape.memory;
    all.push_back({model.name + " " + shape.name, std::move(request)});
    return &all.back().request;
  };
  for (const Model& model : models()) {
    for (const Shape& shape : shapes) add(model, shape);
  }
  for (const Model& model : {models()[0], models()[2]}) {
    for (const Shape& shape : {shapes[0], shapes[1]}) {
      add({"speeds " + model.name, model.layers}, shape)->costs.rank_scale = {1, 1.5, 1, 0.8};
      SearchRequest* memory = add({"memories " + model.name, model.layers}, shape);
      double whole = 0;
      for (const LayerRun& run : model.layers) whole += run.count * run[&Costs::activation_bytes];
      memory->memory = {.bytes = PerRank({whole, whole / 2, whole, whole / 3})};
    }
  }
  return all;
}

std::string cost_text(const std::optional<double>& cost) {
  return cost ? fmt::format("{:.2f}", *cost) : "no memory";
}

// The cost of the best schedule for one cut, if it fits.
std::optional<double> cost_of(const SearchRequest& request, const Cut& cut) {
  const SearchRequest one = with_cut(request, cut);
  if (shortage_of(problem_of(one))) return std::nullopt;
  return search_schedule(one).cost;
}

void search_and_print(Case problem, int64_t evaluations) {
  SearchRequest& request = problem.request;
  request.evaluations = evaluations;
  const auto even =
      cost_of(request, even_cut(num_layers(request.costs), request.placement.num_stages()));
  const auto least_maximum = cost_of(request, least_maximum_cut(request.costs, request.placement));
  const auto start = std::chrono::steady_clock::now();
  const auto found = search_cuts(request);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  if (!found) {
    fmt::print("{:<32} no cut found that fits\n", problem.name);
    return;
  }
  const SearchResult& result = found->result;
  fmt::print(
      "{:<32} even {:>9}  least maximum {:>9}  found {:>8.2f}  bound {:>8.2f}  gap {:>6.2f}%"
      "  {:>6.2f} s\n",
      problem.name, cost_text(even), cost_text(least_maximum), result.cost,
      result.problem.time(result.bound.value), 100 * result.gap(), time.count());
  std::fflush(stdout);
}

}  // namespace
}  // namespace pipewright::schedule::search

int main(int argc, char** argv) {
  using namespace pipewright::schedule::search;
  const std::string filter = argc > 1 ? argv[1] : "";
  const auto evaluations =
      argc > 2 ? static_cast<int64_t>(std::strtod(argv[2], nullptr)) : int64_t{10'000'000};
  for (const Case& problem : cases()) {
    if (problem.name.find(filter) != std::string::npos) search_and_print(problem, evaluations);
  }
}
