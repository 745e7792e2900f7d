#ifndef PIPEWRIGHT_TESTS_SCHEDULE_BOUNDS_PLAIN_ORDERS_H_
#define PIPEWRIGHT_TESTS_SCHEDULE_BOUNDS_PLAIN_ORDERS_H_

#include <optional>
#include <vector>

#include "pipewright/schedule/problem/problem.h"

// Orders of actions and their cost, written out as the statement of the problem in docs/bounds.md
// has them. They share nothing with the simulator and the search.

namespace pipewright::tests {

// F, I or W of a stage. The k-th occurrence in a row is microbatch k.
struct Letter {
  int stage;
  int kind;  // 0 for F, 1 for I, 2 for W
};
using Orders = std::vector<std::vector<Letter>>;  // one row per rank

schedule::Ticks time_of(const schedule::Problem& problem, Letter letter, int microbatch);

// By how much the rank has more in use after the action than before.
schedule::Memory change_of(const schedule::Problem& problem, Letter letter);

// What the rank has in use while the action runs, beside what it had before.
schedule::Memory peak_change_of(const schedule::Problem& problem, Letter letter);

// The cost of running every action as soon as it can; nullopt for a deadlock.
std::optional<schedule::Ticks> cost_of(const schedule::Problem& problem, const Orders& orders);

// Whether the row keeps to the memory limit of its rank.
bool fits(const schedule::Problem& problem, int rank, const std::vector<Letter>& row);

// All rows of a rank that keep to the order of each microbatch on it and fit in memory.
std::vector<std::vector<Letter>> all_rows(const schedule::Problem& problem, int rank);

// The least cost of any orders, by trying all of them; nullopt if none fits in memory. For a few
// actions.
std::optional<schedule::Ticks> optimum_of(const schedule::Problem& problem);

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_SCHEDULE_BOUNDS_PLAIN_ORDERS_H_
