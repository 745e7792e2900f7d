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

  std::optional<ir::Program> run(ir::Diagnostics* diagnostics) {
    std::vector<size_t> busy;  // ranks with actions left, ascending
    for (size_t rank = 0; rank < next_.size(); ++rank) {
      if (!program_.rows[rank].empty()) busy.push_back(rank);
    }
    while (!busy.empty()) {
      bool progress = false;
      for (const size_t rank : busy) progress = take_turn(rank) || progress;
      if (!progress) {
        for (const size_t rank : busy) report_stuck(rank, diagnostics);
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

  void report_stuck(size_t rank, ir::Diagnostics* diagnostics) const {
    const size_t step = next_[rank];
    const ir::Action action = program_.rows[rank][step];
    const ir::Need need = *missing(action);
    const char* what = need.result == ir::Result::kOutput ? "output" : "input gradient";
    ir::Place place;
    place.rank = static_cast<int>(rank);
    diagnostics->error(
        ir::Rule::kCannotRun,
        fmt::format("rank {} cannot go past `{}`: the {} of stage {} for microbatch {} is never "
                    "made before it, "
                    "on rank {}",
                    rank, ir::to_string(action), what, need.stage, need.microbatch, need.rank),
        place);
  }

  ir::Program program_;
  Made made_;
  std::vector<size_t> next_;
  ir::Rows built_;
};

}  // namespace

std::optional<ir::Program> add_send_recv(ir::Program program, ir::Diagnostics* diagnostics) {
  return SendRecvPass(std::move(program)).run(diagnostics);
}

}  // namespace pipewright::schedule
