#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_IN_FLIGHT_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_IN_FLIGHT_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace pipewright::schedule {

// When the tensors arrive that have been made and not been used. A tensor is named by its flow,
// such as the outputs of stage 3, and its microbatch.
//
//   InFlight arrivals(num_flows);
//   arrivals.add(flow, microbatch, time);
//   if (InFlight::Tensor* tensor = arrivals.find(flow, microbatch)) InFlight::remove(tensor);
//
// Only a few microbatches of a flow are in flight at once, whatever their total, so this stays in
// the cache; a table of all tensors would not. All flows have the same number of slots, and each
// microbatch belongs to one of them. When two microbatches in flight need the same slot, the number
// doubles. For one thread.
class InFlight {
 public:
  static constexpr int kFree = -1;
  struct Tensor {
    int microbatch = kFree;
    double arrival = 0;
  };

  explicit InFlight(size_t num_flows) : InFlight(num_flows, 16) {}

  // Replaces the arrival of a tensor that is in flight already.
  void add(uint32_t flow, int microbatch, double arrival) {
    Tensor* slot = &slot_of(flow, microbatch);
    while (slot->microbatch != kFree && slot->microbatch != microbatch) {
      grow();
      slot = &slot_of(flow, microbatch);
    }
    *slot = {microbatch, arrival};
  }
  // nullptr if the tensor is not in flight. Valid until add().
  Tensor* find(uint32_t flow, int microbatch) {
    Tensor& slot = slot_of(flow, microbatch);
    return slot.microbatch == microbatch ? &slot : nullptr;
  }
  static void remove(Tensor* tensor) { tensor->microbatch = kFree; }

 private:
  InFlight(size_t num_flows, size_t per_flow)
      : num_flows_(num_flows), per_flow_(per_flow), slots_(num_flows * per_flow) {}

  // Slots of the same microbatches are together for all flows, as a walk along all rows uses them.
  Tensor& slot_of(uint32_t flow, int microbatch) {
    return slots_[(static_cast<uint32_t>(microbatch) & (per_flow_ - 1)) * num_flows_ + flow];
  }
  void grow() {
    InFlight larger(num_flows_, 2 * per_flow_);
    for (size_t index = 0; index < slots_.size(); ++index) {
      if (const Tensor& slot = slots_[index]; slot.microbatch != kFree)
        larger.slot_of(static_cast<uint32_t>(index % num_flows_), slot.microbatch) = slot;
    }
    *this = std::move(larger);
  }
  size_t num_flows_;
  size_t per_flow_;  // a power of two
  std::vector<Tensor> slots_;
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_IN_FLIGHT_H_
