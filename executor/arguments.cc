#include "pipewright/executor/arguments.h"

#include <algorithm>
#include <numeric>

#include "pipewright/executor/coordinator.h"
#include "pipewright/executor/program/program.h"
#include "pipewright/schedule/verify/verify.h"

namespace pipewright::executor {
namespace {

// "[0, 2]".
std::string bracketed(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return "[" + text + "]";
}

void check_program(const ir::Program& program, bool allow_unverified) {
  const std::string problems =
      problems_of(program, allow_unverified ? Check::kShape : Check::kVerify);
  if (!problems.empty()) throw std::invalid_argument("the program is not valid:\n" + problems);
}

void check_stages(const ir::Placement& placement, int rank,
                  const std::map<int, LocalStage>& stages) {
  const std::vector<int> expected = placement.stages_of(rank);
  const auto fail = [&](int stage, const char* problem) {
    throw std::invalid_argument("stage " + std::to_string(stage) + problem + ", expected stages " +
                                bracketed(expected) + " on rank " + std::to_string(rank));
  };
  for (const auto& [stage, local] : stages) {
    if (std::ranges::find(expected, stage) == expected.end())
      fail(stage, " does not belong to this rank");
    if (!local.stage) fail(stage, " is null");
  }
  for (const int stage : expected) {
    if (!stages.contains(stage)) fail(stage, " is missing");
  }
}

void check_dynamic_shapes(const ir::Program& program, const ExecutorOptions& options) {
  if (!options.dynamic_shapes) return;
  if (options.output_metas)
    throw std::invalid_argument("dynamic_shapes: expected no output_metas, got a function");
  const ir::ChannelModel model = schedule::options_of(program.lowering).channels;
  if (model != ir::ChannelModel::kEdge) {
    throw std::invalid_argument("dynamic_shapes: expected the channel model `edge`, got `" +
                                std::string(ir::name(model)) + "`");
  }
}

}  // namespace

std::vector<int> ranks_of(const ir::Program& program, comms::World& world,
                          const ExecutorOptions& options, const std::string& id) {
  const int expected = program.placement.num_ranks();
  std::vector<int> ranks = options.ranks;
  if (ranks.empty()) {
    ranks.resize(static_cast<size_t>(expected));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  const bool fits =
      ranks.size() == static_cast<size_t>(expected) && std::ranges::all_of(ranks, [&](int rank) {
        return rank >= 0 && rank < world.size() && std::ranges::count(ranks, rank) == 1;
      });
  std::string error;
  if (!fits) {
    error = "ranks of the program: expected " + std::to_string(expected) + " ranks of a world of " +
            std::to_string(world.size()) + ", got " + bracketed(ranks);
  } else if (std::ranges::find(ranks, world.rank()) == ranks.end()) {
    error = "world rank " + std::to_string(world.rank()) + " is not assigned a program rank";
  }
  if (error.empty()) return ranks;
  Coordinator::refuse(world, id, error);
  throw std::invalid_argument(error);
}

int rank_in(const std::vector<int>& ranks, const comms::World& world) {
  return static_cast<int>(std::ranges::find(ranks, world.rank()) - ranks.begin());
}

void check_arguments(const ir::Program& program, int rank, const std::map<int, LocalStage>& stages,
                     const ExecutorOptions& options) {
  check_program(program, options.allow_unverified);
  check_stages(program.placement, rank, stages);
  for (const auto& [index, local] : stages) {
    if (!local.stage->set_recompute(ir::recomputes(program, index)))
      throw std::invalid_argument("stage " + std::to_string(index) +
                                  ": expected one that recomputes, as the program says, got one "
                                  "without Stage::set_recompute");
    if (!local.stage->set_offload(!options.device.is_cpu() && ir::offloads(program, index)))
      throw std::invalid_argument("stage " + std::to_string(index) +
                                  ": expected one that offloads, as the program says, got one "
                                  "without Stage::set_offload");
    if (!local.stage->set_slices(program.slices))
      throw std::invalid_argument("stage " + std::to_string(index) +
                                  ": expected one that runs slices of microbatches, of which the "
                                  "program has " +
                                  std::to_string(program.slices) +
                                  ", got one without ModuleStage::set_slice_cache");
  }
  if (program.placement.num_replicas() > 1 && ir::has_backward(program) && !options.tied)
    throw std::invalid_argument(
        "tied: expected the parameters of both replicas of each stage (TiedParameters), got none");
  if (stages.contains(program.placement.num_stages() - 1) && ir::has_backward(program) &&
      !options.loss) {
    throw std::invalid_argument(
        "loss: expected a function on the rank of the last stage, got none");
  }
  check_dynamic_shapes(program, options);
}

std::vector<DigestPart> digest_of(const ir::Program& program, const ExecutorOptions& options) {
  const auto flag = [](const char* name, bool value) {
    return DigestPart{name, value ? "true" : "false"};
  };
  std::string extra_of_dims;
  for (const auto& [stage, dims] : options.extra_of_dims)
    extra_of_dims += "stage " + std::to_string(stage) + ": " + to_string(dims) + " ";
  return digest_of(program, {flag("scale_grads", options.scale_grads),
                             flag("allow_unverified", options.allow_unverified),
                             flag("weight_free_w", program.lowering.weight_free_w.value_or(false)),
                             flag("output_metas given", options.output_metas != nullptr),
                             flag("dynamic_shapes", options.dynamic_shapes),
                             {"slice_dim", std::to_string(options.slice_dim)},
                             {"input_dims", to_string(options.input_dims)},
                             {"extra_dims", to_string(options.extra_dims)},
                             {"extra_of_dims", extra_of_dims},
                             {"target_dims", to_string(options.target_dims)},
                             {"output_dims", to_string(options.output_dims)}});
}

std::vector<c10d::Backend*> groups_of(const std::map<int, LocalStage>& stages,
                                      const comms::BackendPtr& same_batch) {
  std::vector<c10d::Backend*> groups;
  for (const auto& [index, stage] : stages) {
    c10d::Backend* group = stage.data_parallel ? stage.data_parallel->group() : nullptr;
    // A group without an identity was not made by a World: its ranks cannot meet in the store.
    const bool known = group && !group->getGroupUid().empty();
    if (known && std::ranges::find(groups, group) == groups.end()) groups.push_back(group);
  }
  if (same_batch) groups.push_back(same_batch.get());
  return groups;
}

}  // namespace pipewright::executor
