// Each start, as it is and with every neighbouring F and I in a compound, and the best schedule of
// the dispatcher are improved by random moves within one row, under a threshold that falls to 0
// (Dueck and Scheuer's threshold accepting): a move that makes the score worse by less is kept. The
// score is the cost, plus a little of the mean span, because most moves do not change the longest
// span. Each move is judged by a replay of all rows.
#include "pipewright/schedule/search/compound_search.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "pipewright/ir/check.h"
#include "pipewright/schedule/problem/problem.h"
#include "pipewright/schedule/search/compound_dispatcher.h"
#include "pipewright/schedule/search/local_search.h"

namespace pipewright::schedule::search {
namespace {

constexpr size_t kKept = 6;
constexpr int kReach = 8;        // how far a step moves in its row
constexpr int kCostWeight = 20;  // of the cost in the score, relative to the mean span
// The threshold at the start is the work per microbatch, divided by these in turn.
constexpr int kCoolings[] = {50, 500, 5'000};

bool is_forward(const Step& step) {
  return !step.is_compound() && pass_of(step.letter) == Pass::kForward;
}
bool is_input(const Step& step) {
  return !step.is_compound() && pass_of(step.letter) == Pass::kInput;
}

// The two steps as a compound, if they are an F and an I.
std::optional<Step> joined(const Step& first, const Step& second) {
  if (is_forward(first) && is_input(second)) return Step{first.letter, second.letter};
  if (is_input(first) && is_forward(second)) return Step{second.letter, first.letter};
  return std::nullopt;
}

// Every F and I that are neighbours in a row as a compound, from left to right.
CompoundRows all_joined(const CompoundRows& rows) {
  CompoundRows result;
  for (const CompoundRow& from : rows) {
    CompoundRow& row = result.emplace_back();
    for (const Step& step : from) {
      const std::optional<Step> both = row.empty() ? std::nullopt : joined(row.back(), step);
      if (both) {
        row.back() = *both;
      } else {
        row.push_back(step);
      }
    }
  }
  return result;
}

class CompoundSearch {
 public:
  CompoundSearch(const Problem& problem, const CompoundOptions& options)
      : problem_(problem), options_(options), replay_(problem), random_(options.seed) {
    for (const StageWork& one : problem.stages)
      work_ += one.forward + one.backward_input + one.backward_weight;
    work_ /= problem.num_ranks();
  }

  CompoundSolution run(std::vector<CompoundStart> starts) {
    std::vector<CompoundRows> from;
    for (CompoundStart& start : starts) {
      from.push_back(all_joined(start.rows));
      try_start(start.rows, start.name);
      try_start(from.back(), "");
      from.push_back(std::move(start.rows));
    }
    if (auto rows = best_dispatched()) from.push_back(*std::move(rows));
    PW_CHECK(!solution_.found.empty(), "a start runs to its end and fits");
    report();
    const auto rounds = static_cast<int64_t>(std::size(kCoolings));
    for (int64_t round = 0; round < rounds && !is_over(); ++round) {
      // From all starts first, then from the best so far.
      std::vector<CompoundRows> rows = round == 0 ? from : std::vector<CompoundRows>();
      if (round > 0) {
        for (const CompoundFound& one : solution_.found) rows.push_back(one.rows);
      }
      const int64_t left = (options_.evaluations - solution_.evaluations) / (rounds - round);
      for (const CompoundRows& one : rows) {
        if (is_over()) break;
        anneal(one, left / static_cast<int64_t>(rows.size()),
               static_cast<double>(work_) / kCoolings[round]);
        report();
      }
    }
    return std::move(solution_);
  }

 private:
  void report() const {
    if (options_.on_progress) {
      options_.on_progress({solution_.found.front().cost, options_.bound, solution_.evaluations,
                            problem_.num_microbatches});
    }
  }
  bool is_over() const {
    return solution_.found.front().cost <= options_.bound ||
           solution_.evaluations >= options_.evaluations || is_cancelled(options_.cancel);
  }

  bool fits(const CompoundRows& rows, size_t rank) const {
    return peak_memory(problem_, replay_.letters(), rows[rank]) <= problem_.memory_limits[rank];
  }
  bool fits(const CompoundRows& rows) const {
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      if (!fits(rows, rank)) return false;
    }
    return true;
  }
  bool runs(const CompoundRows& rows) {
    for (const CompoundRow& row : rows) solution_.evaluations += static_cast<int64_t>(row.size());
    return replay_.run(rows);
  }

  // Returns the cost, if the rows run and fit.
  std::optional<Ticks> try_start(const CompoundRows& rows, const std::string& name) {
    if (!fits(rows) || !runs(rows)) return std::nullopt;
    keep({replay_.cost(), name, rows});
    return replay_.cost();
  }

  // nullopt where that would take a large part of the budget.
  std::optional<CompoundRows> best_dispatched() {
    const int64_t work = int64_t{3} * kDispatcherRules * problem_.num_stages() *
                         problem_.num_stages() * problem_.num_microbatches;
    if (work > options_.evaluations / 16 || is_cancelled(options_.cancel)) return std::nullopt;
    std::optional<CompoundRows> best;
    Ticks least = 0;
    for (CompoundRows& rows : dispatched_compounds(problem_)) {
      const std::optional<Ticks> cost = try_start(rows, "");
      if (!cost || (best && *cost >= least)) continue;
      least = *cost;
      best = std::move(rows);
    }
    return best;
  }

  // Of schedules with one cost, the first.
  void keep(CompoundFound one) {
    std::vector<CompoundFound>& found = solution_.found;
    const auto place = std::ranges::lower_bound(found, one.cost, {}, &CompoundFound::cost);
    if (place != found.end() && place->cost == one.cost) return;
    found.insert(place, std::move(one));
    if (found.size() > kKept) found.pop_back();
  }

  int64_t score() const {
    return kCostWeight * replay_.cost() + replay_.sum_of_spans() / problem_.num_ranks();
  }

  void anneal(CompoundRows rows, int64_t budget, double threshold) {
    if (!fits(rows) || !runs(rows)) return;
    const int64_t begin = solution_.evaluations;
    int64_t now = score();
    while (solution_.evaluations - begin < budget && !is_over()) {
      const size_t rank = random_.index(rows.size());
      if (rows[rank].empty()) continue;
      CompoundRow before = rows[rank];
      // Often several moves at once: a compound that pays may need another to be given up.
      bool is_changed = move(&rows[rank]);
      while (is_changed && random_.one_in(4)) is_changed = move(&rows[rank]);
      if (!is_changed || !fits(rows, rank)) {
        rows[rank] = std::move(before);
        ++solution_.evaluations;  // so that this ends
        continue;
      }
      const double part =
          1 - static_cast<double>(solution_.evaluations - begin) / static_cast<double>(budget);
      const double worse = threshold * part * kCostWeight * random_.below(1024) / 1024;
      if (!runs(rows) || static_cast<double>(score() - now) > worse) {
        rows[rank] = std::move(before);
        continue;
      }
      now = score();
      if (replay_.cost() < solution_.found.back().cost || solution_.found.size() < kKept)
        keep({replay_.cost(), "", rows});
    }
  }

  // Changes a row at a random place. False if nothing can be changed there; the row may have
  // changed nevertheless.
  bool move(CompoundRow* row) {
    const size_t at = random_.index(row->size());
    switch (random_.below(4)) {
      case 0:
        return (*row)[at].is_compound() ? split(row, at) : join(row, at);
      case 1:
        return toggle_whole(row, at);
      default:
        return shift(row, at);
    }
  }

  bool split(CompoundRow* row, size_t at) {
    Step& step = (*row)[at];
    if (step.is_whole) return false;
    Step first = {.letter = step.letter}, second = {.letter = step.partner};
    if (random_.one_in(2)) std::swap(first, second);
    step = first;
    row->insert(row->begin() + static_cast<std::ptrdiff_t>(at) + 1, second);
    return true;
  }

  // With the nearest step that it can be joined with, which moves here; as a whole backward or not.
  bool join(CompoundRow* row, size_t at) {
    for (size_t other = at + 1; other < row->size() && other <= at + kReach; ++other) {
      if (const auto both = joined((*row)[at], (*row)[other])) {
        (*row)[at] = *both;
        row->erase(row->begin() + static_cast<std::ptrdiff_t>(other));
        if (random_.one_in(2)) toggle_whole(row, at);
        return true;
      }
      // Letters are in the order of microbatches.
      if ((*row)[other].letter == (*row)[at].letter) return false;
    }
    return false;
  }

  // I with W of its microbatch, or without.
  bool toggle_whole(CompoundRow* row, size_t at) {
    Step& step = (*row)[at];
    if (!step.is_compound() || !problem_.splits_backward) return false;
    const Step weight = {.letter = letter(stage_of(step.partner), Pass::kWeight)};
    const auto after = row->begin() + static_cast<std::ptrdiff_t>(at) + 1;
    if (step.is_whole) {
      step.is_whole = false;
      row->insert(after, weight);
      return true;
    }
    const auto next = std::find(after, row->end(), weight);
    if (next == row->end()) return false;
    step.is_whole = true;
    row->erase(next);
    return true;
  }

  bool shift(CompoundRow* row, size_t at) {
    const int reach = random_.between(1, kReach);
    const int distance = random_.one_in(2) ? reach : -reach;
    const auto to = static_cast<std::ptrdiff_t>(at) + distance;
    if (to < 0 || to >= static_cast<std::ptrdiff_t>(row->size())) return false;
    const auto from = row->begin() + static_cast<std::ptrdiff_t>(at);
    if (distance > 0) {
      std::rotate(from, from + 1, row->begin() + to + 1);
    } else {
      std::rotate(row->begin() + to, from, from + 1);
    }
    return true;
  }

  const Problem& problem_;
  const CompoundOptions& options_;
  CompoundReplay replay_;
  Random random_;
  Ticks work_ = 0;  // per microbatch
  CompoundSolution solution_;
};

}  // namespace

CompoundSolution find_compounds(const Problem& problem, std::vector<CompoundStart> starts,
                                const CompoundOptions& options) {
  return CompoundSearch(problem, options).run(std::move(starts));
}

}  // namespace pipewright::schedule::search
