// The loss of a target t is log(sum over v of exp(x[v] - m)) - (x[t] - m), where m is the largest
// logit. Every rank has a part of the sum, and one of them has x[t]; all others count 0. Gradients
// follow from autograd: m has none, and those of both sums are the same on every rank.
#include "pipewright/tp/cross_entropy.h"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include <limits>
#include <stdexcept>

#include "pipewright/layout/layout.h"
#include "pipewright/tp/communication.h"

namespace pipewright::tp {
namespace {

void check(const at::Tensor& logits, const at::Tensor& targets, int64_t vocabulary,
           const layout::Chunk& mine) {
  std::vector<int64_t> expected = targets.sizes().vec();
  expected.push_back(mine.length);
  if (logits.sizes() != at::IntArrayRef(expected)) {
    throw std::invalid_argument(c10::str("cross_entropy: expected logits of sizes ",
                                         at::IntArrayRef(expected), ", ", mine.length, " of ",
                                         vocabulary, " tokens per target, got ", logits.sizes()));
  }
  if (targets.scalar_type() != at::kLong) {
    throw std::invalid_argument(
        c10::str("cross_entropy: expected targets of type Long, got ", targets.scalar_type()));
  }
}

at::Tensor largest_on_all_ranks(const at::Tensor& logits, const comms::BackendPtr& group) {
  const at::Tensor x = logits.detach();
  std::vector<at::Tensor> largest = {
      x.size(-1) > 0 ? x.amax(-1)
                     : at::full(x.sizes().slice(0, x.dim() - 1),
                                -std::numeric_limits<double>::infinity(), x.options())};
  if (group->getSize() > 1) {
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    group->allreduce(largest, options)->wait();
  }
  return largest[0];
}

// The logits of the targets in this rank's chunk, and 0 for all others.
at::Tensor own_target_logits(const at::Tensor& logits, const at::Tensor& targets,
                             const layout::Chunk& mine) {
  if (mine.length == 0) return logits.sum(-1);  // zeros that are connected with the logits
  const at::Tensor local = targets - mine.begin;
  const at::Tensor others = local.lt(0).logical_or(local.ge(mine.length));
  return logits.gather(-1, local.masked_fill(others, 0).unsqueeze(-1))
      .squeeze(-1)
      .masked_fill(others, 0);
}

}  // namespace

at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets, int64_t vocabulary,
                         const comms::BackendPtr& group, const CrossEntropyOptions& options) {
  const layout::Chunk mine = layout::chunk_of(vocabulary, group->getSize(), group->getRank());
  check(logits, targets, vocabulary, mine);
  const at::Tensor ignored = targets.eq(options.ignore_index);
  const at::Tensor unknown =
      targets.lt(0).logical_or(targets.ge(vocabulary)).logical_and(ignored.logical_not());
  if (targets.is_cpu() && unknown.any().item<bool>()) {
    throw std::invalid_argument(c10::str("cross_entropy: expected targets from 0 to ",
                                         vocabulary - 1, ", got ",
                                         targets.masked_select(unknown)[0].item<int64_t>()));
  }

  const at::Tensor x = logits.to(logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const at::Tensor shifted = x - largest_on_all_ranks(x, group).unsqueeze(-1);
  const at::Tensor sums = reduce_from(
      at::stack({shifted.exp().sum(-1), own_target_logits(shifted, targets, mine)}), group);
  const at::Tensor losses = (sums[0].log() - sums[1])
                                .masked_fill(ignored, 0)
                                .masked_fill(unknown, std::numeric_limits<double>::quiet_NaN());
  switch (options.reduction) {
    case at::Reduction::None:
      return losses;
    case at::Reduction::Mean:
      return losses.sum() / ignored.logical_not().sum();
    case at::Reduction::Sum:
    case at::Reduction::END:
      break;
  }
  return losses.sum();
}

}  // namespace pipewright::tp
