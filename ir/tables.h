#ifndef PIPEWRIGHT_IR_TABLES_H_
#define PIPEWRIGHT_IR_TABLES_H_

#include <bit>
#include <cstddef>
#include <iterator>
#include <vector>

#include "pipewright/ir/action.h"
#include "pipewright/ir/check.h"
#include "pipewright/ir/placement.h"

namespace pipewright::ir {

// A dense table with one value per (stage, microbatch) of a schedule:
//
//   StageMicrobatchTable<uint32_t> forward_step(order.placement, order.num_microbatches, kNone);
//   forward_step.at(stage, microbatch) = step;
//
// The shape is checked once, on construction, which throws InternalError if it is out of range.
// Accesses are not checked: stage and microbatch must be those of the shape. A plain value; safe
// to read from several threads.
template <typename Value>
class StageMicrobatchTable {
 public:
  StageMicrobatchTable() = default;  // no stages
  StageMicrobatchTable(const Placement& placement, int num_microbatches,
                       const Value& initial = Value())
      : num_microbatches_(static_cast<size_t>(num_microbatches)) {
    PW_CHECK(num_microbatches >= 0 && num_microbatches <= kMaxMicrobatches &&
                 placement.num_stages() <= kMaxStages,
             "the shape of a table is one that a schedule can have");
    values_.assign(static_cast<size_t>(placement.num_stages()) * num_microbatches_, initial);
  }

  // Cells are numbered by stage, then microbatch.
  size_t size() const { return values_.size(); }
  size_t index(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * num_microbatches_ + static_cast<size_t>(microbatch);
  }

  typename std::vector<Value>::reference at(int stage, int microbatch) {
    return values_[index(stage, microbatch)];
  }
  typename std::vector<Value>::const_reference at(int stage, int microbatch) const {
    return values_[index(stage, microbatch)];
  }
  typename std::vector<Value>::reference operator[](size_t index) { return values_[index]; }
  typename std::vector<Value>::const_reference operator[](size_t index) const {
    return values_[index];
  }

 private:
  size_t num_microbatches_ = 0;
  std::vector<Value> values_;
};

// A dense table with one value per instance of a stage (placement.h) and kind of action, such as
// what each RECV_F of stage 3 receives:
//
//   StageKindTable<End> ends(placement);
//   ends[part] = ...;
//
// The microbatch of an action determines the instance. Kinds without a microbatch have the entry of
// replica 0, unless they are asked for by instance. Accesses are not checked. A plain value.
template <typename Value>
class StageKindTable {
 public:
  StageKindTable() = default;  // no stages
  explicit StageKindTable(const Placement& placement, const Value& initial = Value())
      : instances_(placement.instances()),
        values_(static_cast<size_t>(placement.num_instances()) * kKinds, initial) {}

  Value& operator[](ActionPart part) { return at(part.kind(), instance_of(part)); }
  const Value& operator[](ActionPart part) const { return at(part.kind(), instance_of(part)); }
  Value& at(ActionKind kind, int instance) { return values_[index(kind, instance)]; }
  const Value& at(ActionKind kind, int instance) const { return values_[index(kind, instance)]; }

 private:
  // A power of 2, because walks along rows look up each action.
  static constexpr size_t kKinds = std::bit_ceil(std::size(kActionKinds) + 1);
  static size_t index(ActionKind kind, int instance) {
    return static_cast<size_t>(instance) * kKinds + static_cast<size_t>(kind);
  }
  int instance_of(ActionPart part) const { return instances_.of(part.stage(), part.microbatch()); }

  InstanceNumbers instances_;
  std::vector<Value> values_;
};

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_TABLES_H_
