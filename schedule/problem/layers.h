#ifndef PIPEWRIGHT_SCHEDULE_PROBLEM_LAYERS_H_
#define PIPEWRIGHT_SCHEDULE_PROBLEM_LAYERS_H_

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <vector>

#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/placement.h"
#include "pipewright/schedule/problem/costs.h"

// Cuts: how the layers of a model become stages. A cut says how many layers each stage has, in the
// order of the pipeline; a stage may have none.
//
//   Costs costs;                                    // a model of 16 equal layers
//   costs.layers = {LayerRun()};
//   costs.layers[0].count = 16;
//   const Costs stages = cut_layers(costs, {5, 4, 4, 3});
//   stages.forward.at(0)  5
//   layer_ranges({5, 4, 4, 3})[1]  from layer 5 to before layer 9: what stage 1 is made of
//
// Times and sizes of a stage are the sums over its layers, with these exceptions. Its output_bytes
// are those of its last layer, its input_gradient_bytes those of its first one; a stage without
// layers passes on what it gets. Its `recompute` is the mean over its layers, weighted by their
// forwards. Pure functions; any thread.

namespace pipewright::schedule {

using Cut = std::vector<int>;  // layers by stage

int num_layers(const Costs& costs);

// Whether a cost of some stage or layer is above 0.
bool is_above_zero(const Costs& costs, PerStage Costs::*cost);

// Stages of equal numbers of layers; the first ones have one more if it does not come out even.
Cut even_cut(int num_layers, int num_stages);

// The cut with the least work, F + I + W, on the stage with the most, as long as that takes on its
// rank (rank_scale).
Cut least_maximum_cut(const Costs& costs, const ir::Placement& placement);

// What the ends of a model of equal blocks cost, in any unit.
struct PartCosts {
  double embedding = 0;  // of the first stage
  double block = 1;
  double output = 0;  // of the last stage, with the loss
};

// The number of blocks of each stage so that the stage with the most work has as little as
// possible, with the embedding and the output layer beside the blocks. With an expensive one, the
// first or last stage has fewer blocks, or none. Where there is a choice, later stages have more,
// as they store fewer activations.
Cut balanced_cut(int num_blocks, int num_stages, const PartCosts& costs = {});

// The layers of one stage: from `first` to before `last`, of which there may be none.
struct LayerRange {
  int first = 0, last = 0;

  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};
// By stage.
std::vector<LayerRange> layer_ranges(const Cut& cut);

// The cut for a schedule with so many stages: that of the costs, or else the schedule's own, or
// else the even one; empty for costs without layers. nullopt, and an error is added, if a number is
// no cost, the cut does not have all layers, or there are costs per stage beside them.
std::optional<Cut> cut_of(const Costs& costs, const Cut& own_cut, const CostPlaces& places,
                          int num_stages, ir::Diagnostics* diagnostics);

// The costs of stages with these layers; the cut must have all of them. The result has no layers.
Costs cut_layers(const Costs& costs, const Cut& cut);

// The costs for a schedule with so many stages: of costs with layers, those of the stages of
// cut_of(); otherwise the costs as they are. Errors as in cut_of().
std::optional<Costs> cut_layers(const Costs& costs, const Cut& own_cut, const CostPlaces& places,
                                int num_stages, ir::Diagnostics* diagnostics);

// Sums of a cost over the layers from `first` to before `last`, in constant time.
class LayerSums {
 public:
  // Of the sum of these costs.
  LayerSums(const Costs& costs, std::initializer_list<PerStage Costs::*> summed);

  double over(int first, int last) const {
    return sums_[static_cast<size_t>(last)] - sums_[static_cast<size_t>(first)];
  }
  // Of one layer.
  double at(int layer) const { return over(layer, layer + 1); }
  int num_layers() const { return static_cast<int>(sums_.size()) - 1; }

 private:
  std::vector<double> sums_ = {0};
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_PROBLEM_LAYERS_H_
