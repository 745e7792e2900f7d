// What lower_bound() says about a rank depends on the layers of its own stages, but for two things:
// the layers between, before and after them only take time (Alone), and the first rank is the outer
// one of a nested window. So the least over all cuts of the largest bound of any rank is the
// shortest way through a graph, where the length of a way is that of its longest step: a node says
// which layers the first ranks have, as far as that matters to the others (Node::key), and a step
// adds a rank. The nodes are taken by their bounds, least first, so the first one in which all
// ranks have their layers has the least bound of all cuts. A node's bound is cheap at first, the
// work alone, and computed in full when the node would be taken. It is at least what the busiest of
// the ranks that are left must do (least_work.h).
//
// If that takes too long, the least bound of the nodes that are left is one for all cuts.
#include "pipewright/schedule/search/cut_bound.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "pipewright/schedule/bounds/bounds.h"
#include "pipewright/schedule/search/least_work.h"

namespace pipewright::schedule::search {
namespace {

constexpr int kMostBounds = 20'000;
constexpr size_t kMostNodes = 400'000;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Turns numbers into integers by a power of ten: the least one that makes all of `numbers`
// integers, as make_problem() does, because bounds of integers are rounded to their advantage; or
// else one with which `total` is below 1e12.
class Decimals {
 public:
  Decimals(const std::vector<double>& numbers, double total) {
    while (total * scale_ > 1e12) scale_ /= 10;
    while (total > 0 && total * scale_ < 1e11 && !fits(numbers)) scale_ *= 10;
  }
  // Rounded down, but for the noise of sums.
  int64_t down(double number) const {
    return static_cast<int64_t>(std::floor(number * scale_ + 0.01));
  }
  int64_t up(double number) const {
    return static_cast<int64_t>(std::ceil(std::min(number * scale_, 4e18) - 0.01));
  }
  double number(int64_t integer) const { return static_cast<double>(integer) / scale_; }

 private:
  bool fits(const std::vector<double>& numbers) const {
    return std::ranges::all_of(numbers, [&](double number) {
      const double scaled = number * scale_;
      return std::abs(scaled - std::round(scaled)) <= 1e-12 * scaled;
    });
  }

  double scale_ = 1;
};

class Model {
 public:
  explicit Model(const SearchRequest& request)
      : request_(request),
        costs_(request.costs),
        placement_(request.placement),
        forward_(costs_, {&Costs::forward}),
        input_(costs_, {&Costs::backward_input}),
        weight_(costs_, {&Costs::backward_weight}),
        activation_(costs_, {&Costs::activation_bytes}),
        checkpoint_(costs_, {&Costs::checkpoint_bytes}),
        weight_input_(costs_, {&Costs::weight_input_bytes}),
        model_(costs_, {&Costs::parameter_bytes, &Costs::gradient_bytes, &Costs::shard_bytes,
                        &Costs::optimizer_bytes}),
        output_(costs_, {&Costs::output_bytes}),
        input_gradient_(costs_, {&Costs::input_gradient_bytes}),
        microbatches_(costs_.microbatch_scale.empty()
                          ? request.num_microbatches
                          : std::accumulate(costs_.microbatch_scale.begin(),
                                            costs_.microbatch_scale.end(), 0.0)),
        fastest_(costs_.microbatch_scale.empty() ? 1 : std::ranges::min(costs_.microbatch_scale)),
        ticks_(times(), total_time()),
        memory_(sizes(), total_memory()) {}

  int num_layers() const { return forward_.num_layers(); }

  // The least that these layers keep a rank busy, compounds or not.
  double work(LayerRange layers, int rank) const {
    return scale(rank) * microbatches_ * (1 - costs_.overlap / 2) *
           (forward_.over(layers.first, layers.last) + input_.over(layers.first, layers.last) +
            weight_.over(layers.first, layers.last));
  }
  double scale(int rank) const {
    return costs_.rank_scale.empty() ? 1 : costs_.rank_scale[static_cast<size_t>(rank)];
  }

  // A bound on the cost of all schedules in which the stages of `rank`, and stage 0, have these
  // layers: `bounds` has the first layer of each stage where it is known, and -1 elsewhere.
  Bound bound_of(int rank, const std::vector<int>& bounds) const;
  double time(Ticks ticks) const { return ticks_.number(ticks); }

 private:
  double total_time() const {
    const int layers = num_layers();
    double most = costs_.rank_scale.empty() ? 1 : std::ranges::max(costs_.rank_scale);
    most = std::max(most, 1.0) * microbatches_ *
           (forward_.over(0, layers) + input_.over(0, layers) + weight_.over(0, layers));
    double hop = 0;
    for (int stage = 0; stage + 1 < placement_.num_stages(); ++stage)
      hop = std::max({hop, transfer(stage, stage + 1, most_of(output_)),
                      transfer(stage + 1, stage, most_of(input_gradient_))});
    return most + 2 * hop * placement_.num_stages();
  }
  // All that times are sums of.
  std::vector<double> times() const {
    std::vector<double> times;
    for (const LayerRun& run : costs_.layers) {
      for (int rank = 0; rank < placement_.num_ranks(); ++rank) {
        for (PerStage Costs::*cost :
             {&Costs::forward, &Costs::backward_input, &Costs::backward_weight}) {
          times.push_back(scale(rank) * run[cost]);
          times.push_back(times.back() * fastest_);
          times.push_back(times.back() * costs_.overlap);
        }
      }
      for (int stage = 0; stage + 1 < placement_.num_stages(); ++stage) {
        times.push_back(transfer(stage, stage + 1, run[&Costs::output_bytes]));
        times.push_back(transfer(stage + 1, stage, run[&Costs::input_gradient_bytes]));
      }
    }
    for (const auto& [ranks, link] : costs_.links) times.push_back(link.latency.value_or(0));
    times.push_back(costs_.link.latency);
    return times;
  }
  std::vector<double> sizes() const {
    if (!has_sizes()) return {1, 0.5};
    std::vector<double> sizes;
    for (const LayerRun& run : costs_.layers) {
      for (PerStage Costs::*cost :
           {&Costs::activation_bytes, &Costs::checkpoint_bytes, &Costs::weight_input_bytes})
        sizes.push_back(run[cost]);
    }
    return sizes;
  }
  static double most_of(const LayerSums& each) {
    double most = 0;
    for (int layer = 0; layer < each.num_layers(); ++layer) most = std::max(most, each.at(layer));
    return most;
  }
  bool has_sizes() const { return activation_.over(0, num_layers()) > 0; }
  double total_memory() const {
    if (!request_.memory.is_set()) return 0;
    if (!has_sizes()) return 2.0 * placement_.num_stages() * request_.num_microbatches;
    return (activation_.over(0, num_layers()) + weight_input_.over(0, num_layers())) *
           request_.num_microbatches;
  }

  double transfer(int from, int to, double bytes) const {
    const int one = placement_.rank_of(from), other = placement_.rank_of(to);
    if (one == other) return 0;
    Link link = costs_.link;
    if (const auto own = costs_.links.find({one, other}); own != costs_.links.end()) {
      if (own->second.latency) link.latency = *own->second.latency;
      if (own->second.bandwidth) link.bandwidth = *own->second.bandwidth;
    }
    return link.latency + bytes / link.bandwidth;
  }
  // What crosses the cut before a layer, forwards and backwards.
  double output_at(int layer) const { return layer == 0 ? 0 : output_.at(layer - 1); }
  double gradient_at(int layer) const {
    return layer == num_layers() ? 0 : input_gradient_.at(layer);
  }

  // The least times that pass between stage `from`, which ends before layer `first`, and stage
  // `to`, which begins at layer `last`: layers in between, and transfers.
  struct Between {
    double forward = 0, backward = 0;
  };
  Between between(int from, int to, LayerRange layers) const {
    Between least;
    double scale = kInfinity;
    for (int stage = from + 1; stage < to; ++stage)
      scale = std::min(scale, this->scale(placement_.rank_of(stage)));
    if (from + 1 < to) {
      least.forward = scale * fastest_ * forward_.over(layers.first, layers.last);
      least.backward = scale * fastest_ * input_.over(layers.first, layers.last);
    }
    double output = kInfinity, gradient = kInfinity;
    for (int layer = layers.first; layer <= layers.last; ++layer) {
      output = std::min(output, output_at(layer));
      gradient = std::min(gradient, gradient_at(layer));
    }
    const int end = std::min(to, placement_.num_stages() - 1);
    for (int stage = from; stage < end; ++stage) {
      // The first and the last hop are at known places.
      const int place = stage == from ? layers.first : layers.last;
      const bool known = stage == from || stage + 1 == to;
      least.forward += transfer(stage, stage + 1, known ? output_at(place) : output);
      least.backward += transfer(stage + 1, stage, known ? gradient_at(place) : gradient);
    }
    return least;
  }

  // One stage with these layers, without transfers.
  StageWork stage_work(LayerRange layers, int rank) const {
    StageWork work;
    const auto time = [&](const LayerSums& sums) {
      return ticks_.down(scale(rank) * sums.over(layers.first, layers.last));
    };
    work.forward = time(forward_);
    work.backward_input = time(input_);
    work.backward_weight = time(weight_);
    if (!request_.memory.is_set()) {
      work.activation = work.weight_input = 1;
    } else if (!has_sizes()) {
      work.activation = memory_.down(1);
      work.weight_input = memory_.down(0.5);
    } else {
      double activation = activation_.over(layers.first, layers.last);
      if (request_.may_recompute)
        activation = std::min(activation, checkpoint_.over(layers.first, layers.last));
      work.activation = memory_.down(activation);
      work.weight_input = memory_.down(weight_input_.over(layers.first, layers.last));
    }
    if (!request_.splits_backward) {
      work.backward_input += work.backward_weight;
      work.backward_weight = work.weight_input = 0;
    }
    return work;
  }

  // The memory that a rank has left for activations.
  double room(int rank, const std::vector<int>& stages, const std::vector<int>& bounds) const {
    double room = request_.memory.bytes ? request_.memory.bytes->at(rank) : 0;
    for (const int stage : stages) {
      const auto at = static_cast<size_t>(stage);
      const LayerRange layers{bounds[at], bounds[at + 1]};
      if (request_.memory.activations)
        room += request_.memory.activations->at(rank) *
                (has_sizes() ? activation_.over(layers.first, layers.last) : 1);
      if (!request_.memory.bytes) continue;
      room -= model_.over(layers.first, layers.last);
      if (stage > 0 && placement_.rank_of(stage - 1) != rank) room -= output_at(layers.first);
      if (stage + 1 < placement_.num_stages() && placement_.rank_of(stage + 1) != rank)
        room -= gradient_at(layers.last);
    }
    return room;
  }

  const SearchRequest& request_;
  const Costs& costs_;
  const ir::Placement& placement_;
  LayerSums forward_, input_, weight_, activation_, checkpoint_, weight_input_, model_, output_,
      input_gradient_;
  double microbatches_;  // as many of scale 1
  double fastest_;       // the least scale of a microbatch
  Decimals ticks_, memory_;
};

// The rank alone with stage 0: others only take time. Of stage 0, if it is another rank's, what may
// be the outer rank of a nested window: its time, and no memory.
Bound Model::bound_of(int rank, const std::vector<int>& bounds) const {
  constexpr int kOuter = 1, kAfter = 2;
  Problem problem;
  problem.num_microbatches = request_.num_microbatches;
  problem.microbatch_scale = costs_.microbatch_scale;
  problem.splits_backward = request_.splits_backward;
  problem.overlap = costs_.overlap;
  const std::vector<int> own = placement_.stages_of(rank);
  std::vector<int> stages = own, ranks(own.size(), 0);
  if (own.front() != 0) {
    stages.insert(stages.begin(), 0);
    ranks.insert(ranks.begin(), kOuter);
  }
  const auto layers_of = [&](int stage) {
    return LayerRange{bounds[static_cast<size_t>(stage)], bounds[static_cast<size_t>(stage) + 1]};
  };
  for (size_t k = 0; k < stages.size(); ++k) {
    StageWork work = stage_work(layers_of(stages[k]), placement_.rank_of(stages[k]));
    if (ranks[k] == kOuter) work.activation = work.weight_input = 1;
    problem.stages.push_back(work);
  }
  const bool is_last = stages.back() + 1 == placement_.num_stages();
  if (!is_last) {
    stages.push_back(placement_.num_stages());
    ranks.push_back(own.front() != 0 ? kAfter : kOuter);
    problem.stages.push_back({.activation = 1, .weight_input = 1});
  }
  for (size_t k = 0; k + 1 < stages.size(); ++k) {
    const int next = stages[k + 1];
    const Between time = between(
        stages[k], next,
        {layers_of(stages[k]).last,
         next == placement_.num_stages() ? num_layers() : bounds[static_cast<size_t>(next)]});
    problem.stages[k].output_transfer = ticks_.down(time.forward);
    problem.stages[k + 1].gradient_transfer = ticks_.down(time.backward);
  }
  problem.placement = ir::Placement::custom(1 + std::ranges::max(ranks), ranks);
  problem.memory_limits.assign(static_cast<size_t>(problem.num_ranks()), kNoLimit);
  if (request_.memory.is_set()) {
    const double limit = std::max(room(rank, own, bounds), -1.0);
    problem.memory_limits[0] = limit > 1e15 ? kNoLimit : memory_.up(limit);
    Memory whole = 0;
    for (const int stage : own) whole += stage_work(layers_of(stage), rank).activation;
    if (limit < 0 || whole > problem.memory_limits[0])
      return {.value = std::numeric_limits<Ticks>::max(), .name = "memory"};
  }
  return lower_bound(problem);
}

struct Node {
  std::vector<int> bounds;  // the first layer of each stage, and the number of layers; or -1
  int rank = 0;             // the first one whose stages are not known
  double bound = 0;         // with that of the ranks that are left
  double known = 0;         // of the ranks that have their layers
  bool is_cheap = false;    // the bound of rank - 1 is that of its work
  std::string name = {};    // of the bound that decides `known`, and its rank
  int decides = -1;

  // The one to take first; among equals the one that is farthest.
  bool operator>(const Node& other) const {
    return std::tuple(bound, -rank, bounds) > std::tuple(other.bound, -other.rank, other.bounds);
  }
};

class Search {
 public:
  Search(const SearchRequest& request, double limit)
      : model_(request), placement_(request.placement), limit_(limit) {
    // With a limit that is near, few cuts are looked at.
    double share = 0;
    for (double factor = 1; !least_work_ || least_ > limit_of_work_; factor *= 1.05) {
      limit_of_work_ = std::min(limit, share * factor);
      least_work_.emplace(
          placement_, model_.num_layers(),
          [this](LayerRange layers, int rank) { return model_.work(layers, rank); },
          limit_of_work_);
      share = least_work_->shared(0, root().bounds);
      least_ = least_work_->from(0, root().bounds);
      if (limit_of_work_ >= limit) break;
    }
  }

  CutBound run(const std::atomic<bool>* cancel) {
    nodes_.push(root());
    while (!nodes_.empty()) {
      Node node = nodes_.top();
      if (node.rank == placement_.num_ranks() && !node.is_cheap) return result_of(node);
      if (bounds_ >= kMostBounds || is_cancelled(cancel))
        return {.value = node.bound, .name = "work"};
      nodes_.pop();
      if (node.is_cheap) {
        complete(&node);
        continue;
      }
      if (!taken_.insert(key_of(node)).second) continue;
      expand(node, 0);
      // Some of its children may be missing.
      if (pushed_ >= kMostNodes) return {.value = node.bound, .name = "work"};
    }
    return {.value = limit_};
  }

 private:
  Node root() const {
    Node root;
    root.bounds.assign(static_cast<size_t>(placement_.num_stages()) + 1, -1);
    root.bounds.front() = 0;
    root.bounds.back() = model_.num_layers();
    return root;
  }

  // What matters to the ranks that come: stage 0, and the ends of their stages that are known.
  std::vector<int> key_of(const Node& node) const {
    std::vector<int> key = {node.rank, node.bounds[1]};
    const int stages = placement_.num_stages();
    const auto comes = [&](int stage) {
      return stage >= 0 && stage < stages && placement_.rank_of(stage) >= node.rank;
    };
    for (int bound = 0; bound <= stages; ++bound)
      key.push_back(comes(bound - 1) || comes(bound) ? node.bounds[static_cast<size_t>(bound)]
                                                     : -1);
    return key;
  }

  CutBound result_of(const Node& node) const {
    CutBound result{.value = node.bound, .name = node.name, .rank = node.decides};
    Cut& cut = result.cut.emplace();
    for (size_t stage = 0; stage + 1 < node.bounds.size(); ++stage)
      cut.push_back(node.bounds[stage + 1] - node.bounds[stage]);
    return result;
  }

  // Computes the bound of the rank that was added last.
  void complete(Node* node) {
    ++bounds_;
    const Bound bound = model_.bound_of(node->rank - 1, node->bounds);
    if (bound.value == std::numeric_limits<Ticks>::max()) return;
    // Times are rounded to 12 digits.
    const double value = model_.time(bound.value) * (1 - 1e-9);
    if (value > node->known || node->decides < 0) {
      node->known = std::max(value, node->known);
      node->name = bound.name;
      node->decides = node->rank - 1;
    }
    node->bound = std::max(node->bound, node->known);
    node->is_cheap = false;
    if (node->bound <= limit_) nodes_.push(*node);
  }

  // Chooses what is open of the bounds of the next rank, from the k-th on.
  void expand(Node& node, size_t k) {
    if (pushed_ >= kMostNodes) return;
    const std::vector<int>& open = least_work_->bounds_of(node.rank);
    if (k == open.size()) return push(node);
    const auto at = static_cast<size_t>(open[k]);
    if (node.bounds[at] >= 0) return expand(node, k + 1);
    least_work_->each_layer(node.rank, at, limit_, &node.bounds, [&] { expand(node, k + 1); });
  }

  void push(const Node& node) {
    Node next = node;
    ++next.rank;
    next.is_cheap = true;
    const double own = least_work_->work_of(node.rank, node.bounds) * (1 - 1e-9);
    if (own > next.known) {
      next.known = own;
      next.name = "work";
      next.decides = node.rank;
    }
    double rest = least_work_->from(next.rank, node.bounds);
    // It does not tell apart what is above the least of all cuts.
    if (limit_of_work_ < limit_) rest = std::min(rest, limit_of_work_);
    next.bound = std::max({next.bound, next.known, rest * (1 - 1e-9)});
    if (next.bound > limit_) return;
    ++pushed_;
    nodes_.push(std::move(next));
  }

  Model model_;
  const ir::Placement& placement_;
  double limit_;
  std::optional<LeastWork> least_work_;  // up to
  double limit_of_work_ = 0;             // which some cut has at most on each rank, or `limit_`
  double least_ = 0;
  std::priority_queue<Node, std::vector<Node>, std::greater<>> nodes_;
  std::set<std::vector<int>> taken_;
  int bounds_ = 0;
  size_t pushed_ = 0;
};

}  // namespace

CutBound cut_bound(const SearchRequest& request, double limit) {
  return Search(request, limit).run(request.cancel);
}

}  // namespace pipewright::schedule::search
