#include "pipewright/schedule/views/diff.h"

#include <algorithm>
#include <map>
#include <utility>

namespace pipewright::schedule {
namespace {

constexpr size_t kNone = SIZE_MAX;

// The index of each occurrence of each action in a row, without idle slots.
std::map<std::pair<ir::Action, int>, size_t> positions_of(const ir::Row& row) {
  std::map<ir::Action, int> seen;
  std::map<std::pair<ir::Action, int>, size_t> positions;
  for (size_t index = 0; index < row.size(); ++index) {
    if (!row[index].is_idle()) positions[{row[index], seen[row[index]]++}] = index;
  }
  return positions;
}

// Marks a longest ascending subsequence of distinct numbers, by patience sorting: O(n log n).
std::vector<bool> longest_ascending(const std::vector<size_t>& numbers) {
  std::vector<size_t> tops;  // index of the number on top of each pile
  std::vector<size_t> before(numbers.size(), kNone);
  for (size_t index = 0; index < numbers.size(); ++index) {
    const auto pile = std::ranges::lower_bound(tops, numbers[index], {},
                                               [&](size_t top) { return numbers[top]; });
    if (pile != tops.begin()) before[index] = *(pile - 1);
    if (pile == tops.end()) {
      tops.push_back(index);
    } else {
      *pile = index;
    }
  }
  std::vector<bool> in_run(numbers.size());
  for (size_t index = tops.empty() ? kNone : tops.back(); index != kNone; index = before[index])
    in_run[index] = true;
  return in_run;
}

}  // namespace

RowChange change_of(const ir::Row& before, const ir::Row& after) {
  RowChange change;
  const auto left = positions_of(before), right = positions_of(after);
  std::vector<std::pair<size_t, size_t>> common;  // positions before and after
  std::vector<size_t> removed, added;
  for (const auto& [action, position] : left) {
    const auto other = right.find(action);
    if (other == right.end()) {
      removed.push_back(position);
    } else {
      common.emplace_back(position, other->second);
    }
  }
  for (const auto& [action, position] : right) {
    if (!left.contains(action)) added.push_back(position);
  }
  std::ranges::sort(removed);
  std::ranges::sort(added);
  std::ranges::sort(common);
  for (const size_t position : removed) change.removed.push_back(before[position]);
  for (const size_t position : added) change.added.push_back(after[position]);
  std::vector<size_t> order;
  for (const auto& [from, to] : common) order.push_back(to);
  const std::vector<bool> stays = longest_ascending(order);
  for (size_t index = 0; index < common.size(); ++index) {
    if (!stays[index]) change.moved.push_back(before[common[index].first]);
  }
  return change;
}

std::vector<RowChange> changes_of(const ir::Rows& before, const ir::Rows& after) {
  std::vector<RowChange> changes;
  const ir::Row none;
  for (size_t rank = 0; rank < std::max(before.size(), after.size()); ++rank) {
    changes.push_back(change_of(rank < before.size() ? before[rank] : none,
                                rank < after.size() ? after[rank] : none));
  }
  return changes;
}

}  // namespace pipewright::schedule
