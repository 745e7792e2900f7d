#include "pipewright/schedule/search/words.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "pipewright/ir/check.h"

namespace pipewright::schedule::search {
namespace {

using ir::ActionKind;

// The kind of action of a letter: with an unsplit backward, B for an I.
ActionKind kind_of(const Problem& problem, Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return ActionKind::kForward;
    case Pass::kInput:
      return problem.splits_backward ? ActionKind::kBackwardInput : ActionKind::kBackward;
    case Pass::kWeight:
      return ActionKind::kBackwardWeight;
  }
  return ActionKind::kIdle;
}

// The letters of one part of an action, which is an F, B, I or W: two for a B of a problem that
// splits backwards.
void append(const Problem& problem, ir::ActionPart part, Word* word) {
  const ActionKind kind = part.kind();
  const int instance = problem.placement.instances().of(part.stage(), part.microbatch());
  const auto add = [&](Pass pass) { word->push_back(letter(instance, pass)); };
  if (kind == ActionKind::kForward) add(Pass::kForward);
  if (ir::gives_input_gradient(kind)) add(Pass::kInput);
  if (ir::completes_backward(kind) && problem.splits_backward) add(Pass::kWeight);
}

bool has_earlier_pass(Letter a, Letter b) { return pass_of(a) < pass_of(b); }

}  // namespace

std::vector<LetterInfo> letters_of(const Problem& problem) {
  const int stages = problem.num_instances();
  PW_CHECK(stages <= kMaxSearchStages, "a problem has at most kMaxSearchStages stages");
  std::vector<LetterInfo> letters(3 * static_cast<size_t>(stages));
  for (int stage = 0; stage < stages; ++stage) {
    const StageWork& work = problem.work(stage);
    const int rank = problem.placement.rank_of_instance(stage);
    const int of_model = problem.placement.stage_of_instance(stage);
    const bool is_last = of_model + 1 == problem.num_stages();
    const auto number = [](int of, Pass pass) { return static_cast<int>(letter(of, pass)); };
    const int f = number(stage, Pass::kForward), i = number(stage, Pass::kInput);
    LetterInfo& forward = letters[letter(stage, Pass::kForward)];
    LetterInfo& input = letters[letter(stage, Pass::kInput)];
    forward = {.time = work.forward, .unlocks = i, .rank = rank};
    input = {.time = work.backward_input, .need = f, .rank = rank};
    input.needs_last_slice = problem.slices > 1 && is_last;
    letters[letter(stage, Pass::kWeight)] = {.time = work.backward_weight, .need = i, .rank = rank};
    if (of_model > 0) {
      forward.need = number(stage - 1, Pass::kForward);
      forward.delay = problem.work(stage - 1).output_transfer;
      input.unlocks = number(stage - 1, Pass::kInput);
    }
    if (!is_last) {
      forward.unlocks = number(stage + 1, Pass::kForward);
      input.need = number(stage + 1, Pass::kInput);
      input.delay = problem.work(stage + 1).gradient_transfer;
      if (problem.microbatch_scale.empty())
        input.delay -= work.recomputation;
      else
        input.recomputes = work.recomputation > 0;
    }
  }
  return letters;
}

MemoryUse memory_use(const StageWork& work, Pass pass, bool is_whole) {
  const Memory left = is_whole ? 0 : work.weight_input;  // from the end of I to that of W
  switch (pass) {
    case Pass::kForward:
      return {work.activation, 0};
    case Pass::kInput:
      return {left - work.activation,
              std::max<Memory>(0, work.activation + work.restored() - left)};
    case Pass::kWeight:
      return {-left, left};
  }
  return {};
}

Words one_at_a_time(const Problem& problem) {
  Words words(static_cast<size_t>(problem.num_ranks()));
  const auto append_one = [&](std::span<const int> stages, Word* word) {
    for (int slice = 0; slice < problem.slices; ++slice)
      for (const int stage : stages) word->push_back(letter(stage, Pass::kForward));
    for (int slice = 0; slice < problem.slices; ++slice) {
      for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {
        word->push_back(letter(*stage, Pass::kInput));
        if (problem.splits_backward) word->push_back(letter(*stage, Pass::kWeight));
      }
    }
  };
  for (int rank = 0; rank < problem.num_ranks(); ++rank) {
    const std::vector<int> all = problem.placement.instances_of(rank);
    // The replicas in turn.
    const auto second = std::ranges::lower_bound(all, problem.num_stages());
    for (int first = 0; first < problem.runs_per_instance(); first += problem.slices) {
      for (const std::span<const int> stages :
           {std::span(all.begin(), second), {second, all.end()}})
        append_one(stages, &words[static_cast<size_t>(rank)]);
    }
  }
  return words;
}

std::vector<Memory> least_memory(const Problem& problem) {
  Problem one = problem;
  one.num_microbatches = problem.slices * problem.placement.num_replicas();
  return peak_memory(one, one_at_a_time(one));
}

std::vector<Memory> peak_memory(const Problem& problem, const Words& words) {
  std::vector<Memory> peaks;
  for (const Word& word : words) {
    Memory used = 0, peak = 0;
    for (size_t k = 0, size = 0; k < word.size(); k += size) {
      size = step_size(&word[k]);
      for (size_t part = k; part < k + size; ++part) {
        const MemoryUse use = memory_use(problem.work(stage_of(word[part])), pass_of(word[part]),
                                         /*is_whole=*/part > k && size == 3);
        used += use.change;
        peak = std::max(peak, used + use.temporary);
      }
    }
    peaks.push_back(peak);
  }
  return peaks;
}

bool fits_memory(const Problem& problem, const Words& words) {
  const std::vector<Memory> peaks = peak_memory(problem, words);
  return std::ranges::equal(peaks, problem.memory_limits, std::less_equal<>());
}

bool has_compound(const Words& words) {
  return std::ranges::any_of(
      words, [](const Word& word) { return std::ranges::any_of(word, is_together); });
}

Words joined(const Problem& problem, const Words& words) {
  Words result;
  std::vector<int> instances(3 * static_cast<size_t>(problem.num_instances()));
  for (const Word& from : words) {
    Word& word = result.emplace_back();
    bool is_alone = false;  // the last letter of `word`
    for (size_t k = 0, size = 0; k < from.size(); k += size) {
      size = step_size(&from[k]);
      for (size_t part = k; part < k + size; ++part) ++instances[plain(from[part])];
      if (is_alone && size == 1) {
        const auto [forward, input] = std::minmax({word.back(), from[k]}, has_earlier_pass);
        if (pass_of(forward) == Pass::kForward && pass_of(input) == Pass::kInput &&
            microbatch_of(problem, forward, instances[forward] - 1) !=
                microbatch_of(problem, input, instances[input] - 1)) {
          word.back() = forward | kTogether;
          word.push_back(input);
          is_alone = false;
          continue;
        }
      }
      word.insert(word.end(), &from[k], &from[k] + size);
      is_alone = size == 1;
    }
  }
  return result;
}

ir::ComputeOrder order_of(const Problem& problem, const Words& words, std::string name) {
  ir::ComputeOrder order;
  order.name = std::move(name);
  order.placement = problem.placement;
  order.num_microbatches = problem.num_microbatches;
  order.slices = problem.slices;
  order.recompute = problem.saving.recompute;
  order.offload = problem.saving.offload;
  std::vector<int> instances(3 * static_cast<size_t>(problem.num_instances()));
  const auto part_of = [&](Letter one, ActionKind kind) {
    return ir::ActionPart(kind, problem.placement.stage_of_instance(stage_of(one)),
                          microbatch_of(problem, one, instances[plain(one)]++));
  };
  for (const Word& word : words) {
    ir::Row& row = order.rows.emplace_back();
    row.reserve(word.size());
    for (size_t k = 0, size = 0; k < word.size(); k += size) {
      size = step_size(&word[k]);
      const ir::ActionPart first = part_of(word[k], kind_of(problem, pass_of(word[k])));
      if (size == 1) {
        row.emplace_back(first);
        continue;
      }
      const ActionKind backward =
          size == 3 ? ActionKind::kBackward : kind_of(problem, Pass::kInput);
      row.push_back(ir::Action::overlap(first, part_of(word[k + 1], backward)));
      if (size == 3) ++instances[word[k + 2]];
    }
  }
  return order;
}

Words words_of(const Problem& problem, const ir::Schedule& order) {
  Words words;
  for (const ir::Row& row : order.rows) {
    Word& word = words.emplace_back();
    word.reserve(row.size());
    for (const ir::Action& action : row) {
      const size_t begin = word.size();
      for (const ir::ActionPart part : action.parts()) append(problem, part, &word);
      if (!action.is_compound() || problem.overlap == 0) continue;
      const auto first = word.begin() + static_cast<std::ptrdiff_t>(begin);
      std::sort(first, word.end(), has_earlier_pass);
      std::for_each(first, word.end() - 1, [](Letter& one) { one |= kTogether; });
    }
  }
  return words;
}

}  // namespace pipewright::schedule::search
