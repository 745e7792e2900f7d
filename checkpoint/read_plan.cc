// The elements that a stored box and a wanted box share are a box again. It is copied as runs of
// adjacent bytes: as many inner dimensions as both boxes have in full, and the next one outward,
// are one run, and the dimensions outside of these are loops.
#include "pipewright/checkpoint/read_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "pipewright/checkpoint/safetensors_file.h"
#include "pipewright/ir/check.h"
#include "pipewright/layout/boxes.h"

namespace pipewright::checkpoint {
namespace {

// The size in bytes of one step along each dimension of a row-major box.
std::vector<uint64_t> strides_of(const Box& box, uint64_t element) {
  std::vector<uint64_t> strides(box.sizes.size());
  for (size_t dim = strides.size(); dim-- > 0;) {
    strides[dim] = element;
    element *= static_cast<uint64_t>(box.sizes[dim]);
  }
  return strides;
}

uint64_t offset_of(const Box& inner, const Box& outer, std::span<const uint64_t> strides) {
  uint64_t offset = 0;
  for (size_t dim = 0; dim < strides.size(); ++dim)
    offset += static_cast<uint64_t>(inner.begin[dim] - outer.begin[dim]) * strides[dim];
  return offset;
}

StridedCopy copy_of(const Box& both, const StoredBox& stored, const Box& wanted, uint64_t element) {
  const std::vector<uint64_t> from = strides_of(stored.box, element);
  const std::vector<uint64_t> to = strides_of(wanted, element);
  StridedCopy copy{};
  copy.file = stored.file;
  copy.from = stored.begin + offset_of(both, stored.box, from);
  copy.to = offset_of(both, wanted, to);
  copy.run = element;
  // A dimension extends the run if everything inside of it is adjacent in both.
  size_t dim = both.sizes.size();
  while (dim > 0 && from[dim - 1] == copy.run && to[dim - 1] == copy.run) {
    --dim;
    copy.run *= static_cast<uint64_t>(both.sizes[dim]);
  }
  for (size_t outer = 0; outer < dim; ++outer) {
    if (both.sizes[outer] != 1) copy.dims.push_back({both.sizes[outer], from[outer], to[outer]});
  }
  return copy;
}

constexpr uint64_t kPage = 4096;  // of most machines
constexpr uint64_t kReadAhead = 8 << 20;

// Copies out of a file that is read from the disk meanwhile, in pieces of up to kReadAhead. Runs
// with less than a page between them are read as one.
class RunCopier {
 public:
  RunCopier(const SafetensorsFile& file, uint64_t run) : file_(file), run_(run) {}

  // `dense_end` is where the bytes end that are read as one with the first run; 0 if that is not
  // known yet.
  void copy(std::span<const StridedCopy::Dim> dims, uint64_t from, std::byte* to,
            uint64_t dense_end = 0) {
    if (dense_end == 0 && is_dense(dims)) dense_end = from + extent(dims);
    if (dims.empty()) return copy_run(from, to, dense_end);
    for (int64_t index = 0; index < dims[0].count; ++index) {
      copy(dims.subspan(1), from, to, dense_end);
      from += dims[0].from_stride;
      to += dims[0].to_stride;
    }
  }

 private:
  uint64_t extent(std::span<const StridedCopy::Dim> dims) const {
    uint64_t extent = run_;
    for (const StridedCopy::Dim& dim : dims)
      extent += static_cast<uint64_t>(dim.count - 1) * dim.from_stride;
    return extent;
  }

  bool is_dense(std::span<const StridedCopy::Dim> dims) const {
    for (; !dims.empty(); dims = dims.subspan(1)) {
      if (dims[0].from_stride >= extent(dims.subspan(1)) + kPage) return false;
    }
    return true;
  }

  void copy_run(uint64_t from, std::byte* to, uint64_t dense_end) {
    const uint64_t end = from + run_;
    while (from < end) {
      if (from >= announced_end_ || from < announced_begin_) {
        announced_begin_ = from;
        announced_end_ = std::min(dense_end, from + kReadAhead);
        file_.will_read(from, announced_end_ - from);
      }
      const uint64_t size = std::min(end, announced_end_) - from;
      std::memcpy(to, file_.bytes().data() + from, size);
      from += size;
      to += size;
    }
  }

  const SafetensorsFile& file_;
  const uint64_t run_;
  uint64_t announced_begin_ = 0, announced_end_ = 0;
};

}  // namespace

uint64_t StridedCopy::runs() const {
  uint64_t product = 1;
  for (const Dim& dim : dims) product *= static_cast<uint64_t>(dim.count);
  return product;
}

uint64_t ReadPlan::bytes() const {
  uint64_t total = 0;
  for (const StridedCopy& copy : copies) total += copy.bytes();
  return total;
}

ReadPlan plan_reads(const std::map<std::string, WholeTensor>& tensors,
                    std::span<const WantedBox> wanted) {
  ReadPlan plan;
  for (size_t index = 0; index < wanted.size(); ++index) {
    const auto& [name, box] = wanted[index];
    const auto found = tensors.find(name);
    if (found == tensors.end())
      throw std::invalid_argument(fmt::format("the checkpoint has no tensor `{}`", name));
    const WholeTensor& tensor = found->second;
    if (!lies_in(box, tensor.shape))
      throw std::invalid_argument(fmt::format("tensor `{}`: expected a box in {}, got {}", name,
                                              text(layout::whole_box(tensor.shape)), text(box)));
    const int width = bits(tensor.dtype);
    for (const StoredBox& stored : tensor.boxes) {
      const auto both = intersection(stored.box, box);
      if (!both) continue;
      if (width % 8 == 0) {
        plan.copies.push_back(copy_of(*both, stored, box, static_cast<uint64_t>(width) / 8));
      } else if (*both == stored.box && *both == box) {
        StridedCopy copy{};
        copy.file = stored.file;
        copy.from = stored.begin;
        copy.run = *bytes_of(tensor.dtype, box.sizes);
        plan.copies.push_back(copy);
      } else {
        throw std::invalid_argument(
            fmt::format("tensor `{}`: elements of {} can only be read whole, as they were saved",
                        name, checkpoint::name(tensor.dtype)));
      }
      plan.copies.back().wanted = index;
    }
  }
  return plan;
}

void read(const ReadPlan& plan, const StoredCheckpoint& checkpoint,
          std::span<const std::span<std::byte>> buffers) {
  for (const StridedCopy& copy : plan.copies) {
    const SafetensorsFile& file = checkpoint.files()[copy.file];
    const std::span<std::byte> buffer = buffers[copy.wanted];
    // The end of the last run.
    uint64_t from_end = copy.from + copy.run, to_end = copy.to + copy.run;
    for (const StridedCopy::Dim& dim : copy.dims) {
      from_end += static_cast<uint64_t>(dim.count - 1) * dim.from_stride;
      to_end += static_cast<uint64_t>(dim.count - 1) * dim.to_stride;
    }
    PW_CHECK(from_end <= file.bytes().size() && to_end <= buffer.size(),
             "a copy is within its buffers");
    RunCopier(file, copy.run).copy(copy.dims, copy.from, buffer.data() + copy.to);
  }
}

}  // namespace pipewright::checkpoint
