#include "pipewright/schedule/search/words.h"

#include <algorithm>
#include <utility>

#include "pipewright/ir/check.h"

namespace pipewright::schedule::search {

using ir::ActionKind;

void append(const Problem& problem, ir::ActionPart part, Word* word) {
  const int stage = part.stage();
  switch (part.kind()) {
    case ActionKind::kForward:
      word->push_back(letter(stage, Pass::kForward));
      return;
    case ActionKind::kBackward:
      word->push_back(letter(stage, Pass::kInput));
      if (problem.splits_backward) word->push_back(letter(stage, Pass::kWeight));
      return;
    case ActionKind::kBackwardInput:
      word->push_back(letter(stage, Pass::kInput));
      return;
    case ActionKind::kBackwardWeight:
      if (problem.splits_backward) word->push_back(letter(stage, Pass::kWeight));
      return;
    case ActionKind::kIdle:
    case ActionKind::kOverlapFB:
    case ActionKind::kUnshard:
    case ActionKind::kReshard:
    case ActionKind::kReduceGrad:
    case ActionKind::kSendF:
    case ActionKind::kRecvF:
    case ActionKind::kSendB:
    case ActionKind::kRecvB:
    case ActionKind::kWaitSendF:
    case ActionKind::kWaitSendB:
    case ActionKind::kWaitReduceGrad:
      return;
  }
}

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

std::vector<LetterInfo> letters_of(const Problem& problem) {
  const int stages = problem.num_stages();
  PW_CHECK(stages <= kMaxSearchStages, "letters have 16 bits");
  std::vector<LetterInfo> letters(3 * static_cast<size_t>(stages));
  for (int stage = 0; stage < stages; ++stage) {
    const StageWork& work = problem.work(stage);
    const int rank = problem.placement.rank_of(stage);
    const Letter f = letter(stage, Pass::kForward), i = letter(stage, Pass::kInput),
                 w = letter(stage, Pass::kWeight);
    LetterInfo& forward = letters[f];
    LetterInfo& input = letters[i];
    LetterInfo& weight = letters[w];
    forward = {.time = work.forward, .rank = rank, .memory = work.activation};
    input = {
        .time = work.backward_input,
        .need = f,
        .rank = rank,
        .memory = work.weight_input - work.activation,
        .temporary = std::max<Memory>(0, work.activation + work.recomputed - work.weight_input)};
    weight = {.time = work.backward_weight,
              .need = i,
              .rank = rank,
              .memory = -work.weight_input,
              .temporary = work.weight_input};
    forward.unlocks = i;
    if (stage > 0) {
      forward.need = letter(stage - 1, Pass::kForward);
      forward.delay = problem.work(stage - 1).output_transfer;
      input.unlocks = letter(stage - 1, Pass::kInput);
    }
    if (stage + 1 < stages) {
      forward.unlocks = letter(stage + 1, Pass::kForward);
      input.need = letter(stage + 1, Pass::kInput);
      input.delay = problem.work(stage + 1).gradient_transfer;
    }
  }
  return letters;
}

Words one_at_a_time(const Problem& problem) {
  Words words(static_cast<size_t>(problem.num_ranks()));
  for (int rank = 0; rank < problem.num_ranks(); ++rank) {
    Word& word = words[static_cast<size_t>(rank)];
    const std::vector<int> stages = problem.placement.stages_of(rank);
    for (int microbatch = 0; microbatch < problem.num_microbatches; ++microbatch) {
      for (const int stage : stages) word.push_back(letter(stage, Pass::kForward));
      for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {
        word.push_back(letter(*stage, Pass::kInput));
        if (problem.splits_backward) word.push_back(letter(*stage, Pass::kWeight));
      }
    }
  }
  return words;
}

std::vector<Memory> least_memory(const Problem& problem) {
  Problem one = problem;
  one.num_microbatches = 1;
  return peak_memory(one, one_at_a_time(one));
}

std::vector<Memory> peak_memory(const Problem& problem, const Words& words) {
  const std::vector<LetterInfo> letters = letters_of(problem);
  std::vector<Memory> peaks;
  for (const Word& word : words) {
    Memory used = 0, peak = 0;
    for (const Letter one : word) {
      used += letters[one].memory;
      peak = std::max(peak, used + letters[one].temporary);
    }
    peaks.push_back(peak);
  }
  return peaks;
}

bool fits_memory(const Problem& problem, const Words& words) {
  const std::vector<Memory> peaks = peak_memory(problem, words);
  return std::ranges::equal(peaks, problem.memory_limits, std::less_equal<>());
}

ir::ComputeOrder empty_order(const Problem& problem, std::string name) {
  ir::ComputeOrder order;
  order.name = std::move(name);
  order.placement = problem.placement;
  order.num_microbatches = problem.num_microbatches;
  order.recompute = problem.recompute;
  return order;
}

ir::ComputeOrder order_of(const Problem& problem, const Words& words, std::string name) {
  ir::ComputeOrder order = empty_order(problem, std::move(name));
  std::vector<int> instances(3 * static_cast<size_t>(problem.num_stages()));
  for (const Word& word : words) {
    ir::Row& row = order.rows.emplace_back();
    row.reserve(word.size());
    for (const Letter one : word)
      row.emplace_back(kind_of(problem, pass_of(one)), stage_of(one), instances[one]++);
  }
  return order;
}

Words words_of(const Problem& problem, const ir::Schedule& order) {
  Words words;
  for (const ir::Row& row : order.rows) {
    Word& word = words.emplace_back();
    word.reserve(row.size());
    for (const ir::Action& action : row) {
      for (const ir::ActionPart part : action.parts()) append(problem, part, &word);
    }
  }
  return words;
}

}  // namespace pipewright::schedule::search
