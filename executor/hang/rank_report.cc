#include "pipewright/executor/hang/rank_report.h"

#include <limits>
#include <sstream>

#include "pipewright/comms/process/steady_seconds.h"

namespace pipewright::executor {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

void Progress::begin(int64_t step, bool evaluates) {
  set(evaluates_, evaluates);
  enter(Phase::kBegins, step);
}

// All ranks have begun the step: what remains of the last one says nothing any more.
void Progress::forget_last_step() {
  for (auto& transfer : transfers_) transfer.store(Transfer::kNotCalled, std::memory_order_relaxed);
  for (auto& start : starts_) start.store(kNever, std::memory_order_relaxed);
  set(ended_, kNever);
  set(begun_, comms::steady_seconds());
  set(ran_evaluation_, evaluates());
}

void Progress::run(int action) {
  if (phase() == Phase::kBegins) forget_last_step();
  set(action_, action);
  set(phase_, Phase::kRuns);
  touch();
  set(starts_[static_cast<size_t>(action)], get(since_));
}

void Progress::end() {
  if (phase() == Phase::kBegins) forget_last_step();  // without actions
  enter(Phase::kEnds, step());
  set(ended_, get(since_));
}

void Progress::wait_for(int action) {
  set(waits_for_, action);
  touch();
}

double Progress::seconds() const { return comms::steady_seconds() - get(since_); }

Progress::Moment Progress::now() const {
  Moment moment{phase(),  step(),      evaluates(), get(ran_evaluation_),
                action(), waits_for(), seconds(),   begun(),
                0,        {},          {},          get(ended_)};
  for (const auto& one : transfers_) moment.transfers.push_back(get(one));
  for (const auto& one : starts_) moment.starts.push_back(get(one));
  if (moment.begun > 0 && moment.phase != Phase::kBegins) {
    moment.passed =
        moment.phase == Phase::kRuns ? moment.action : static_cast<int>(moment.transfers.size());
  }
  return moment;
}

void Progress::enter(Phase phase, int64_t step) {
  set(action_, -1);
  set(waits_for_, -1);
  set(step_, step);
  set(phase_, phase);
  touch();
}

void Progress::touch() { set(since_, comms::steady_seconds()); }

// The text form, which ranks exchange through the store: numbers, and names that end with a line.

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
