#include "schedule/add_send_recv.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "ir/action_text.h"
#include "ir/check.h"
#include "ir/dependencies.h"

namespace pipewright::schedule {
namespace {

constexpr int kNone = -1;

// What the oracle says of the compute actions of one stage. It is the same for every microbatch, so
// it is asked once a stage and not once an action.
struct Links {
  int output_of = kNone;    // the other stage whose output F needs
  int gradient_of = kNone;  // the other stage whose input gradient B and I need
  int output_to = kNone;    // the rank that F sends to
  int gradient_to = kNone;  // the rank that B and I send to
};

std::vector<Links> links_of(const ir::Placement& placement) {
  std::vector<Links> links(static_cast<size_t>(placement.num_stages()));
  for (int stage = 0; stage < placement.num_stages(); ++stage) {
    Links& link = links[static_cast<size_t>(stage)];
    for (const ir::ActionKind kind : {ir::ActionKind::kForward, ir::ActionKind::kBackwardInput}) {
      const ir::ActionPart part(kind, stage);
      for (const ir::Need& need : ir::needs_of(part, placement)) {
        // What a stage needs of itself is the order of its row.
        if (need.stage != stage)
          (need.result == ir::Result::kOutput ? link.output_of : link.gradient_of) = need.stage;
      }
      if (const auto transfer = ir::transfer_of(part, placement)) {
        (kind == ir::ActionKind::kForward ? link.output_to : link.gradient_to) = transfer->to;
      }
    }
  }
  return links;
}

// Takes turns through the ranks, one action a turn.
class SendRecvPass {
 public:
  explicit SendRecvPass(ir::Program program)
      : program_(std::move(program)),
        links_(links_of(program_.placement)),
        num_microbatches_(static_cast<size_t>(program_.num_microbatches)),
        made_(links_.size() * num_microbatches_),
        next_(program_.rows.size()) {
    built_.resize(program_.rows.size());
    for (size_t rank = 0; rank < built_.size(); ++rank)
      built_[rank].reserve(2 * program_.rows[rank].size());
  }

  std::optional<ir::Program> run(std::vector<StuckRank>* stuck) {
    std::vector<size_t> busy;  // ranks with actions left, ascending
    for (size_t rank = 0; rank < next_.size(); ++rank) {
      if (!program_.rows[rank].empty()) busy.push_back(rank);
    }
    while (!busy.empty()) {
      bool progress = false;
      bool finished = false;
      for (const size_t rank : busy) {
        progress = take_turn(rank) || progress;
        finished = finished || next_[rank] == program_.rows[rank].size();
      }
      if (!progress) {
        for (const size_t rank : busy) stuck->push_back(describe(rank));
        return std::nullopt;
      }
      if (finished)
        std::erase_if(busy, [&](size_t rank) { return next_[rank] == program_.rows[rank].size(); });
    }
    program_.rows = std::move(built_);
    program_.lowering.receives = ir::Receives::kPytorch;
    return std::move(program_);
  }

 private:
  static constexpr uint8_t kOutput = 1, kGradient = 2;

  uint8_t& made(int stage, int microbatch) {
    return made_[static_cast<size_t>(stage) * num_microbatches_ + static_cast<size_t>(microbatch)];
  }

  // Whether other stages have made what a part needs of them.
  bool is_ready(ir::ActionPart part) {
    const Links& links = links_[static_cast<size_t>(part.stage())];
    if (part.kind() == ir::ActionKind::kForward)
      return links.output_of == kNone || (made(links.output_of, part.microbatch()) & kOutput) != 0;
    if (ir::gives_input_gradient(part.kind()))
      return links.gradient_of == kNone ||
             (made(links.gradient_of, part.microbatch()) & kGradient) != 0;
    return true;
  }

  bool take_turn(size_t rank) {
    const ir::Action action = program_.rows[rank][next_[rank]];
    for (const ir::ActionPart part : action.parts()) {
      if (!is_ready(part)) return false;
    }
    ++next_[rank];
    if (action.is_idle()) return true;
    built_[rank].push_back(action);
    for (const ir::ActionPart part : action.parts()) {
      const Links& links = links_[static_cast<size_t>(part.stage())];
      if (part.kind() == ir::ActionKind::kForward) {
        made(part.stage(), part.microbatch()) |= kOutput;
        if (links.output_to != kNone)
          send(part, ir::ActionKind::kSendF, ir::ActionKind::kRecvF, rank, links.output_to,
               part.stage() + 1);
      } else if (ir::gives_input_gradient(part.kind())) {
        made(part.stage(), part.microbatch()) |= kGradient;
        if (links.gradient_to != kNone)
          send(part, ir::ActionKind::kSendB, ir::ActionKind::kRecvB, rank, links.gradient_to,
               part.stage() - 1);
      }
    }
    return true;
  }

  void send(ir::ActionPart part, ir::ActionKind send_kind, ir::ActionKind receive_kind, size_t from,
            int to, int to_stage) {
    built_[from].emplace_back(send_kind, part.stage(), part.microbatch());
    built_[static_cast<size_t>(to)].emplace_back(receive_kind, to_stage, part.microbatch());
  }

  StuckRank describe(size_t rank) {
    const ir::Action action = program_.rows[rank][next_[rank]];
    for (const ir::ActionPart part : action.parts()) {
      if (is_ready(part)) continue;
      for (const ir::Need& need : ir::needs_of(part, program_.placement)) {
        if (need.stage != part.stage()) return {static_cast<int>(rank), action, need};
      }
    }
    PW_CHECK(false, "a rank that is stuck waits for another stage");
    return {};
  }

  ir::Program program_;
  std::vector<Links> links_;
  size_t num_microbatches_;
  std::vector<uint8_t> made_;  // by stage and microbatch
  std::vector<size_t> next_;   // by rank: the step whose turn it is
  ir::Rows built_;
};

// Whether `left` and `right` are the same work, where passes may have split or merged the backward.
bool same_work(ir::ActionPart left, ir::ActionPart right) {
  if (left.stage() != right.stage() || left.microbatch() != right.microbatch()) return false;
  return left.kind() == right.kind() ||
         (ir::gives_input_gradient(left.kind()) && ir::gives_input_gradient(right.kind()));
}

// The step of `row` that an action comes from.
std::optional<int> find_step(const ir::Row& row, const ir::Action& action) {
  const ir::ActionPart wanted = action.parts()[0];
  for (size_t step = 0; step < row.size(); ++step) {
    for (const ir::ActionPart part : row[step].parts()) {
      if (same_work(part, wanted)) return static_cast<int>(step);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<ir::Program> add_send_recv(ir::Program program, std::vector<StuckRank>* stuck) {
  return SendRecvPass(std::move(program)).run(stuck);
}

void report_stuck(const std::vector<StuckRank>& stuck, const ir::ComputeOrder& order,
                  ir::Diagnostics* diagnostics) {
  for (const StuckRank& one : stuck) {
    const ir::Need& need = one.waits_for;
    const char* what = need.result == ir::Result::kOutput ? "output" : "input gradient";
    ir::Place place;
    place.rank = one.rank;
    place.step = find_step(order.rows[static_cast<size_t>(one.rank)], one.action);
    diagnostics->error(
        ir::Rule::kCannotRun,
        fmt::format(
            "rank {} cannot go past `{}`: it waits for the {} of stage {} for microbatch {}, "
            "which rank {} never gets to",
            one.rank, ir::to_string(one.action), what, need.stage, need.microbatch, need.rank),
        place);
  }
}

}  // namespace pipewright::schedule
