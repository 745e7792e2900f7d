// Branch and bound over the stages. A node has decided for some stages what they do: keep all,
// recompute or offload. Its bound is that of a problem in which the others do all at once: they
// take the time of a stage that keeps all and the memory of the one that keeps least. A schedule of
// any of the node's choices becomes a schedule of that problem, with the same span on every rank,
// if each I of a stage that recomputes starts later and leaves the recomputation out, and no stage
// has copies. So the node's bound holds for all of its choices.
//
// Nodes are taken by their bounds, least first. So the first one that has decided for all stages
// has the least bound of all choices. If the budget ends before, the bound of the next node is one
// for all.
#include "pipewright/schedule/search/saving.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

#include "pipewright/schedule/search/words.h"

namespace pipewright::schedule::search {
namespace {

constexpr size_t kMostByBound = 4;
constexpr size_t kMostPrefixes = 8;

enum class Mode : uint8_t { kPlain, kRecomputes, kOffloads, kUndecided };
using Modes = std::vector<Mode>;  // by stage

const StageWork& work_of(const SavingProblem& of, Mode mode, size_t stage) {
  const Problem& problem = mode == Mode::kRecomputes ? of.recomputing
                           : mode == Mode::kOffloads ? of.offloading
                                                     : of.plain;
  return problem.stages[stage];
}

// The modes that a stage may have, kPlain first.
std::vector<Mode> modes_of(const SavingProblem& of, AllowedSaving allowed, size_t stage) {
  std::vector<Mode> modes = {Mode::kPlain};
  if (allowed.recompute) modes.push_back(Mode::kRecomputes);
  if (allowed.offload && of.offloading.stages[stage].offloaded > 0)
    modes.push_back(Mode::kOffloads);
  return modes;
}

StageWork undecided_work(const SavingProblem& of, AllowedSaving allowed, size_t stage) {
  StageWork work = of.plain.stages[stage];
  const Memory whole = work.activation;
  for (const Mode mode : modes_of(of, allowed, stage))
    work.activation = std::min(work.activation, work_of(of, mode, stage).activation);
  work.recomputed = whole - work.activation;  // in every mode, I runs beside the whole
  return work;
}

Problem relaxed(const SavingProblem& of, AllowedSaving allowed, const Modes& modes) {
  Problem problem = of.plain;
  for (size_t stage = 0; stage < modes.size(); ++stage)
    problem.stages[stage] = modes[stage] == Mode::kUndecided ? undecided_work(of, allowed, stage)
                                                             : work_of(of, modes[stage], stage);
  return problem;
}

struct PartialChoice {
  Modes modes;
  Bound bound;
  int undecided = 0;

  // The one to take first; among equals the one that is nearest to a choice, then the one where
  // fewer stages recompute or offload.
  bool operator>(const PartialChoice& other) const {
    const auto key = [](const PartialChoice& one) {
      const auto count = [&](Mode mode) { return std::ranges::count(one.modes, mode); };
      return std::tuple(one.bound.value, one.undecided, count(Mode::kRecomputes),
                        count(Mode::kOffloads));
    };
    return std::tuple(key(*this), modes) > std::tuple(key(other), other.modes);
  }
};

class Tree {
 public:
  Tree(const SavingProblem& bounded, const SavingProblem& least, AllowedSaving allowed)
      : bounded_(bounded), least_(least), allowed_(allowed) {
    const int64_t stages = bounded.plain.num_stages();
    left_ = std::max(2 * stages, 64'000 / stages);
  }

  SavingChoices search() {
    SavingChoices choices;
    const auto stages = static_cast<size_t>(bounded_.plain.num_stages());
    if (auto root = node_of(Modes(stages, Mode::kUndecided), {})) {
      const PartialChoice dive = dive_from(*root);
      nodes_.push(std::move(*root));
      choices.bound = expand(&choices.promising);
      add(dive, &choices.promising);
    }
    std::vector<std::pair<Mode, Mode>> kinds;  // of the first stages, and of the others
    if (allowed_.recompute) kinds.emplace_back(Mode::kRecomputes, Mode::kPlain);
    if (allowed_.offload) kinds.emplace_back(Mode::kOffloads, Mode::kPlain);
    if (allowed_.recompute && allowed_.offload)
      kinds.emplace_back(Mode::kOffloads, Mode::kRecomputes);
    try_prefix(0, Mode::kPlain, Mode::kPlain, &choices.promising);
    for (const auto& [first, others] : kinds) try_prefix(stages, first, others, &choices.promising);
    // Often many choices have one bound. The first stages keep their activations longest.
    const size_t prefixes = std::min(kMostPrefixes, stages - 1);
    for (const auto& [first, others] : kinds) {
      for (size_t k = 1; k <= prefixes; ++k)
        try_prefix(k * stages / (prefixes + 1), first, others, &choices.promising);
    }
    std::ranges::stable_sort(choices.promising, {}, [](const SavingChoice& one) {
      return std::pair(one.bound.value, one.saving.recompute.size() + one.saving.offload.size());
    });
    return choices;
  }

 private:
  // nullopt if one microbatch does not fit.
  std::optional<PartialChoice> node_of(Modes modes, const Bound& parent) const {
    const Problem least = relaxed(least_, allowed_, modes);
    if (!std::ranges::equal(least_memory(least), least.memory_limits, std::less_equal<>()))
      return std::nullopt;
    PartialChoice node{.modes = std::move(modes), .bound = parent};
    if (Bound own = lower_bound(relaxed(bounded_, allowed_, node.modes)); own.value > parent.value)
      node.bound = std::move(own);
    node.undecided = static_cast<int>(std::ranges::count(node.modes, Mode::kUndecided));
    return node;
  }

  std::vector<PartialChoice> children(const PartialChoice& node) const {
    const size_t stage = stage_to_decide(node);
    std::vector<PartialChoice> children;
    for (const Mode mode : modes_of(bounded_, allowed_, stage)) {
      Modes modes = node.modes;
      modes[stage] = mode;
      if (auto child = node_of(std::move(modes), node.bound)) children.push_back(std::move(*child));
    }
    return children;
  }

  // On the rank whose span or window is bounded, where it changes the bound most likely.
  size_t stage_to_decide(const PartialChoice& node) const {
    const int rank = node.bound.other >= 0 ? node.bound.other : node.bound.rank;
    std::optional<size_t> first;
    for (size_t stage = 0; stage < node.modes.size(); ++stage) {
      if (node.modes[stage] != Mode::kUndecided) continue;
      if (bounded_.plain.placement.rank_of(static_cast<int>(stage)) == rank) return stage;
      if (!first) first = stage;
    }
    return *first;
  }

  // Decides for one stage after the other, by the bounds. Some child always fits: where an
  // undecided stage fits, the one that keeps least does.
  PartialChoice dive_from(PartialChoice node) const {
    while (node.undecided > 0) {
      std::vector<PartialChoice> next = children(node);
      node = std::move(*std::ranges::min_element(
          next, {}, [](const PartialChoice& one) { return one.bound.value; }));
    }
    return node;
  }

  Bound expand(std::vector<SavingChoice>* choices) {
    std::optional<Bound> bound;
    while (!nodes_.empty() && choices->size() < kMostByBound) {
      const PartialChoice node = nodes_.top();
      if (!bound && (node.undecided == 0 || left_ <= 0)) bound = node.bound;
      if (left_ <= 0) break;
      nodes_.pop();
      if (node.undecided == 0) {
        add(node, choices);
        continue;
      }
      for (PartialChoice& child : children(node)) {
        --left_;
        nodes_.push(std::move(child));
      }
    }
    return *bound;
  }

  // The choice in which the first `count` stages have one mode and the others another, where they
  // can.
  void try_prefix(size_t count, Mode first, Mode others, std::vector<SavingChoice>* choices) const {
    Modes modes;
    for (size_t stage = 0; stage < static_cast<size_t>(bounded_.plain.num_stages()); ++stage) {
      const std::vector<Mode> can = modes_of(bounded_, allowed_, stage);
      const Mode mode = stage < count ? first : others;
      modes.push_back(std::ranges::find(can, mode) != can.end() ? mode : Mode::kPlain);
    }
    if (const auto prefix = node_of(std::move(modes), {})) add(*prefix, choices);
  }

  void add(const PartialChoice& node, std::vector<SavingChoice>* choices) const {
    SavingChoice choice;
    for (size_t stage = 0; stage < node.modes.size(); ++stage) {
      if (node.modes[stage] == Mode::kRecomputes)
        choice.saving.recompute.push_back(static_cast<int>(stage));
      if (node.modes[stage] == Mode::kOffloads)
        choice.saving.offload.push_back(static_cast<int>(stage));
    }
    if (std::ranges::find(*choices, choice.saving, &SavingChoice::saving) != choices->end()) return;
    choice.bound = lower_bound(bounded_.with(choice.saving));
    choices->push_back(std::move(choice));
  }

  const SavingProblem& bounded_;
  const SavingProblem& least_;
  const AllowedSaving allowed_;
  std::priority_queue<PartialChoice, std::vector<PartialChoice>, std::greater<>> nodes_;
  int64_t left_ = 0;
};

}  // namespace

SavingChoices saving_choices(const SavingProblem& bounded, const SavingProblem& least,
                             AllowedSaving allowed) {
  return Tree(bounded, least, allowed).search();
}

Problem undecided(const SavingProblem& problem, AllowedSaving allowed) {
  return relaxed(problem, allowed, Modes(problem.plain.stages.size(), Mode::kUndecided));
}

}  // namespace pipewright::schedule::search
