#include "tests/schedule/bounds/plain_orders.h"

#include <algorithm>

namespace pipewright::tests {

using schedule::Memory;
using schedule::Problem;
using schedule::StageWork;
using schedule::Ticks;

Ticks time_of(const Problem& problem, Letter letter, int microbatch) {
  const StageWork& work = problem.work(letter.stage);
  const Ticks base = letter.kind == 0   ? work.forward
                     : letter.kind == 1 ? work.backward_input
                                        : work.backward_weight;
  return problem.scaled(base, microbatch);
}

Memory change_of(const Problem& problem, Letter letter) {
  const StageWork& work = problem.work(letter.stage);
  return letter.kind == 0   ? work.activation
         : letter.kind == 1 ? work.weight_input - work.activation
                            : -work.weight_input;
}

Memory peak_change_of(const Problem& problem, Letter letter) {
  const Memory recomputed = letter.kind == 1 ? problem.work(letter.stage).recomputed : 0;
  return std::max(recomputed, change_of(problem, letter));
}

std::optional<Ticks> cost_of(const Problem& problem, const Orders& orders) {
  const auto stages = static_cast<size_t>(problem.num_stages());
  const auto microbatches = static_cast<size_t>(problem.num_microbatches);
  std::vector<Ticks> end(3 * stages * microbatches, -1);
  const auto end_of = [&](int stage, int kind, int microbatch) -> Ticks& {
    return end[(3 * static_cast<size_t>(stage) + static_cast<size_t>(kind)) * microbatches +
               static_cast<size_t>(microbatch)];
  };
  std::vector<int> done(3 * stages);
  std::vector<size_t> next(orders.size());
  std::vector<Ticks> time(orders.size()), start(orders.size(), -1);
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t rank = 0; rank < orders.size(); ++rank) {
      for (; next[rank] < orders[rank].size(); ++next[rank]) {
        const auto [stage, kind] = orders[rank][next[rank]];
        int& count = done[3 * static_cast<size_t>(stage) + static_cast<size_t>(kind)];
        Ticks input = 0;
        if (kind == 2) {
          input = end_of(stage, 1, count);
        } else if (kind == 1 && stage + 1 == problem.num_stages()) {
          input = end_of(stage, 0, count);
        } else if (kind == 1 || stage > 0) {
          const int from = kind == 1 ? stage + 1 : stage - 1;
          input = end_of(from, kind, count);
          if (input >= 0)
            input += kind == 1 ? problem.work(from).gradient_transfer
                               : problem.work(from).output_transfer;
        }
        if (input < 0) break;
        const Ticks begin = std::max(time[rank], input);
        if (start[rank] < 0) start[rank] = begin;
        time[rank] = begin + time_of(problem, {stage, kind}, count);
        end_of(stage, kind, count) = time[rank];
        ++count;
        progress = true;
      }
    }
  }
  Ticks cost = 0;
  for (size_t rank = 0; rank < orders.size(); ++rank) {
    if (next[rank] < orders[rank].size()) return std::nullopt;
    cost = std::max(cost, time[rank] - start[rank]);
  }
  return cost;
}

bool fits(const Problem& problem, int rank, const std::vector<Letter>& row) {
  Memory used = 0;
  for (const Letter letter : row) {
    if (used + peak_change_of(problem, letter) > problem.memory_limit(rank)) return false;
    used += change_of(problem, letter);
  }
  return true;
}

std::vector<std::vector<Letter>> all_rows(const schedule::Problem& problem, int rank) {
  const std::vector<int> stages = problem.placement.stages_of(rank);
  std::vector<std::vector<Letter>> rows;
  std::vector<Letter> row;
  std::vector<std::vector<int>> done(3, std::vector<int>(stages.size()));
  schedule::Memory used = 0;
  const auto extend = [&](const auto& self) -> void {
    bool complete = true;
    for (size_t at = 0; at < stages.size(); ++at) {
      for (int kind = 0; kind < 3; ++kind) {
        int& count = done[static_cast<size_t>(kind)][at];
        if (count == problem.num_microbatches) continue;
        complete = false;
        const int before = kind == 2                              ? done[1][at]
                           : kind == 1 && at + 1 == stages.size() ? done[0][at]
                           : kind == 1                            ? done[1][at + 1]
                           : at == 0                              ? problem.num_microbatches
                                                                  : done[0][at - 1];
        const Letter letter{stages[at], kind};
        const schedule::Memory change = change_of(problem, letter);
        if (count >= before || used + peak_change_of(problem, letter) > problem.memory_limit(rank))
          continue;
        ++count, used += change, row.push_back(letter);
        self(self);
        --count, used -= change, row.pop_back();
      }
    }
    if (complete) rows.push_back(row);
  };
  extend(extend);
  return rows;
}

std::optional<schedule::Ticks> optimum_of(const schedule::Problem& problem) {
  std::vector<std::vector<std::vector<Letter>>> rows;
  for (int rank = 0; rank < problem.num_ranks(); ++rank) rows.push_back(all_rows(problem, rank));
  std::optional<schedule::Ticks> best;
  Orders orders(rows.size());
  const auto choose = [&](const auto& self, size_t rank) -> void {
    if (rank == rows.size()) {
      if (const auto cost = cost_of(problem, orders); cost && (!best || *cost < *best)) best = cost;
      return;
    }
    for (const std::vector<Letter>& row : rows[rank]) {
      orders[rank] = row;
      self(self, rank + 1);
    }
  };
  choose(choose, 0);
  return best;
}

}  // namespace pipewright::tests
