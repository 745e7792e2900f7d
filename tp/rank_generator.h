#ifndef PIPEWRIGHT_TP_RANK_GENERATOR_H_
#define PIPEWRIGHT_TP_RANK_GENERATOR_H_

#include "pipewright/autograd/generator_scope.h"
#include "pipewright/comms/world.h"

namespace pipewright::tp {

// Random numbers that differ between the ranks of a group, for what is split over them: while the
// object lives, its thread draws from a generator of this rank. Everywhere else the ranks draw the
// same numbers, if they have begun with the same seed, as copies of a tensor need it.
//
//   const autograd::GeneratorScope same(seed + data_parallel_rank);      // on all ranks of "tp"
//   h = at::gelu(modules::forward(up, x));                               // this rank's features
//   { const tp::RankGenerator different(*group); h = at::dropout(h, 0.1, true); }
//   y = at::dropout(modules::forward(down, h), 0.1, true);               // copies: the same mask
//
// It begins with one number of the generator that is in use, so all ranks must make it at the same
// place, and activation checkpointing repeats it. For the CPU, like GeneratorScope. What
// Megatron-LM does with a second generator per rank.
class RankGenerator {
 public:
  explicit RankGenerator(const c10d::Backend& group);

 private:
  autograd::GeneratorScope scope_;
};

}  // namespace pipewright::tp

#endif  // PIPEWRIGHT_TP_RANK_GENERATOR_H_
