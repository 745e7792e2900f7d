#include "pipewright/executor/hang/watchdog.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <utility>

#include "pipewright/comms/process/steady_seconds.h"
#include "pipewright/executor/hang/flight_dump.h"
#include "pipewright/executor/program/program.h"
#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/text/action_text.h"

namespace pipewright::executor {
namespace {

// Waits end with the timeout, and say more about what they wait for than stalled() does.
constexpr double kGrace = 1;
constexpr size_t kMostRanks = 64;  // that a report lists

// The slot of a SEND or RECV in Watchdog::Indices.
size_t slot_of(ir::ActionKind kind) {
  return (ir::is_send(kind) ? 0u : 2u) +
         (kind == ir::ActionKind::kSendB || kind == ir::ActionKind::kRecvB ? 1u : 0u);
}

// The action of the step that had started last, as an index in the row; -1: none.
int action_at(const Progress::Moment& now, double seconds) {
  int last = -1;
  for (size_t index = 0; index < now.starts.size(); ++index) {
    if (now.starts[index] <= seconds) last = static_cast<int>(index);
  }
  return last;
}

int64_t unix_ns_of(double steady) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() +
         static_cast<int64_t>((steady - comms::steady_seconds()) * 1e9);
}

}  // namespace

Watchdog::Watchdog(const ir::Program& program, std::string digest,
                   std::shared_ptr<comms::Groups> groups, Options options)
    : digest_(std::move(digest)),
      groups_(std::move(groups)),
      options_(std::move(options)),
      timeout_ms_(options_.timeout.count()),
      steps_(make_plan(program)),
      running_(steps_.get()),
      progress_(program.rows[static_cast<size_t>(options_.rank)].size()) {
  if (!options_.device.is_cpu()) device_.emplace(options_.device);
}

std::shared_ptr<const Watchdog::Plan> Watchdog::make_plan(const ir::Program& program) const {
  const auto plan = std::make_shared<Plan>(
      Plan{program, {program.placement, program.num_microbatches, Indices{-1, -1, -1, -1}}});
  const ir::Row& row = program.rows[static_cast<size_t>(options_.rank)];
  for (size_t index = 0; index < row.size(); ++index) {
    if (!ir::is_transfer(row[index].kind())) continue;
    const ir::ActionPart part = row[index].parts()[0];
    plan->transfers.at(part.stage(), part.microbatch())[slot_of(part.kind())] =
        static_cast<int>(index);
  }
  return plan;
}

std::shared_ptr<const Watchdog::Plan> Watchdog::plan(bool evaluates) const {
  const std::lock_guard lock(mutex_);
  return evaluates && evaluation_ ? evaluation_ : steps_;
}

void Watchdog::set_evaluation(const ir::Program& program) {
  auto made = make_plan(program);
  const std::lock_guard lock(mutex_);
  evaluation_ = std::move(made);
}

void Watchdog::begin(int64_t step, bool evaluates) {
  running_ = plan(evaluates).get();
  progress_.begin(step, evaluates);
  if (device_) device_->begin(step, evaluates);
}

// In this rank's row, of a SEND or RECV; -1 if the row lacks it.
int Watchdog::index_of(ir::ActionPart part) const {
  const ir::Row& row = running_->program.rows[static_cast<size_t>(options_.rank)];
  for (const int likely : {progress_.action(), progress_.waits_for()}) {
    if (likely >= 0 && row[static_cast<size_t>(likely)] == ir::Action(part)) return likely;
  }
  return running_->transfers.at(part.stage(), part.microbatch())[slot_of(part.kind())];
}

void Watchdog::transfer(ir::ActionPart part, Progress::Transfer state) {
  if (const int index = index_of(part); index >= 0) progress_.transfer(index, state);
}

void Watchdog::wait_for(ir::ActionPart part) {
  progress_.wait_for(index_of(part));
  if (device_) device_->mark(progress_.action(), -1);
}

void Watchdog::done(ir::ActionPart part) {
  transfer(part, Progress::Transfer::kDone);
  if (progress_.waits_for() >= 0) progress_.wait_for(-1);
  if (device_) device_->mark(progress_.action(), index_of(part));
}

void Watchdog::computed(int action) {
  if (device_) device_->mark(action, -1);
}

void Watchdog::finish() {
  if (device_) device_->end(progress_.now());
}

void Watchdog::reset() {
  if (device_) device_->clear();
}

bool Watchdog::is_late(std::chrono::milliseconds limit) const {
  // Clocks of waits may be a little early.
  return progress_.phase() != Phase::kIdle &&
         progress_.seconds() >= 0.99 * std::chrono::duration<double>(limit).count();
}

std::string Watchdog::stalled() {
  if (progress_.phase() == Phase::kIdle) return "";
  const int64_t limit = timeout_ms_;
  if (progress_.seconds() < static_cast<double>(limit) / 1e3 + kGrace) return "";
  return "made no progress within " + std::to_string(limit) + " ms";
}

Progress::Moment Watchdog::now() const {
  const Progress::Moment host = progress_.now();
  return (device_ ? device_->under_way(host) : std::nullopt).value_or(host);
}

std::string Watchdog::under_way(int64_t step) const {
  const auto late = device_ ? device_->under_way(progress_.now()) : std::nullopt;
  if (!late || late->step > step) return "";
  RankReport report;
  report.program = digest_;
  report.rank = options_.rank;
  report.step = late->step;
  report.evaluates = late->evaluates;
  report.action = late->action;
  const auto running = plan(late->evaluates);
  return place_of(report, {digest_, running->program, running->program});
}

RankReport Watchdog::own_report(const Progress::Moment& now) const {
  RankReport report;
  report.program = digest_;
  report.rank = options_.rank;
  report.ranks = options_.ranks;
  report.phase = now.phase;
  report.step = now.step;
  report.evaluates = now.evaluates;
  report.action = now.action;
  report.waits_for = now.waits_for;
  report.seconds = now.seconds;
  const auto running = plan(report.evaluates);
  const ir::Row& row = running->program.rows[static_cast<size_t>(options_.rank)];
  for (int index = 0; index < std::min(now.passed, static_cast<int>(row.size())); ++index) {
    if (!ir::is_transfer(row[static_cast<size_t>(index)].kind())) continue;
    const Progress::Transfer state = now.transfers[static_cast<size_t>(index)];
    if (state < Progress::Transfer::kPosted)
      report.unposted.push_back({index, state == Progress::Transfer::kQueued});
  }
  for (const comms::GroupState& state : groups_->states()) {
    if (state.issued == 0) continue;
    RankReport::Group group{state.name,   state.members,   state.issued,
                            state.joined, state.waits_for, ""};
    // While an action runs, a stream beside the one that computes may wait without holding up
    // anything.
    const auto computes = device_ && now.action >= 0 ? device_->stream() : std::nullopt;
    for (const comms::DeviceWait& wait : state.device_waits) {
      if (group.waits_for == 0 && (!computes || wait.stream == *computes))
        group.waits_for = wait.number;
    }
    for (const comms::Collective& one : state.last) {
      if (one.number != group.waits_for) continue;
      group.op = one.op;
      // The host has gone on to the step, but its device is still before it.
      if (device_ && now.phase >= Phase::kRuns && one.seconds < now.begun) {
        report.phase = Phase::kDrains;
        report.action = report.waits_for = -1;
      }
    }
    report.groups.push_back(std::move(group));
  }
  return report;
}

std::string Watchdog::report() { return to_text(own_report(now())); }

std::string Watchdog::describe_own() const {
  const auto evaluation = plan(true);
  return describe(own_report(now()), {digest_, steps_->program, evaluation->program});
}

std::string Watchdog::verdict(const Reports& texts, const Who& who) {
  RankReports reports;
  for (const auto& text : texts)
    reports.push_back(text ? parse_report(*text) : std::optional<RankReport>());
  // A rank that answers, but has no executor, is not in a step.
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank] && !reports[rank]) reports[rank] = RankReport();
  }
  const auto evaluation = plan(true);
  const HangPrograms programs{digest_, steps_->program, evaluation->program};
  std::string text;
  const std::string problems =
      options_.is_unverified ? problems_of(steps_->program, Check::kVerify) : std::string();
  for (const Culprit& culprit : find_culprits(reports, programs)) {
    std::string ranks;
    for (const int rank : culprit.ranks) {
      const std::string identity = who(rank);
      ranks += (ranks.empty() ? "rank " : ", rank ") + std::to_string(rank) +
               (identity.empty() ? "" : " (" + identity + ")");
    }
    text += "\n  culprit: " + ranks + ": " + culprit.problem;
  }
  if (!problems.empty())
    text += "\n  culprit: the program, which was not verified and is not valid";
  for (size_t rank = 0; rank < std::min(reports.size(), kMostRanks); ++rank) {
    text += "\n  rank " + std::to_string(rank) + ": " +
            (reports[rank] ? describe(*reports[rank], programs) : "does not answer");
  }
  if (reports.size() > kMostRanks)
    text += "\n  and " + std::to_string(reports.size() - kMostRanks) + " more ranks";
  return text;
}

void Watchdog::dump() {
  std::fprintf(stderr, "rank %d: %s\n", options_.world_rank, describe_own().c_str());
  const char* prefix = std::getenv("TORCH_FR_DUMP_TEMP_FILE");
  if (!prefix || !*prefix) return;
  const std::string path = prefix + std::to_string(options_.world_rank);
  std::ofstream file(path + ".tmp", std::ios::binary);
  file << to_pickle(flight_dump());
  file.close();
  if (!file || std::rename((path + ".tmp").c_str(), path.c_str()) != 0)
    std::fprintf(stderr, "rank %d: cannot write `%s`\n", options_.world_rank, path.c_str());
}

void Watchdog::stuck(const std::string& report) {
  if (options_.on_stuck) options_.on_stuck(report);
}

// The SENDs and RECVs that this rank has posted in its step, and the collectives that it has called
// since the step began. Until its next step has begun on all ranks, this is the last one: that is
// where a rank may be that has not ended it.
FlightDump Watchdog::flight_dump() const {
  FlightDump dump;
  const Progress::Moment now = this->now();
  const auto plan = this->plan(now.ran_evaluation);
  const ir::Program& program = plan->program;
  const ir::Row& row = program.rows[static_cast<size_t>(options_.rank)];
  std::map<std::pair<int, int>, size_t> groups;
  for (const auto& [from, to] : edges_of(program)) {
    if (from != options_.rank && to != options_.rank) continue;
    const int world_from = options_.ranks[static_cast<size_t>(from)];
    const int world_to = options_.ranks[static_cast<size_t>(to)];
    groups[{from, to}] = dump.groups.size();
    dump.groups.push_back({"edge " + std::to_string(world_from) + "->" + std::to_string(world_to),
                           "pipeline",
                           {world_from, world_to}});
  }
  const std::string file = program.name + ", rank " + std::to_string(options_.rank);
  const int64_t begun = unix_ns_of(now.begun);
  std::map<size_t, int64_t> numbers;
  for (size_t step = 0; step < row.size(); ++step) {
    const ir::Action& action = row[step];
    if (!ir::is_transfer(action.kind())) continue;
    const auto transfer = ir::partner_of(action.parts()[0], program.placement);
    if (!transfer || now.transfers[step] < Progress::Transfer::kPosted) continue;
    FlightEntry entry;
    entry.group = groups.at({transfer->from, transfer->to});
    // PyTorch counts the ranks of a group in ascending order.
    const bool ascending =
        dump.groups[entry.group].members[0] < dump.groups[entry.group].members[1];
    const char* from = ascending ? "0" : "1";
    const char* to = ascending ? "1" : "0";
    entry.op = ir::is_send(action.kind()) ? std::string("send ") + from + "->" + to
                                          : std::string("recv ") + to + "<-" + from;
    entry.number = ++numbers[entry.group];
    entry.is_p2p = true;
    entry.is_done = now.transfers[step] == Progress::Transfer::kDone;
    entry.unix_ns = begun;
    entry.place = "action " + ir::to_string(action);
    entry.file = file;
    entry.line = static_cast<int>(step);
    dump.entries.push_back(std::move(entry));
  }
  for (const comms::GroupState& state : groups_->states()) {
    if (state.issued == 0) continue;
    const size_t group = dump.groups.size();
    dump.groups.push_back({state.name, "collectives", state.members});
    for (const comms::Collective& one : state.last) {
      if (one.seconds < now.begun) continue;
      FlightEntry entry = to_flight_entry(one, state);
      entry.group = group;
      entry.unix_ns = unix_ns_of(one.seconds);
      const int action = action_at(now, one.seconds);
      entry.place = action < 0 ? "before the first action"
                    : one.seconds >= now.ended
                        ? "after the last action"
                        : "action " + ir::to_string(row[static_cast<size_t>(action)]);
      entry.file = file;
      entry.line = std::max(action, 0);
      dump.entries.push_back(std::move(entry));
    }
  }
  return dump;
}

}  // namespace pipewright::executor
