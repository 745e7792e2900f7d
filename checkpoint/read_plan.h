#ifndef PIPEWRIGHT_CHECKPOINT_READ_PLAN_H_
#define PIPEWRIGHT_CHECKPOINT_READ_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pipewright/checkpoint/stored_checkpoint.h"
#include "pipewright/layout/boxes.h"

// Resharding: which bytes of which files make up the boxes that a rank needs, whatever the boxes
// that were saved. A plan has exactly the bytes that are needed.
//
//   const std::vector<WantedBox> wanted = {{"layers.0.wq.weight", {{0, 0}, {4, 8}}}};
//   const ReadPlan plan = plan_reads(checkpoint.tensors(), wanted);
//   read(plan, checkpoint, buffers);      // buffers[0] has room for 4 * 8 elements
//
// Pure functions but for read(); any thread.

namespace pipewright::checkpoint {

struct WantedBox {
  std::string name;
  Box box;  // in the whole tensor
};

// Equally long runs of bytes at regular distances: what one stored box and one wanted box share.
struct StridedCopy {
  struct Dim {
    int64_t count;
    uint64_t from_stride;  // in bytes, in the file
    uint64_t to_stride;    // in bytes, in the wanted box
  };

  size_t wanted;          // index in the request
  size_t file;            // index in StoredCheckpoint::files()
  uint64_t from;          // offset of the first run in the file
  uint64_t to;            // offset of the first run in the wanted box's data
  uint64_t run;           // bytes
  std::vector<Dim> dims;  // outermost first; empty: one run

  uint64_t runs() const;
  uint64_t bytes() const { return run * runs(); }
};

struct ReadPlan {
  std::vector<StridedCopy> copies;

  uint64_t bytes() const;
};

// Linear in the number of pairs of a stored box and a wanted one of the same tensor. Throws
// std::invalid_argument if a wanted box is of a tensor that is not there, or is not within it, or
// is a part of a tensor whose elements are smaller than a byte. check_tensors() (in
// stored_checkpoint.h) reports all that a model misses before.
ReadPlan plan_reads(const std::map<std::string, WholeTensor>& tensors,
                    std::span<const WantedBox> wanted);

// Copies the bytes of the plan. `buffers` has one span per wanted box, of its size, row-major.
void read(const ReadPlan& plan, const StoredCheckpoint& checkpoint,
          std::span<const std::span<std::byte>> buffers);

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_READ_PLAN_H_
