#include "pipewright/executor/batch_check.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>

#include "pipewright/comms/failure/failure_domain.h"

namespace pipewright::executor {
namespace {

std::string name_of(comms::World& world, const c10d::Backend& group) {
  if (group.getGroupUid().empty())
    throw std::invalid_argument("same_batch: expected a group that a World made");
  return world.unique_name("executor." + group.getGroupUid() + ".batch");
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

BatchComparison::BatchComparison(comms::World& world, const c10d::Backend& group)
    : world_(world), name_(name_of(world, group)) {}

std::optional<BatchComparison::Lines> BatchComparison::first(
    const std::vector<std::string>& lines) {
  if (const int now = world_.failures().generation(); now != generation_) {
    generation_ = now;
    number_ = 0;
  }
  const std::string prefix = name_ + "/" + std::to_string(generation_) + "/";
  const int64_t number = number_++;
  if (lines.empty()) return std::nullopt;
  std::string text = std::to_string(world_.rank()) + "\n";
  for (const std::string& line : lines) text += line + "\n";
  const std::vector<uint8_t> found = world_.store()->compareSet(
      prefix + std::to_string(number), {}, std::vector<uint8_t>(text.begin(), text.end()));
  std::vector<std::string> theirs = split_lines({found.begin(), found.end()});
  std::string rank = theirs.at(0);
  if (rank == std::to_string(world_.rank())) {
    // All ranks have voted since then.
    if (number > 0) world_.store()->deleteKey(prefix + std::to_string(number - 1));
    return std::nullopt;
  }
  theirs.erase(theirs.begin());
  return Lines{std::move(rank), std::move(theirs)};
}

std::string BatchComparison::difference(const std::vector<std::string>& lines) {
  const std::optional<Lines> theirs = first(lines);
  if (!theirs) return "";
  for (size_t i = 0; i < std::max(lines.size(), theirs->lines.size()); ++i) {
    const std::string got = i < lines.size() ? lines[i] : "nothing";
    const std::string expected = i < theirs->lines.size() ? theirs->lines[i] : "nothing";
    if (got != expected)
      return "expected " + expected + " as on rank " + theirs->rank + ", got " + got;
  }
  return "";
}

namespace {

std::vector<TensorMetas> metas_of_list(const std::vector<Tensors>& list) {
  std::vector<TensorMetas> metas;
  for (const Tensors& tensors : list) {
    metas.push_back(metas_of(tensors));
    for (TensorMeta& meta : metas.back()) {
      meta.requires_grad = false;  // inputs are detached
      meta.memory_format = at::MemoryFormat::Contiguous;
    }
  }
  return metas;
}

void check_count(const std::vector<Tensors>& list, int expected, const std::string& what) {
  if (list.empty() || list.size() == static_cast<size_t>(expected)) return;
  throw std::invalid_argument(what + "s: expected " + std::to_string(expected) +
                              " microbatches, got " + std::to_string(list.size()));
}

void check_shapes(const std::vector<Tensors>& list, const std::vector<TensorMetas>& first,
                  const std::string& what) {
  const std::string help =
      "; before other shapes, call forget_shapes() on all ranks, or set dynamic_shapes";
  const std::vector<TensorMetas> found = metas_of_list(list);
  for (size_t m = 0; m < found.size(); ++m) {
    const std::string of_microbatch = " of microbatch " + std::to_string(m);
    if (found[m].size() != first[m].size()) {
      throw std::invalid_argument(
          what + "s" + of_microbatch + ": expected " + std::to_string(first[m].size()) +
          " tensors as in the first step, got " + std::to_string(found[m].size()) + help);
    }
    for (size_t i = 0; i < found[m].size(); ++i) {
      if (found[m][i] == first[m][i]) continue;
      throw std::invalid_argument(what + " " + std::to_string(i) + of_microbatch + ": expected " +
                                  to_string(first[m][i]) + " as in the first step, got " +
                                  to_string(found[m][i]) + help);
    }
  }
}

// The value of `key`, or an empty one.
template <typename Value>
Value value_of(const std::map<int, Value>& map, int key) {
  const auto found = map.find(key);
  return found == map.end() ? Value() : found->second;
}

std::string name_of_extra(int stage) { return "stage " + std::to_string(stage) + ": extra input"; }

// How to pass a tensor that has no rows.
std::string help_for(const std::string& option) {
  return "; for one tensor for all microbatches set nullopt in " + option +
         ", for one per microbatch use Batch::per_microbatch";
}

// "extra input 0: expected size 8 along dimension 0, the rows of input 0 on rank 0, got 5"; without
// a rank if both tensors are on the same one.
std::string difference(const Rows& expected, const std::string& on_rank, const Rows& got) {
  return got.tensor + ": expected size " + std::to_string(expected.count) + " along dimension " +
         std::to_string(got.dim) + ", the rows of " + expected.tensor + on_rank + ", got " +
         std::to_string(got.count) + help_for(got.option);
}

}  // namespace

std::optional<WrongRows> compare_rows(BatchComparison& comparison, int rank,
                                      const std::optional<Rows>& rows) {
  std::vector<std::string> lines;
  if (rows)
    lines = {std::to_string(rows->count), std::to_string(rows->dim), rows->tensor, rows->option};
  const std::optional<BatchComparison::Lines> first = comparison.first(lines);
  if (!first || first->lines[0] == lines[0]) return std::nullopt;
  const Rows other{std::stoll(first->lines[0]), std::stoi(first->lines[1]), first->lines[2],
                   first->lines[3]};
  const int other_rank = std::stoi(first->rank);
  if (other_rank < rank)
    return WrongRows{rank, difference(other, " on rank " + first->rank, *rows)};
  return WrongRows{other_rank, difference(*rows, " on rank " + std::to_string(rank), other)};
}

bool BatchCheck::has_stage(int stage) const {
  if (stage < 0 || stage >= options_.num_stages) {
    throw std::invalid_argument("extra_of: expected a stage from 0 to " +
                                std::to_string(options_.num_stages - 1) + ", got " +
                                std::to_string(stage));
  }
  return std::ranges::find(options_.stages, stage) != options_.stages.end();
}

SplitBatch BatchCheck::split(const Batch& batch) const {
  SplitBatch result;
  const auto split_list = [&](const Tensors& whole, const std::vector<Tensors>& per_microbatch,
                              const SplitDims& dims, const std::string& what,
                              const std::string& option, const std::string& help) {
    check_count(per_microbatch, options_.num_microbatches, what);
    if (whole.empty()) return per_microbatch;
    std::vector<Tensors> list =
        split_batch(whole, options_.num_microbatches, dims, what, help, options_.slices);
    for (size_t i = 0; i < whole.size(); ++i) {
      const std::optional<int> dim = dim_of(dims, i);
      if (!dim || !whole[i].defined()) continue;
      const Rows rows{whole[i].size(*dim), *dim, what + " " + std::to_string(i), option};
      if (!result.rows) result.rows = rows;
      if (rows.count != result.rows->count)
        throw std::invalid_argument(difference(*result.rows, "", rows));
    }
    for (size_t m = 0; m < per_microbatch.size(); ++m)
      list[m].insert(list[m].end(), per_microbatch[m].begin(), per_microbatch[m].end());
    return list;
  };
  const BatchDims& dims = options_.dims;
  const Microbatches& ready = batch.per_microbatch;
  Microbatches& parts = result.microbatches;
  if (has_stage(0))
    parts.inputs = split_list(batch.inputs, ready.inputs, dims.inputs, "input", "input_dims", "");
  if (options_.needs_targets) {
    parts.targets =
        split_list(batch.targets, ready.targets, dims.targets, "target", "target_dims", "");
  }
  parts.extra = split_list(batch.extra, ready.extra, dims.extra, "extra input", "extra_dims",
                           help_for("extra_dims"));
  std::set<int> stages;
  for (const auto& [stage, tensors] : batch.extra_of) stages.insert(stage);
  for (const auto& [stage, list] : ready.extra_of) stages.insert(stage);
  for (const int stage : stages) {
    if (!has_stage(stage)) continue;
    parts.extra_of[stage] =
        split_list(value_of(batch.extra_of, stage), value_of(ready.extra_of, stage),
                   value_of(dims.extra_of, stage), name_of_extra(stage), "extra_of_dims",
                   help_for("extra_of_dims"));
  }
  return result;
}

std::vector<BatchCheck::List> BatchCheck::lists_of(const Microbatches& microbatches) const {
  std::vector<List> lists;
  const auto add = [&](const std::string& what, const std::vector<Tensors>& list) {
    if (!list.empty()) lists.push_back({what, list});
  };
  if (has_stage(0)) add("input", microbatches.inputs);
  add("extra input", microbatches.extra);
  for (const auto& [stage, list] : microbatches.extra_of)
    if (has_stage(stage)) add(name_of_extra(stage), list);
  if (options_.needs_targets) add("target", microbatches.targets);
  return lists;
}

void BatchCheck::check(const Microbatches& microbatches, bool with_backward) const {
  const std::vector<List> lists = lists_of(microbatches);
  for (const List& list : lists)
    check_count(list.microbatches, options_.num_microbatches, list.what);
  if (microbatches.inputs.empty() && has_stage(0)) {
    throw std::invalid_argument(
        "inputs: expected microbatches on the rank of the first stage, got none");
  }
  if (microbatches.targets.empty() && options_.needs_targets && with_backward) {
    throw std::invalid_argument(
        "targets: expected microbatches on the rank of the last stage, got none");
  }
  if (!is_known(with_backward)) return;
  for (const List& list : lists) {
    const auto first = first_[with_backward]->find(list.what);
    if (first != first_[with_backward]->end())
      check_shapes(list.microbatches, first->second, list.what);
  }
}

std::vector<std::string> BatchCheck::describe(const Microbatches& microbatches) const {
  std::vector<std::string> lines;
  for (const List& list : lists_of(microbatches)) {
    const std::vector<TensorMetas> found = metas_of_list(list.microbatches);
    for (size_t m = 0; m < found.size(); ++m) {
      for (size_t i = 0; i < found[m].size(); ++i) {
        lines.push_back(list.what + " " + std::to_string(i) + " of microbatch " +
                        std::to_string(m) + ", " + to_string(found[m][i]));
      }
    }
  }
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
  Shapes shapes;
  for (const List& list : lists_of(microbatches))
    shapes.emplace(list.what, metas_of_list(list.microbatches));
  return shapes;
}

}  // namespace pipewright::executor
