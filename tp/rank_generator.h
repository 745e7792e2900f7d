#ifndef PIPEWRIGHT_TP_RANK_GENERATOR_H_
#define PIPEWRIGHT_TP_RANK_GENERATOR_H_

#include <ATen/core/Tensor.h>

#include <optional>

#include "pipewright/autograd/checkpoint.h"
#include "pipewright/comms/world.h"

namespace pipewright::tp {

// Random numbers that differ between the ranks of a group, for what is split over them: while the
// object lives, its thread draws from a generator of this rank, on the CPU or on `device`.
// Everywhere else the ranks draw the same numbers, if they have begun with the same seed, as copies
// of a tensor need it.
//
//   const autograd::GeneratorScope same(seed + data_parallel_rank);      // on all ranks of "tp"
//   h = at::gelu(modules::forward(up, x));                               // this rank's features
//   { const tp::RankGenerator different(*group); h = at::dropout(h, 0.1, true); }
//   y = at::dropout(modules::forward(down, h), 0.1, true);               // copies: the same mask
//
// It begins with the state of the generator that is in use and draws one number from it, so all
// ranks must make it at the same place, and activation checkpointing repeats it. What Megatron-LM
// does with a second generator per rank.
//
// On the CPU it is a GeneratorScope. On a device it gives the default generator of that device
// another state, and at its end the old one: ranks must not share a device. The host does not wait.
class RankGenerator {
 public:
  explicit RankGenerator(const c10d::Backend& group, at::Device device = at::kCPU);
  ~RankGenerator();
  RankGenerator(const RankGenerator&) = delete;
  RankGenerator& operator=(const RankGenerator&) = delete;

 private:
  std::optional<autograd::GeneratorScope> scope_;  // on the CPU
  at::Generator generator_;                        // of a device; undefined on the CPU
  at::Tensor state_;                               // which it gets back
};

}  // namespace pipewright::tp

#endif  // PIPEWRIGHT_TP_RANK_GENERATOR_H_
