#include "pipewright/tp/collective.h"

#include <ATen/Functions.h>
#include <c10/util/StringUtil.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "pipewright/comms/chunk.h"
#include "pipewright/comms/chunk_gather.h"
#include "pipewright/comms/group.h"

namespace pipewright::tp {
namespace {

using Kind = Collective::Kind;

// The length of this rank's chunk.
int64_t length_of_mine(const Collective& collective, const comms::BackendPtr& group) {
  return comms::chunk_of(collective.length, group->getSize(), group->getRank()).length;
}

void check_chunk(const at::Tensor& x, const Collective& collective,
                 const comms::BackendPtr& group) {
  const int64_t mine = length_of_mine(collective, group);
  if (x.size(collective.dim) == mine) return;
  throw std::invalid_argument(c10::str(
      "gather along dimension ", collective.dim, ": expected ", mine, " of ", collective.length,
      " elements on rank ", group->getRank(), " of ", group->getSize(), ", got ", x.sizes()));
}

}  // namespace

PostedCollective post(const at::Tensor& x, const Collective& collective,
                      const comms::BackendPtr& group) {
  PostedCollective posted;
  posted.collective_ = collective;
  posted.group_ = group;
  switch (collective.kind) {
    case Kind::kNothing:
      posted.output_ = x;
      break;
    case Kind::kAllReduce: {
      std::vector<at::Tensor> sum = {x.clone(at::MemoryFormat::Contiguous)};
      posted.output_ = sum[0];
      posted.work_ = group->allreduce(sum);
      break;
    }
    case Kind::kAllGather:
      check_chunk(x, collective, group);
      posted.output_ = comms::gather_chunks(x, collective.dim, collective.length, *group);
      break;
    case Kind::kReduceScatter: {
      const int64_t each = comms::chunk_length(collective.length, group->getSize());
      posted.input_ = comms::padded_rows(x, collective.dim, each * group->getSize());
      std::vector<int64_t> sizes = posted.input_.sizes().vec();
      sizes[0] = each;
      posted.output_ = at::empty(sizes, x.options());
      posted.work_ = group->_reduce_scatter_base(posted.output_, posted.input_);
      break;
    }
    case Kind::kOwnChunk:
      posted.output_ = comms::chunk_of(x, collective.dim, *group).contiguous();
      break;
  }
  return posted;
}

at::Tensor PostedCollective::finish() {
  if (work_) comms::wait(*group_, *std::exchange(work_, nullptr));
  if (collective_.kind != Kind::kReduceScatter) return output_;
  return output_.narrow(0, 0, length_of_mine(collective_, group_))
      .movedim(0, collective_.dim)
      .contiguous();
}

}  // namespace pipewright::tp
