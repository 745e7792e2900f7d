// A gather pads all chunks to the length of the first. Only the last chunk that is not empty can be
// shorter, so the whole tensor is the beginning of what was gathered.
#include "pipewright/comms/chunk_gather.h"

#include <ATen/Functions.h>

#include <vector>

#include "pipewright/comms/group.h"
#include "pipewright/layout/layout.h"

namespace pipewright::comms {

at::Tensor chunk_of(const at::Tensor& whole, int64_t dim, c10d::Backend& group) {
  const layout::Chunk chunk = layout::chunk_of(whole.size(dim), group.getSize(), group.getRank());
  return whole.narrow(dim, chunk.begin, chunk.length);
}

at::Tensor padded_rows(const at::Tensor& x, int64_t dim, int64_t padded) {
  const at::Tensor rows = x.movedim(dim, 0);
  if (rows.size(0) == padded) return rows.contiguous();
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes[0] = padded;
  at::Tensor result = at::zeros(sizes, x.options());
  result.narrow(0, 0, rows.size(0)).copy_(rows);
  return result;
}

at::Tensor gather_chunks(const at::Tensor& mine, int64_t dim, int64_t length,
                         c10d::Backend& group) {
  at::Tensor part = padded_rows(mine, dim, layout::chunk_length(length, group.getSize()));
  std::vector<int64_t> sizes = part.sizes().vec();
  sizes[0] *= group.getSize();
  at::Tensor whole = at::empty(sizes, mine.options());
  wait(group, *group._allgather_base(whole, part));
  return whole.narrow(0, 0, length).movedim(0, dim).contiguous();
}

}  // namespace pipewright::comms
