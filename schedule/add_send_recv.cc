#include "schedule/add_send_recv.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "ir/action_text.h"
#include "ir/dependencies.h"

namespace pipewright::schedule {
namespace {

// Which outputs and input gradients exist, by stage and microbatch.
class Made {
 public:
  explicit Made(const ir::Schedule& schedule)
      : num_microbatches_(static_cast<size_t>(schedule.num_microbatches)),
        made_(static_cast<size_t>(schedule.placement.num_stages()) * num_microbatches_) {}

  bool has(const ir::Need& need) const {
    return (made_[index(need.stage, need.microbatch)] & bit(need.result)) != 0;
  }
  void add(ir::ActionPart part) {
    for (const ir::Result result : {ir::Result::kOutput, ir::Result::kInputGradient}) {
      if (ir::makes(part.kind(), result))
        made_[index(part.stage(), part.microbatch())] |= bit(result);
    }
  }

 private:
  static uint8_t bit(ir::Result result) {
    return static_cast<uint8_t>(1 << static_cast<int>(result));
  }
  size_t index(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * num_microbatches_ + static_cast<size_t>(microbatch);
  }

  size_t num_microbatches_;
  std::vector<uint8_t> made_;
};

class SendRecvPass {
 public:
  explicit SendRecvPass(ir::Program program)
      : program_(std::move(program)), made_(program_), next_(program_.rows.size()) {
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
      for (const size_t rank : busy) progress = take_turn(rank) || progress;
      if (!progress) {
        for (const size_t rank : busy) {
          const ir::Action action = program_.rows[rank][next_[rank]];
          stuck->push_back({static_cast<int>(rank), action, *missing(action)});
        }
        return std::nullopt;
      }
      std::erase_if(busy, [&](size_t rank) { return next_[rank] == program_.rows[rank].size(); });
    }
    program_.rows = std::move(built_);
    program_.lowering.receives = ir::Receives::kPytorch;
    return std::move(program_);
  }

 private:
  // What an action waits for from other stages; the stage's own order is the row's.
  std::optional<ir::Need> missing(const ir::Action& action) const {
    for (const ir::ActionPart part : action.parts()) {
      if (!ir::is_compute(part.kind())) continue;
      for (const ir::Need& need : ir::needs_of(part, program_.placement)) {
        if (need.stage != part.stage() && !made_.has(need)) return need;
      }
    }
    return std::nullopt;
  }

  bool take_turn(size_t rank) {
    const ir::Action action = program_.rows[rank][next_[rank]];
    if (missing(action)) return false;
    ++next_[rank];
    if (action.is_idle()) return true;
    built_[rank].push_back(action);
    for (const ir::ActionPart part : action.parts()) {
      if (!ir::is_compute(part.kind())) continue;
      made_.add(part);
      if (const auto transfer = ir::transfer_of(part, program_.placement)) {
        built_[rank].emplace_back(transfer->send);
        built_[static_cast<size_t>(transfer->to)].emplace_back(transfer->receive);
      }
    }
    return true;
  }

  ir::Program program_;
  Made made_;
  std::vector<size_t> next_;
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
