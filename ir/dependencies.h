#ifndef PIPEWRIGHT_IR_DEPENDENCIES_H_
#define PIPEWRIGHT_IR_DEPENDENCIES_H_

#include <array>
#include <cstdint>
#include <optional>

#include "pipewright/ir/action.h"
#include "pipewright/ir/placement.h"

// The oracle: what must have happened before an action, and on which rank. Whoever needs to know
// asks here: generators that schedule greedily, verifier, simulator, insertion of SEND and RECV,
// explain, drawings.
//
// Of stage s and microbatch m, with S stages:
//
//   action     needs                                          makes
//   F          output of s-1 (s > 0)                          output of s
//   B          output of s; input gradient of s+1 (s < S-1)   input gradient of s
//   I          as B                                           input gradient of s, what W needs
//   W          what W needs, of s                             -
//   SEND_F     output of s                                    -
//   SEND_B     input gradient of s                            -
//
// What another rank makes comes by a SEND there and a RECV here, one pair a result: transfer_of,
// partner_of. UNSHARD, RESHARD and REDUCE_GRAD are ordered by their place in the rank's list, not
// by results. Pure functions; any thread. Stages must be in the placement.

namespace pipewright::ir {

// What a compute action leaves behind.
enum class Result : uint8_t {
  kOutput,         // of the stage, with what backward saved of it
  kInputGradient,  // gradient of the stage's input
  kWeightInput,    // what I keeps for W
};

// One result that an action needs.
struct Need {
  Result result;
  int stage;
  int microbatch;
  int rank;  // that makes it

  friend bool operator==(const Need&, const Need&) = default;
};

// At most two of them, in the order of the table above.
class Needs {
 public:
  const Need* begin() const { return needs_.data(); }
  const Need* end() const { return needs_.data() + size_; }
  int size() const { return size_; }
  const Need& operator[](int index) const { return needs_[static_cast<size_t>(index)]; }

  void add(const Need& need) { needs_[static_cast<size_t>(size_++)] = need; }

 private:
  std::array<Need, 2> needs_{};
  int size_ = 0;
};

Needs needs_of(ActionPart part, const Placement& placement);

// Whether an action of this kind makes that result of its stage and microbatch.
bool makes(ActionKind kind, Result result);

// A result that goes from one rank to another.
struct Transfer {
  ActionPart send;  // on `from`
  ActionPart receive;
  int from;
  int to;

  friend bool operator==(const Transfer&, const Transfer&) = default;
};

// The transfer that must follow F, B or I; none for other kinds, at the pipeline's ends, and
// between stages of a rank.
std::optional<Transfer> transfer_of(ActionPart compute, const Placement& placement);

// The transfer that a SEND or RECV is an end of; none at the pipeline's ends, where there is no
// stage to meet.
std::optional<Transfer> partner_of(ActionPart send_or_receive, const Placement& placement);

}  // namespace pipewright::ir

#endif  // PIPEWRIGHT_IR_DEPENDENCIES_H_
