#include "pipewright/executor/batch_comparison.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

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

}  // namespace pipewright::executor
