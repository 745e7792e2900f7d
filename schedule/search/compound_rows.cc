#include "pipewright/schedule/search/compound_rows.h"

#include <algorithm>
#include <utility>

#include "pipewright/ir/check.h"

namespace pipewright::schedule::search {
namespace {

using ir::ActionKind;

// The letter of W of the same stage.
Letter weight_of(Letter letter) { return search::letter(stage_of(letter), Pass::kWeight); }

}  // namespace

bool has_compound(const CompoundRows& rows) {
  return std::ranges::any_of(
      rows, [](const CompoundRow& row) { return std::ranges::any_of(row, &Step::is_compound); });
}

CompoundRows compound_rows_of(const Problem& problem, const ir::Schedule& order) {
  CompoundRows rows;
  for (const ir::Row& from : order.rows) {
    CompoundRow& row = rows.emplace_back();
    for (const ir::Action& action : from) {
      Word letters;
      for (const ir::ActionPart part : action.parts()) append(problem, part, &letters);
      if (!action.is_compound()) {
        for (const Letter one : letters) row.push_back({.letter = one});
        continue;
      }
      std::ranges::sort(letters, {}, pass_of);  // F, I, and W of a whole backward
      row.push_back({letters[0], letters[1], letters.size() == 3});
    }
  }
  return rows;
}

CompoundRows compound_rows_of(const Words& words) {
  CompoundRows rows;
  for (const Word& word : words) {
    CompoundRow& row = rows.emplace_back();
    for (const Letter one : word) row.push_back({.letter = one});
  }
  return rows;
}

ir::ComputeOrder order_of(const Problem& problem, const CompoundRows& rows, std::string name) {
  ir::ComputeOrder order = empty_order(problem, std::move(name));
  std::vector<int> instances(3 * static_cast<size_t>(problem.num_stages()));
  const auto part = [&](Letter one, ActionKind kind) {
    return ir::ActionPart(kind, stage_of(one), instances[one]++);
  };
  for (const CompoundRow& from : rows) {
    ir::Row& row = order.rows.emplace_back();
    for (const Step& step : from) {
      const ir::ActionPart first = part(step.letter, kind_of(problem, pass_of(step.letter)));
      if (!step.is_compound()) {
        row.emplace_back(first);
        continue;
      }
      const ActionKind backward =
          step.is_whole ? ActionKind::kBackward : kind_of(problem, Pass::kInput);
      if (step.is_whole) ++instances[weight_of(step.partner)];
      row.push_back(ir::Action::overlap(first, part(step.partner, backward)));
    }
  }
  return order;
}

Memory peak_memory(const Problem& problem, const std::vector<LetterInfo>& letters,
                   const CompoundRow& row) {
  Memory used = 0, peak = 0;
  for (const Step& step : row) {
    const LetterInfo& one = letters[step.letter];
    used += one.memory;
    peak = std::max(peak, used + one.temporary);
    if (!step.is_compound()) continue;
    const LetterInfo& partner = letters[step.partner];
    if (step.is_whole) {
      peak = std::max(peak, used + problem.work(stage_of(step.partner)).recomputed);
      used += partner.memory + letters[weight_of(step.partner)].memory;
    } else {
      used += partner.memory;
      peak = std::max(peak, used + partner.temporary);
    }
  }
  return peak;
}

CompoundReplay::CompoundReplay(const Problem& problem)
    : problem_(problem),
      microbatches_(static_cast<size_t>(problem.num_microbatches)),
      letters_(letters_of(problem)),
      ends_(letters_.size() * microbatches_),
      instances_(letters_.size()),
      ranks_(static_cast<size_t>(problem.num_ranks())) {}

Ticks CompoundReplay::arrival(Letter letter) const {
  const LetterInfo& info = letters_[letter];
  if (info.need < 0) return 0;
  const Ticks end = ends_[static_cast<size_t>(info.need) * microbatches_ +
                          static_cast<size_t>(instances_[letter])];
  return end < 0 ? -1 : end + info.delay;
}

Ticks CompoundReplay::duration(Letter letter) const {
  return problem_.scaled(letters_[letter].time, instances_[letter]);
}

void CompoundReplay::finish(Letter letter, Ticks end) {
  const LetterInfo& info = letters_[letter];
  ends_[letter * microbatches_ + static_cast<size_t>(instances_[letter]++)] = end;
  if (info.unlocks < 0) return;
  const int other = letters_[static_cast<size_t>(info.unlocks)].rank;
  Rank& waiting = ranks_[static_cast<size_t>(other)];
  if (other == info.rank || waiting.is_queued) return;
  waiting.is_queued = true;
  queue_.push_back(static_cast<size_t>(other));
}

bool CompoundReplay::run(const CompoundRows& rows) {
  std::ranges::fill(ends_, -1);
  std::ranges::fill(instances_, 0);
  std::ranges::fill(ranks_, Rank());
  size_t left = 0;
  queue_.clear();
  for (size_t rank = ranks_.size(); rank-- > 0;) {
    left += rows[rank].size();
    queue_.push_back(rank);
  }
  while (!queue_.empty()) {
    const size_t index = queue_.back();
    queue_.pop_back();
    Rank& rank = ranks_[index];
    rank.is_queued = false;
    for (const CompoundRow& row = rows[index]; rank.next < row.size(); ++rank.next, --left) {
      const Step& step = row[rank.next];
      const Ticks input = arrival(step.letter);
      const Ticks other = step.is_compound() ? arrival(step.partner) : 0;
      if (input < 0 || other < 0) break;
      // A whole backward has I and W of one microbatch.
      if (step.is_whole && instances_[step.partner] != instances_[weight_of(step.partner)]) break;
      Ticks time = duration(step.letter);
      if (step.is_compound()) {
        Ticks backward = duration(step.partner);
        if (step.is_whole) backward += duration(weight_of(step.partner));
        time = problem_.together(time, backward);
      }
      const Ticks start = std::max({rank.time, input, other});
      if (rank.start < 0) rank.start = start;
      rank.time = start + time;
      rank.busy += time;
      finish(step.letter, rank.time);
      if (!step.is_compound()) continue;
      finish(step.partner, rank.time);
      if (step.is_whole) finish(weight_of(step.partner), rank.time);
    }
  }
  if (left > 0) return false;
  cost_ = sum_of_spans_ = makespan_ = busiest_ = 0;
  for (const Rank& rank : ranks_) {
    const Ticks span = rank.time - std::max<Ticks>(rank.start, 0);
    sum_of_spans_ += span;
    cost_ = std::max(cost_, span);
    makespan_ = std::max(makespan_, rank.time);
    busiest_ = std::max(busiest_, rank.busy);
  }
  return true;
}

}  // namespace pipewright::schedule::search
