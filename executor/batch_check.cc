#include "pipewright/executor/batch_check.h"

#include <stdexcept>
#include <string>

namespace pipewright::executor {
namespace {

std::vector<TensorMetas> metas_of_list(const std::vector<Tensors>& list) {
  std::vector<TensorMetas> metas;
  for (const Tensors& tensors : list) {
    metas.push_back(metas_of(tensors));
    for (TensorMeta& meta : metas.back()) meta.requires_grad = false;  // inputs are detached
  }
  return metas;
}

void check_count(const std::vector<Tensors>& list, int expected, const char* what) {
  if (list.empty() || list.size() == static_cast<size_t>(expected)) return;
  throw std::invalid_argument(std::string(what) + ": expected " + std::to_string(expected) +
                              " microbatches, got " + std::to_string(list.size()));
}

void check_shapes(const std::vector<Tensors>& list, const std::vector<TensorMetas>& first,
                  const char* what) {
  if (list.empty() || first.empty()) return;
  const std::vector<TensorMetas> found = metas_of_list(list);
  for (size_t m = 0; m < found.size(); ++m) {
    const std::string of_microbatch = " of microbatch " + std::to_string(m);
    if (found[m].size() != first[m].size()) {
      throw std::invalid_argument(std::string(what) + "s" + of_microbatch + ": expected " +
                                  std::to_string(first[m].size()) +
                                  " tensors as in the first step, got " +
                                  std::to_string(found[m].size()));
    }
    for (size_t i = 0; i < found[m].size(); ++i) {
      if (found[m][i] == first[m][i]) continue;
      throw std::invalid_argument(std::string(what) + " " + std::to_string(i) + of_microbatch +
                                  ": expected " + to_string(first[m][i]) +
                                  " as in the first step, got " + to_string(found[m][i]));
    }
  }
}

void describe_list(const std::vector<Tensors>& list, const char* what,
                   std::vector<std::string>& lines) {
  const std::vector<TensorMetas> found = metas_of_list(list);
  for (size_t m = 0; m < found.size(); ++m) {
    for (size_t i = 0; i < found[m].size(); ++i) {
      lines.push_back(std::string(what) + " " + std::to_string(i) + " of microbatch " +
                      std::to_string(m) + ", " + to_string(found[m][i]));
    }
  }
}

}  // namespace

void BatchCheck::check(const Microbatches& microbatches, bool with_backward) const {
  check_count(microbatches.inputs, options_.num_microbatches, "inputs");
  check_count(microbatches.extra, options_.num_microbatches, "extra inputs");
  check_count(microbatches.targets, options_.num_microbatches, "targets");
  if (microbatches.inputs.empty() && options_.needs_inputs) {
    throw std::invalid_argument(
        "inputs: expected microbatches on the rank of the first stage, got none");
  }
  if (microbatches.targets.empty() && options_.needs_targets && with_backward) {
    throw std::invalid_argument(
        "targets: expected microbatches on the rank of the last stage, got none");
  }
  const std::optional<Shapes>& first = first_[with_backward];
  if (!first || !options_.same_shapes || !with_backward) return;
  if (options_.needs_inputs) check_shapes(microbatches.inputs, first->inputs, "input");
  check_shapes(microbatches.extra, first->extra, "extra input");
  if (options_.needs_targets) check_shapes(microbatches.targets, first->targets, "target");
}

std::vector<std::string> BatchCheck::describe(const Microbatches& microbatches,
                                              bool with_backward) const {
  std::vector<std::string> lines;
  if (first_[with_backward] && options_.same_shapes && with_backward) return lines;
  if (options_.needs_inputs) describe_list(microbatches.inputs, "input", lines);
  describe_list(microbatches.extra, "extra input", lines);
  if (options_.needs_targets) describe_list(microbatches.targets, "target", lines);
  return lines;
}

void BatchCheck::remember(const Microbatches& microbatches, bool with_backward) {
  std::optional<Shapes>& first = first_[with_backward];
  if (!first || !with_backward) first = shapes_of(microbatches);
}

bool BatchCheck::differs_from_last_evaluation(const Microbatches& microbatches) const {
  return first_[false] && first_[false] != shapes_of(microbatches);
}

BatchCheck::Shapes BatchCheck::shapes_of(const Microbatches& microbatches) const {
  const auto needed = [](const std::vector<Tensors>& list, bool needs) {
    return needs ? metas_of_list(list) : std::vector<TensorMetas>();
  };
  return {needed(microbatches.inputs, options_.needs_inputs), metas_of_list(microbatches.extra),
          needed(microbatches.targets, options_.needs_targets)};
}

}  // namespace pipewright::executor
