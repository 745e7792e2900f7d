#ifndef PIPEWRIGHT_SCHEDULE_GRAPH_TENSOR_TABLE_H_
#define PIPEWRIGHT_SCHEDULE_GRAPH_TENSOR_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pipewright/ir/populate.h"

namespace pipewright::schedule {

// One value per tensor that stages pass on, for a walk along all rows at once. A tensor is named by
// its flow, such as the outputs of stage 3, and its microbatch.
//
//   TensorTable<uint32_t> sends(num_flows, num_microbatches, kNone);
//   sends.at(flow, microbatch) = number;
//
// Such a walk uses all flows at about the same microbatches, which go up in each. So the table is
// ordered by microbatch first, as far as cache lines allow: a line has successive microbatches of a
// flow, and is followed by the same microbatches of the next flow. What the walk uses at one time
// is then close together, and where a flow goes on is known. For one thread.
template <typename Value>
class TensorTable {
 public:
  TensorTable(size_t num_flows, int num_microbatches, Value initial)
      : num_flows_(num_flows),
        lines_(ir::populated(
            num_flows * ((static_cast<size_t>(num_microbatches) + kPerLine - 1) / kPerLine + 1),
            filled_line(initial))) {}

  const Value& at(uint32_t flow, int microbatch) const {
    return lines_[line_of(flow, microbatch)].values[place_of(microbatch)];
  }
  Value& at(uint32_t flow, int microbatch) {
    return lines_[line_of(flow, microbatch)].values[place_of(microbatch)];
  }
  // Fetches the values of the flow's next microbatches into the cache. The last ones are followed
  // by a line that is not used.
  void fetch_ahead(uint32_t flow, int microbatch) {
    __builtin_prefetch(lines_.data() + line_of(flow, microbatch) + num_flows_, 1);
  }

 private:
  static constexpr size_t kLine = 64;  // bytes
  static constexpr size_t kPerLine = kLine / sizeof(Value);
  struct alignas(kLine) Line {
    Value values[kPerLine];
  };

  static Line filled_line(Value value) {
    Line line;
    for (Value& one : line.values) one = value;
    return line;
  }
  size_t line_of(uint32_t flow, int microbatch) const {
    return static_cast<uint32_t>(microbatch) / kPerLine * num_flows_ + flow;
  }
  static size_t place_of(int microbatch) { return static_cast<uint32_t>(microbatch) % kPerLine; }

  size_t num_flows_;
  std::vector<Line> lines_;  // by microbatch / kPerLine, then flow
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_GRAPH_TENSOR_TABLE_H_
