// Both policies walk along a row and keep the set of stages that are unsharded (Residency).
//
// kPytorch: two windows slide over the row, each with the next k different stages in use. Stages
// that leave the window of `residency` are resharded, stages that enter the window of `lookahead`
// are unsharded. Uses are counted per stage as they enter and leave (NextStages), so that the ends
// of a window only move forward: linear.
//
// kFarthest: a first walk decides by Belady's rule which stages to unshard and which to reshard to
// make room, each UNSHARD as late as possible (fewest_gathers). A second walk emits the same
// UNSHARDs and RESHARDs in the same order, but each UNSHARD as soon as the lookahead and the stage
// that it replaces allow: this changes when a stage is unsharded, never how often. Upcoming keeps
// the stages of the row sorted by next use. Time: actions times stages of the rank.
#include "pipewright/schedule/lowering/add_unshard_reshard.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "pipewright/ir/check.h"

namespace pipewright::schedule {
namespace {

using ir::Action;
using ir::ActionKind;
using ir::ActionPart;

constexpr uint32_t kNever = UINT32_MAX;

// A use of a stage that is still to come.
struct Use {
  uint32_t position;  // of the action in its row
  uint8_t part;       // which part of a compound: 0 or 1
  int stage;

  friend bool operator<(const Use& left, const Use& right) {
    return std::pair(left.position, left.part) < std::pair(right.position, right.part);
  }
};

// The next use of each stage of a row, soonest first, during a walk along the row.
class Upcoming {
 public:
  // `next_use` has an entry per stage, all kNever; they are kNever again after the last action.
  Upcoming(const ir::Row& row, std::vector<uint32_t>* next_use) : next_use_(*next_use) {
    after_.resize(2 * row.size());
    for (size_t position = row.size(); position-- > 0;) {
      const auto parts = row[position].parts();
      for (size_t part = parts.size(); part-- > 0;) {
        after_[2 * position + part] = next_use_[static_cast<size_t>(parts[part].stage())];
      }
      for (const ActionPart part : parts)
        next_use_[static_cast<size_t>(part.stage())] = static_cast<uint32_t>(position);
    }
    for (size_t position = 0; position < row.size(); ++position) {
      const auto parts = row[position].parts();
      for (size_t part = 0; part < parts.size(); ++part) {
        const int stage = parts[part].stage();
        const bool first = next_use_[static_cast<size_t>(stage)] == position;
        if (first && !contains(stage))
          uses_.push_back({static_cast<uint32_t>(position), static_cast<uint8_t>(part), stage});
      }
    }
  }

  const std::vector<Use>& uses() const { return uses_; }
  uint32_t next_use(int stage) const { return next_use_[static_cast<size_t>(stage)]; }

  // How many of uses() are the first `count` different stages, plus the other stage of a compound
  // that the last of them belongs to.
  size_t window(int count) const {
    size_t size = std::min(static_cast<size_t>(count), uses_.size());
    while (size > 0 && size < uses_.size() && uses_[size].position == uses_[size - 1].position)
      ++size;
    return size;
  }

  // Moves past the action at `position`, whose stages come first in uses().
  void pass(const ir::Row& row, size_t position) {
    for (size_t parts = row[position].parts().size(); parts > 0; --parts) {
      if (uses_.empty() || uses_.front().position != position)
        continue;  // both parts are of one stage
      Use use = uses_.front();
      const uint32_t next = after_[2 * position + use.part];
      next_use_[static_cast<size_t>(use.stage)] = next;
      if (next == kNever) {
        uses_.erase(uses_.begin());
        continue;
      }
      use.position = next;
      use.part = row[next].parts()[0].stage() == use.stage ? 0 : 1;
      size_t place = 0;
      for (; place + 1 < uses_.size() && uses_[place + 1] < use; ++place)
        uses_[place] = uses_[place + 1];
      uses_[place] = use;
    }
  }

 private:
  bool contains(int stage) const {
    return std::ranges::find(uses_, stage, &Use::stage) != uses_.end();
  }

  std::vector<uint32_t>& next_use_;
  std::vector<uint32_t> after_;  // two for each action: the next use of the part's stage after it
  std::vector<Use> uses_;
};

// The unsharded stages of a rank, in the order in which they are resharded, and the output row with
// actions, UNSHARDs and RESHARDs.
class Residency {
 public:
  // With room for a SEND and a RECV per compute, so that add_send_recv() need not copy the row.
  explicit Residency(size_t num_actions, bool oldest_first = false) : oldest_first_(oldest_first) {
    row_.reserve(3 * num_actions + num_actions / 4 + 8);
  }

  const std::vector<int>& stages() const { return stages_; }
  size_t size() const { return stages_.size(); }
  size_t most() const { return most_; }  // so far
  bool has(int stage) const { return std::ranges::find(stages_, stage) != stages_.end(); }

  void unshard(int stage) {
    row_.emplace_back(ActionKind::kUnshard, stage);
    stages_.insert(oldest_first_ ? stages_.end() : std::ranges::upper_bound(stages_, stage), stage);
    most_ = std::max(most_, stages_.size());
  }
  void reshard(int stage) {
    row_.emplace_back(ActionKind::kReshard, stage);
    stages_.erase(std::ranges::find(stages_, stage));
  }
  template <typename Predicate>
  void reshard_where(Predicate unwanted) {
    for (size_t index = 0; index < stages_.size();) {
      if (unwanted(stages_[index])) {
        reshard(stages_[index]);
      } else {
        ++index;
      }
    }
  }
  void run(const Action& action) { row_.push_back(action); }

  // Reshards the stages that are still unsharded and returns the row.
  ir::Row finish() {
    reshard_where([](int) { return true; });
    return std::move(row_);
  }

 private:
  const bool oldest_first_;
  std::vector<int> stages_;
  size_t most_ = 0;
  ir::Row row_;
};

// Whether a stage is one of the first `window` uses.
bool is_near(const Upcoming& upcoming, size_t window, int stage) {
  const auto& uses = upcoming.uses();
  const auto end = uses.begin() + static_cast<std::ptrdiff_t>(window);
  return std::find_if(uses.begin(), end, [&](const Use& use) { return use.stage == stage; }) != end;
}

// A row with UNSHARDs and RESHARDs, and the most stages that it has unsharded at a time.
struct Sharded {
  ir::Row row;
  size_t most;
};

// `ahead` is null if it is the same window as `kept`.
Sharded keep_the_next(const ir::Row& row, NextStages kept, NextStages* ahead, bool oldest_first) {
  Residency residency(row.size(), oldest_first);
  bool lost = false;
  std::vector<int> gained;
  for (const Action& action : row) {
    if (action.is_idle()) continue;
    gained.clear();
    kept.fill([&](int stage) { gained.push_back(stage); });
    if (lost) residency.reshard_where([&](int stage) { return !kept.has(stage); });
    if (ahead != nullptr) {
      gained.clear();
      ahead->fill([&](int stage) { gained.push_back(stage); });
    }
    for (const int stage : gained) {
      if (!residency.has(stage)) residency.unshard(stage);
    }
    residency.run(action);
    lost = kept.pass(action);
    if (ahead != nullptr) ahead->pass(action);
  }
  return {residency.finish(), residency.most()};
}

// An UNSHARD, and the stage that is resharded to make room for it.
struct Gather {
  size_t needed_at;
  int stage;
  std::optional<int> freed;
};

// The UNSHARDs and RESHARDs of a row with the fewest gathers, each as late as possible.
struct Plan {
  std::vector<Gather> gathers;
  // RESHARDs after a compound that exceeded the residency, as (step, stage); no UNSHARD replaces
  // these stages.
  std::vector<std::pair<size_t, int>> frees;
};

Plan fewest_gathers(const ir::Row& row, int most, std::vector<uint32_t>* next_use) {
  Upcoming upcoming(row, next_use);
  Residency residency(0);
  Plan plan;
  for (size_t position = 0; position < row.size(); ++position) {
    residency.reshard_where([&](int stage) { return upcoming.next_use(stage) == kNever; });
    const auto farthest = [&] {
      return *std::ranges::max_element(residency.stages(), {},
                                       [&](int other) { return upcoming.next_use(other); });
    };
    while (residency.size() > static_cast<size_t>(most) &&
           upcoming.next_use(farthest()) > position) {
      plan.frees.emplace_back(position, farthest());
      residency.reshard(plan.frees.back().second);
    }
    const size_t own = upcoming.window(1);
    for (size_t index = 0; index < own; ++index) {
      const int stage = upcoming.uses()[index].stage;
      if (residency.has(stage)) continue;
      Gather gather{position, stage, std::nullopt};
      if (residency.size() >= static_cast<size_t>(most)) {
        // Otherwise all unsharded stages are needed now: a compound exceeds the residency.
        if (upcoming.next_use(farthest()) > position) gather.freed = farthest();
      }
      if (gather.freed) residency.reshard(*gather.freed);
      residency.unshard(stage);
      plan.gathers.push_back(gather);
    }
    upcoming.pass(row, position);
  }
  return plan;
}

// The second walk: the planned gathers, each as soon as the lookahead allows and the stage that it
// replaces is not needed before.
Sharded keep_the_nearest(const ir::Row& row, int most, int lookahead,
                         std::vector<uint32_t>* next_use) {
  const auto [gathers, frees] = fewest_gathers(row, most, next_use);
  Upcoming upcoming(row, next_use);
  Residency residency(row.size());
  size_t next = 0;
  size_t next_free = 0;
  for (size_t position = 0; position < row.size(); ++position) {
    residency.reshard_where([&](int stage) { return upcoming.next_use(stage) == kNever; });
    for (; next_free < frees.size() && frees[next_free].first == position; ++next_free) {
      residency.reshard(frees[next_free].second);
    }
    const size_t ahead = upcoming.window(lookahead);
    for (; next < gathers.size(); ++next) {
      const Gather& gather = gathers[next];
      if (gather.needed_at > position) {
        const bool has_room = gather.freed ? upcoming.next_use(*gather.freed) > gather.needed_at
                                           : residency.size() < static_cast<size_t>(most);
        const bool free_first =
            next_free < frees.size() && frees[next_free].first <= gather.needed_at;
        if (!has_room || free_first || !is_near(upcoming, ahead, gather.stage)) break;
      }
      if (gather.freed) residency.reshard(*gather.freed);
      residency.unshard(gather.stage);
    }
    residency.run(row[position]);
    upcoming.pass(row, position);
  }
  return {residency.finish(), residency.most()};
}

}  // namespace

ir::Program add_unshard_reshard(const ir::ComputeOrder& order, const ResidencyPolicy& policy) {
  PW_CHECK(policy.residency >= 1, "residency is at least 1");
  ir::Program program{{order.name,
                       order.placement,
                       order.num_microbatches,
                       order.lowering,
                       order.recompute,
                       order.offload,
                       order.cut,
                       order.slices,
                       {}}};
  program.lowering.lookahead = policy.lookahead;
  program.lowering.evict = policy.evict;
  program.rows.reserve(order.rows.size());
  const auto num_stages = static_cast<size_t>(program.placement.num_stages());
  std::vector<uint32_t> next_use(num_stages, kNever), uses_kept(num_stages), uses_ahead(num_stages);
  size_t most = 0;
  ir::Row without_idle;
  for (size_t rank = 0; rank < order.rows.size(); ++rank) {
    const ir::Row& row = order.rows[rank];
    const int lookahead = policy.lookahead.of_rank(rank, policy.residency);
    PW_CHECK(lookahead >= 1, "lookahead is at least 1");
    Sharded sharded;
    switch (policy.evict) {
      case ir::Eviction::kPytorch: {
        NextStages ahead(row, std::min(lookahead, policy.residency), &uses_ahead);
        sharded =
            keep_the_next(row, NextStages(row, policy.residency, &uses_kept),
                          lookahead < policy.residency ? &ahead : nullptr, policy.oldest_first);
        break;
      }
      case ir::Eviction::kFarthest:
        without_idle.clear();
        std::ranges::copy_if(row, std::back_inserter(without_idle),
                             [](const Action& action) { return !action.is_idle(); });
        sharded = keep_the_nearest(without_idle, policy.residency, lookahead, &next_use);
        break;
    }
    program.rows.push_back(std::move(sharded.row));
    most = std::max(most, sharded.most);
  }
  const bool holds = most <= static_cast<size_t>(policy.residency);
  program.lowering.residency = holds ? std::optional(policy.residency) : std::nullopt;
  return program;
}

ResidencyPolicy residency_policy(const ir::Lowering& policies) {
  ResidencyPolicy policy;
  policy.residency = policies.residency.value_or(policy.residency);
  policy.oldest_first = policies.torch.value_or(ir::kNewestTorch) == ir::Torch::k2_15;
  if (policy.oldest_first) policy.lookahead = ir::Lookahead(ir::Lookahead::Kind::kFull);
  policy.lookahead = policies.lookahead.value_or(policy.lookahead);
  policy.evict = policies.evict.value_or(policy.evict);
  return policy;
}

int least_residency(const ir::ComputeOrder& order, ResidencyPolicy policy) {
  while (!add_unshard_reshard(order, policy).lowering.residency) ++policy.residency;
  return policy.residency;
}

std::vector<size_t> fewest_unshards(const ir::ComputeOrder& order, int residency) {
  std::vector<uint32_t> next_use(static_cast<size_t>(order.placement.num_stages()), kNever);
  std::vector<size_t> fewest;
  fewest.reserve(order.rows.size());
  for (const ir::Row& row : order.rows)
    fewest.push_back(fewest_gathers(row, residency, &next_use).gathers.size());
  return fewest;
}

}  // namespace pipewright::schedule
