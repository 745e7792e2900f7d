// Branch and bound over the stages. A node has decided for some stages whether they recompute. Its
// bound is that of a problem in which the others do both: they take the time of a stage that does
// not recompute and the memory of one that does. A schedule of any of the node's choices becomes a
// schedule of that problem, with the same span on every rank, if each I of such a stage starts
// later and leaves the recomputation out. So the node's bound holds for all of its choices.
//
// Nodes are taken by their bounds, least first. So the first one that has decided for all stages
// has the least bound of all choices. If the budget ends before, the bound of the next node is one
// for all.
#include "pipewright/schedule/search/recompute.h"

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

enum class Mode : uint8_t { kPlain, kRecomputes, kUndecided };

struct PartialChoice {
  std::vector<Mode> modes;  // by stage
  Bound bound;
  int undecided = 0;

  // The one to take first; among equals the one that is nearest to a choice, then the one where
  // fewer stages recompute.
  bool operator>(const PartialChoice& other) const {
    const auto key = [](const PartialChoice& one) {
      return std::tuple(one.bound.value, one.undecided,
                        std::ranges::count(one.modes, Mode::kRecomputes));
    };
    return std::tuple(key(*this), modes) > std::tuple(key(other), other.modes);
  }
};

Problem relaxed(const RecomputeProblem& of, const std::vector<Mode>& modes) {
  Problem problem = of.plain;
  for (size_t stage = 0; stage < modes.size(); ++stage) {
    StageWork& work = problem.stages[stage];
    const StageWork& recomputing = of.recomputing.stages[stage];
    if (modes[stage] == Mode::kRecomputes) work = recomputing;
    if (modes[stage] == Mode::kUndecided) {
      work.activation = recomputing.activation;
      work.recomputed = recomputing.recomputed;
    }
  }
  return problem;
}

class Tree {
 public:
  Tree(const RecomputeProblem& bounded, const RecomputeProblem& least)
      : bounded_(bounded), least_(least) {
    const int64_t stages = bounded.plain.num_stages();
    left_ = std::max(2 * stages, 64'000 / stages);
  }

  RecomputeChoices search() {
    RecomputeChoices choices;
    const auto stages = static_cast<size_t>(bounded_.plain.num_stages());
    if (auto root = node_of(std::vector<Mode>(stages, Mode::kUndecided), {})) {
      const PartialChoice dive = dive_from(*root);
      nodes_.push(std::move(*root));
      choices.bound = expand(&choices.promising);
      add(dive, &choices.promising);
    }
    for (const Mode mode : {Mode::kPlain, Mode::kRecomputes}) {
      if (const auto all = node_of(std::vector<Mode>(stages, mode), {}))
        add(*all, &choices.promising);
    }
    // Often many choices have one bound. The first stages keep their activations longest.
    const size_t prefixes = std::min(kMostPrefixes, stages - 1);
    for (size_t k = 1; k <= prefixes; ++k) {
      std::vector<Mode> modes(stages, Mode::kPlain);
      std::fill_n(modes.begin(), k * stages / (prefixes + 1), Mode::kRecomputes);
      if (const auto prefix = node_of(std::move(modes), {})) add(*prefix, &choices.promising);
    }
    std::ranges::stable_sort(choices.promising, {}, [](const RecomputeChoice& one) {
      return std::pair(one.bound.value, one.stages.size());
    });
    return choices;
  }

 private:
  // nullopt if one microbatch does not fit.
  std::optional<PartialChoice> node_of(std::vector<Mode> modes, const Bound& parent) const {
    const Problem least = relaxed(least_, modes);
    if (!std::ranges::equal(least_memory(least), least.memory_limits, std::less_equal<>()))
      return std::nullopt;
    PartialChoice node{.modes = std::move(modes), .bound = parent};
    if (Bound own = lower_bound(relaxed(bounded_, node.modes)); own.value > parent.value)
      node.bound = std::move(own);
    node.undecided = static_cast<int>(std::ranges::count(node.modes, Mode::kUndecided));
    return node;
  }

  std::vector<PartialChoice> children(const PartialChoice& node) const {
    const size_t stage = stage_to_decide(node);
    std::vector<PartialChoice> children;
    for (const Mode mode : {Mode::kPlain, Mode::kRecomputes}) {
      std::vector<Mode> modes = node.modes;
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
  // undecided stage fits, one that recomputes does.
  PartialChoice dive_from(PartialChoice node) const {
    while (node.undecided > 0) {
      std::vector<PartialChoice> next = children(node);
      node = std::move(*std::ranges::min_element(
          next, {}, [](const PartialChoice& one) { return one.bound.value; }));
    }
    return node;
  }

  Bound expand(std::vector<RecomputeChoice>* choices) {
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

  void add(const PartialChoice& node, std::vector<RecomputeChoice>* choices) const {
    RecomputeChoice choice;
    for (size_t stage = 0; stage < node.modes.size(); ++stage) {
      if (node.modes[stage] == Mode::kRecomputes) choice.stages.push_back(static_cast<int>(stage));
    }
    if (std::ranges::find(*choices, choice.stages, &RecomputeChoice::stages) != choices->end())
      return;
    choice.bound = lower_bound(bounded_.with(choice.stages));
    choices->push_back(std::move(choice));
  }

  const RecomputeProblem& bounded_;
  const RecomputeProblem& least_;
  std::priority_queue<PartialChoice, std::vector<PartialChoice>, std::greater<>> nodes_;
  int64_t left_ = 0;
};

}  // namespace

RecomputeChoices recompute_choices(const RecomputeProblem& bounded, const RecomputeProblem& least) {
  return Tree(bounded, least).search();
}

}  // namespace pipewright::schedule::search
