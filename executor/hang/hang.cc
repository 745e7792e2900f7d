// Idea: a depth-first walk along the wait-for edges, from every rank that has made no progress for
// long. A rank waits for
//
//   the peer of a transfer          until the peer has posted its end
//   the members of a group          that have not called the collective that the rank waits for,
//                                   in a step or between two
//   ranks that are behind           at the start and end of a step, which all ranks reach together
//
// and a rank without such an edge is a culprit: its own action or its device has not ended, it does
// not answer, or it is not in the step at all. A transfer or collective that all of its ranks have
// called is the network's. A rank that is past an action, and yet has not posted its transfer or
// joined its collective, has left it out. A cycle is a deadlock. A rank that waits for a transfer
// of another program than ours is a culprit only if there is no other.
//
// Invariant: each rank is expanded once.
#include "pipewright/executor/hang/hang.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <tuple>
#include <utility>

#include "pipewright/ir/action_kind.h"
#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/text/action_text.h"

namespace pipewright::executor {
namespace {

std::string quoted(const ir::Action& action) { return "`" + ir::to_string(action) + "`"; }
std::string named(int rank) { return "rank " + std::to_string(rank); }

std::string for_seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, " for %.1f s", seconds);
  return text;
}

const ir::Program* program_of(const RankReport& report, const HangPrograms& programs) {
  if (report.program != programs.digest) return nullptr;
  return report.evaluates ? &programs.evaluation : &programs.steps;
}

const ir::Action* action_of(const RankReport& report, int index, const HangPrograms& programs) {
  const ir::Program* program = program_of(report, programs);
  if (!program || report.rank < 0 || report.rank >= static_cast<int>(program->rows.size()))
    return nullptr;
  const ir::Row& row = program->rows[static_cast<size_t>(report.rank)];
  if (index < 0 || index >= static_cast<int>(row.size())) return nullptr;
  return &row[static_cast<size_t>(index)];
}

// How far a rank has come; comparable between ranks that run the same row.
auto position_of(const RankReport& report) {
  return std::tuple(report.step, report.phase, report.action);
}

const RankReport::Group* awaited_group(const RankReport& report) {
  for (const RankReport::Group& group : report.groups) {
    if (group.waits_for > 0) return &group;
  }
  return nullptr;
}

// "allreduce 3 of group `dp`"
std::string name_of(const RankReport::Group& group) {
  return group.op + " " + std::to_string(group.waits_for) + " of group `" + group.name + "`";
}

struct AwaitedTransfer {
  ir::Action own, other;
  int peer;  // its rank of the program
};

std::optional<AwaitedTransfer> awaited_transfer(const RankReport& report,
                                                const HangPrograms& programs) {
  const ir::Action* action = action_of(report, report.waits_for, programs);
  const ir::Program* program = program_of(report, programs);
  if (!action || !program || !ir::is_transfer(action->kind())) return std::nullopt;
  const auto transfer = ir::partner_of(action->parts()[0], program->placement);
  if (!transfer) return std::nullopt;
  const bool is_send = ir::is_send(action->kind());
  return AwaitedTransfer{*action, is_send ? transfer->receive : transfer->send,
                         is_send ? transfer->to : transfer->from};
}

class Walk {
 public:
  Walk(const RankReports& reports, const HangPrograms& programs)
      : reports_(reports), programs_(programs) {}

  std::vector<Culprit> run() {
    const auto waits = [](const std::optional<RankReport>& report) {
      return report && (report->phase != Phase::kIdle || awaited_group(*report));
    };
    double longest = 0;
    for (const auto& report : reports_) {
      if (waits(report)) longest = std::max(longest, report->seconds);
    }
    for (size_t rank = 0; rank < reports_.size(); ++rank) {
      const auto& report = reports_[rank];
      // Ranks that have just made progress are not part of the hang, unless others wait for them.
      if (waits(report) && report->seconds >= longest / 2) visit(static_cast<int>(rank));
    }
    if (culprits_.empty()) {
      for (const int rank : foreign_) {
        const RankReport& report = *reports_[static_cast<size_t>(rank)];
        add({rank}, place_of(report, programs_) + " waits for a transfer of another program" +
                        for_seconds(report.seconds));
      }
    }
    return std::move(culprits_);
  }

 private:
  void add(std::vector<int> ranks, std::string problem) {
    std::ranges::sort(ranks);
    for (const Culprit& known : culprits_) {
      if (known.ranks == ranks) return;
    }
    culprits_.push_back({std::move(ranks), std::move(problem)});
  }

  // One of two ranks evaluates, the other one does not.
  void add_evaluation(int rank, const RankReport& report, int other) {
    add({report.evaluates ? rank : other},
        "evaluates, while " + named(report.evaluates ? other : rank) + " runs a step");
  }

  void visit(int rank) {
    const auto on_path = std::ranges::find(path_, rank);
    if (on_path != path_.end()) return deadlock({on_path, path_.end()});
    if (!visited_.insert(rank).second) return;
    const auto& report = rank < static_cast<int>(reports_.size())
                             ? reports_[static_cast<size_t>(rank)]
                             : std::nullopt;
    if (!report)
      return add({rank},
                 "does not answer: it has ended or is stopped, or its host is "
                 "unreachable");
    path_.push_back(rank);
    switch (report->phase) {
      case Phase::kIdle:
        if (const RankReport::Group* group = awaited_group(*report)) {
          visit_members(rank, *report, *group);
          break;
        }
        add({rank}, "is between two steps, and has not begun step " + std::to_string(report->step) +
                        for_seconds(report->seconds));
        break;
      case Phase::kDrains:
        // What was queued after the step is waited for here, too.
        if (const RankReport::Group* group = awaited_group(*report))
          visit_members(rank, *report, *group);
        else
          add({rank}, describe(*report, programs_));
        break;
      case Phase::kConfirms:
      case Phase::kBegins:
        if (const RankReport::Group* group = awaited_group(*report))
          visit_members(rank, *report, *group);
        else
          visit_those_behind(rank, *report);
        break;
      case Phase::kRuns:
      case Phase::kEnds:
        if (report->waits_for >= 0 && !program_of(*report, programs_))
          foreign_.push_back(rank);
        else if (const auto transfer = awaited_transfer(*report, programs_))
          visit_peer(rank, *report, *transfer);
        else if (const RankReport::Group* group = awaited_group(*report))
          visit_members(rank, *report, *group);
        else
          add({rank},
              place_of(*report, programs_) + " has not ended" + for_seconds(report->seconds));
        break;
    }
    path_.pop_back();
  }

  // All ranks begin a step together, and confirm it together.
  void visit_those_behind(int rank, const RankReport& report) {
    std::vector<int> behind, ahead;
    for (size_t other = 0; other < reports_.size(); ++other) {
      const auto& theirs = reports_[other];
      const bool is_of_pipeline =
          std::ranges::find(report.ranks, static_cast<int>(other)) != report.ranks.end();
      const auto own = std::tuple(report.step, report.phase);
      const auto other_rank = static_cast<int>(other);
      if (!theirs || std::tuple(theirs->step, theirs->phase) < own)
        behind.insert(is_of_pipeline ? behind.begin() : behind.end(), other_rank);
      else if (std::tuple(theirs->step, theirs->phase) > own)
        ahead.push_back(other_rank);
    }
    for (const int other : behind) visit(other);
    if (!behind.empty()) return;
    for (const int other : ahead) {
      const RankReport& theirs = *reports_[static_cast<size_t>(other)];
      if (theirs.step == report.step && theirs.evaluates != report.evaluates) {
        add_evaluation(rank, report, other);
        continue;
      }
      add({other},
          "has not joined what " + named(rank) + " waits for: it " + describe(theirs, programs_));
    }
    if (ahead.empty()) {
      add({rank}, describe(report, programs_) + ": all ranks are there, but the store does not " +
                      "say so");
    }
  }

  void visit_peer(int rank, const RankReport& report, const AwaitedTransfer& transfer) {
    const int peer = report.ranks[static_cast<size_t>(transfer.peer)];
    const auto& theirs = reports_[static_cast<size_t>(peer)];
    if (!theirs) return visit(peer);
    if (theirs->program != report.program) return add({rank, peer}, "run different programs");
    // A rank between two steps reports on the transfers of the last one.
    const int64_t their_step = theirs->phase >= Phase::kBegins ? theirs->step : theirs->step - 1;
    const bool in_step = their_step == report.step;
    if (in_step && theirs->evaluates != report.evaluates) return add_evaluation(rank, report, peer);
    const ir::Row& row = program_of(report, programs_)->rows[static_cast<size_t>(transfer.peer)];
    const auto found = std::ranges::find(row, transfer.other);
    if (found == row.end()) {
      return add({rank}, place_of(report, programs_) + ": " + quoted(transfer.own) + " waits for " +
                             quoted(transfer.other) + ", which the program of " + named(peer) +
                             " does not have");
    }
    const int index = static_cast<int>(found - row.begin());
    if (their_step > report.step) {
      return add({peer}, "is past step " + std::to_string(report.step) + ", in which " +
                             named(rank) + " waits for its " + quoted(transfer.other));
    }
    const bool is_past = in_step && theirs->phase != Phase::kBegins &&
                         (theirs->phase != Phase::kRuns || theirs->action > index);
    if (!is_past) return visit(peer);
    for (const RankReport::Unposted& one : theirs->unposted) {
      if (one.action != index) continue;
      if (one.is_queued) return visit(peer);
      return add({peer}, "step " + std::to_string(report.step) + ", action " +
                             std::to_string(index) + " " + quoted(transfer.other) +
                             " was left out; " + named(rank) + " waits for it in " +
                             quoted(transfer.own));
    }
    add({rank, peer}, "both have posted their ends of " + quoted(transfer.other) + " and " +
                          quoted(transfer.own) + " of step " + std::to_string(report.step) +
                          ", but the transfer does not end: the network between them");
  }

  void visit_members(int rank, const RankReport& report, const RankReport::Group& group) {
    bool found = false;
    const std::string which = name_of(group);
    for (const int member : group.members) {
      if (member == rank) continue;
      const auto& theirs = reports_[static_cast<size_t>(member)];
      if (!theirs) {
        visit(member);
        found = true;
        continue;
      }
      const auto own = std::ranges::find_if(
          theirs->groups, [&](const RankReport::Group& one) { return one.name == group.name; });
      const bool is_known = own != theirs->groups.end();
      if (is_known && own->joined >= group.waits_for) continue;
      found = true;
      if (is_known && own->issued >= group.waits_for) {
        if (theirs->phase >= Phase::kRuns || awaited_group(*theirs))
          visit(member);
        else
          add({member}, "has called " + which + ", but its device has not reached it");
        continue;
      }
      const bool is_past =
          report.phase < Phase::kRuns
              ? std::tuple(theirs->step, theirs->phase) > std::tuple(report.step, report.phase)
              : theirs->program == report.program && theirs->rank == report.rank &&
                    position_of(*theirs) > position_of(report);
      if (!is_past) {
        visit(member);
        continue;
      }
      add({member}, "left out " + which + ", which " + named(rank) + " waits for at " +
                        place_of(report, programs_) + "; it is at " + place_of(*theirs, programs_));
    }
    if (!found) {
      add(group.members, place_of(report, programs_) + ": all have called " + which +
                             ", but it does not end: the network between them");
    }
  }

  void deadlock(std::vector<int> cycle) {
    std::string text = "wait for each other: deadlock";
    for (const int rank : cycle) {
      text += "; " + named(rank) + ": " + describe(*reports_[static_cast<size_t>(rank)], programs_);
    }
    add(std::move(cycle), text);
  }

  const RankReports& reports_;
  const HangPrograms& programs_;
  std::vector<int> path_;
  std::set<int> visited_;
  std::vector<int> foreign_;  // wait for a transfer of a program that is not known here
  std::vector<Culprit> culprits_;
};

}  // namespace

std::vector<Culprit> find_culprits(const RankReports& reports, const HangPrograms& programs) {
  return Walk(reports, programs).run();
}

std::string place_of(const RankReport& report, const HangPrograms& programs) {
  const std::string step =
      (report.evaluates ? "evaluation at step " : "step ") + std::to_string(report.step);
  if (report.action < 0) return step;
  const ir::Action* action = action_of(report, report.action, programs);
  return step + ", action " + std::to_string(report.action) + (action ? " " + quoted(*action) : "");
}

std::string describe(const RankReport& report, const HangPrograms& programs) {
  const std::string place = place_of(report, programs);
  const std::string since = "," + for_seconds(report.seconds);
  const RankReport::Group* group = awaited_group(report);
  const std::string collective = group ? ", waits in " + name_of(*group) : "";
  switch (report.phase) {
    case Phase::kIdle:
      return "between two steps, before " + place + collective + since;
    case Phase::kDrains:
      return "waits for its device to end the step before " + place + collective + since;
    case Phase::kConfirms:
      return "waits for all ranks to complete the step before " + place + since;
    case Phase::kBegins:
      return "waits for all ranks to begin " + place + collective + since;
    case Phase::kRuns:
    case Phase::kEnds:
      break;
  }
  const std::string what = place + (report.phase == Phase::kEnds ? ", at its end" : "");
  if (const auto transfer = awaited_transfer(report, programs)) {
    return what + ", " + quoted(transfer->own) + " waits for " + quoted(transfer->other) + " of " +
           named(report.ranks[static_cast<size_t>(transfer->peer)]) + since;
  }
  return what + collective + since;
}

}  // namespace pipewright::executor
