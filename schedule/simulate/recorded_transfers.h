#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_RECORDED_TRANSFERS_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_RECORDED_TRANSFERS_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "pipewright/ir/schedule.h"
#include "pipewright/ir/timeline.h"

namespace pipewright::schedule {

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
  // Of a compute, or of the RECV of its input.
  size_t index(ir::ActionPart part) const;

  const ir::Schedule& schedule_;
  std::vector<RecordedTransfer> all_;
  std::vector<std::optional<size_t>> of_input_;  // by stage, kind and microbatch
};

// The stage that the tensor of a SEND is for.
int receiving_stage(ir::ActionPart send);

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_RECORDED_TRANSFERS_H_
