#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_RECORDED_COSTS_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_RECORDED_COSTS_H_

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"
#include "pipewright/schedule/problem/costs.h"

namespace pipewright::schedule {

// The lower median: of an even number of values, the lower of the two in the middle. 0 if empty.
inline double lower_median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// The transfer of a tensor between ranks, as far as a recording tells. When the tensor arrived is
// known only if its receiver waited for it: one that computes looks later.
struct RecordedTransfer {
  int from, to;  // ranks
  size_t send;   // the cell of the SEND in the timeline
  double start;  // the SEND has been posted, and the transfer before it is known to have arrived
  double end;    // the receiver has seen the tensor
  double waited_from;  // since when the receiver had nothing else to do

  double duration() const { return end - start; }
  // Whether the receiver waited for most of the time, so that `end` is when the tensor arrived.
  // Otherwise the transfer took at most duration().
  bool is_known() const { return end - waited_from > duration() / 2; }
};

// The transfers of a recording, each of which has a SEND and a RECV. The schedule must be verified.
// Linear in the number of actions.
class RecordedTransfers {
 public:
  RecordedTransfers(const ir::Schedule& schedule, const ir::Timeline& timeline);

  // Those that compute actions look for, in the order in which the ranks do.
  const std::vector<RecordedTransfer>& all() const { return all_; }

  // Calls visit(const RecordedTransfer*) for each input of a compute action that comes from another
  // rank: null if nothing tells of its transfer, as in a compute order.
  template <typename Visit>
  void for_each_input(const ir::Action& compute, const Visit& visit) const {
    for (const ir::ActionPart part : compute.parts()) {
      if (!comes_from_another_rank(part)) continue;
      const std::optional<size_t> number = of_input_[index(part)];
      visit(number ? &all_[*number] : nullptr);
    }
  }

 private:
  bool comes_from_another_rank(ir::ActionPart compute) const;
  // The index of a compute, or of the RECV of its input.
  size_t index(ir::ActionPart part) const;

  const ir::Schedule& schedule_;
  std::vector<RecordedTransfer> all_;
  std::vector<std::optional<size_t>> of_input_;  // by stage, kind and microbatch
};

// The stage that the tensor of a SEND is for.
int receiving_stage(ir::ActionPart send);

// The costs of a schedule's actions in a recording of it, in the unit of the recording: per stage,
// the mean of each kind over its microbatches. A simulation with them takes as long as the recorded
// run, as far as all microbatches, and all slices, cost the same.
//
// A compute costs the time from when it could start, because the compute before it on its rank had
// ended and its inputs and parameters were there, until it ends. So what the host does between two
// actions counts. In a recorded compute order nobody knows when inputs arrived, so a compute that
// needs some of other ranks costs its duration.
//
// A stage with B and without I and W takes half of B for each of them. A compound counts only for a
// stage whose kinds are in compounds alone; each of its parts gets its share, in which F, I and W
// count 1 and B 2. A kind that does not occur takes no time. Compounds whose parts also ran alone
// say what a compound hides (Costs::overlap); less than a twentieth is taken for noise.
//
// A recorded transfer lasts until its receiver looks for it, so the latency of a link is its
// fastest transfer. If none of a link's receivers waited for most of a transfer, even the fastest
// shows only how late they looked: then the latency is at most the median of the links whose
// receivers did wait. A pair of ranks without a transfer gets that median.
//
// Sizes and bandwidths are unknown. The schedule must be verified. A pure function; linear in the
// number of actions.
Costs recorded_costs(const ir::Schedule& schedule, const ir::Recording& recording);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_RECORDED_COSTS_H_
