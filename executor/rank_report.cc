// The text form, which ranks exchange through the store: numbers, and names that end with a line.
#include "pipewright/executor/rank_report.h"

#include <sstream>

namespace pipewright::executor {

std::string to_text(const RankReport& report) {
  std::ostringstream text;
  const auto list = [&](const auto& numbers) {
    text << numbers.size();
    for (const int number : numbers) text << ' ' << number;
    text << '\n';
  };
  text << report.program << ' ' << report.rank << ' ' << static_cast<int>(report.phase) << ' '
       << report.step << ' ' << report.evaluates << ' ' << report.action << ' ' << report.waits_for
       << ' ' << report.seconds << '\n';
  list(report.ranks);
  text << report.unposted.size();
  for (const RankReport::Unposted& one : report.unposted)
    text << ' ' << one.action << ' ' << one.is_queued;
  text << '\n' << report.groups.size() << '\n';
  for (const RankReport::Group& group : report.groups) {
    text << group.issued << ' ' << group.joined << ' ' << group.waits_for << ' '
         << (group.op.empty() ? "-" : group.op) << ' ';
    list(group.members);
    text << group.name << '\n';
  }
  return text.str();
}

std::optional<RankReport> parse_report(const std::string& text) {
  std::istringstream in(text);
  RankReport report;
  constexpr size_t kMost = 1 << 24;
  const auto count = [&] {
    size_t size = 0;
    in >> size;
    return in && size < kMost ? size : 0;
  };
  const auto list = [&] {
    std::vector<int> numbers(count());
    for (int& number : numbers) in >> number;
    return numbers;
  };
  int phase = 0;
  in >> report.program >> report.rank >> phase >> report.step >> report.evaluates >>
      report.action >> report.waits_for >> report.seconds;
  if (phase < 0 || phase > static_cast<int>(Phase::kEnds)) return std::nullopt;
  report.phase = static_cast<Phase>(phase);
  report.ranks = list();
  report.unposted.resize(count());
  for (RankReport::Unposted& one : report.unposted) in >> one.action >> one.is_queued;
  report.groups.resize(count());
  for (RankReport::Group& group : report.groups) {
    in >> group.issued >> group.joined >> group.waits_for >> group.op;
    group.members = list();
    in.ignore();
    std::getline(in, group.name);
  }
  return in ? std::optional(report) : std::nullopt;
}

}  // namespace pipewright::executor
