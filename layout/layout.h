#ifndef PIPEWRIGHT_LAYOUT_LAYOUT_H_
#define PIPEWRIGHT_LAYOUT_LAYOUT_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// How a tensor lies over the ranks of a mesh, as values: chunks of a dimension, the mesh, and the
// layout of a whole tensor. Pure arithmetic, without LibTorch or communication.

namespace pipewright::layout {

// How a dimension is split into one chunk per rank, like torch.chunk: all chunks have
// chunk_length() elements except those at the end, which may be shorter or empty. Without LibTorch.

// The length of the first chunks, which is the largest. `ranks` must be at least 1.
constexpr int64_t chunk_length(int64_t length, int64_t ranks) {
  return (length + ranks - 1) / ranks;
}

// Elements [begin, begin + length) of the dimension.
struct Chunk {
  int64_t begin;
  int64_t length;
  bool operator==(const Chunk&) const = default;
};

// The chunk of `rank`, which must be in [0, ranks).
constexpr Chunk chunk_of(int64_t length, int64_t ranks, int64_t rank) {
  const int64_t each = chunk_length(length, ranks);
  const int64_t begin = std::min(rank * each, length);
  return {begin, std::min(begin + each, length) - begin};
}

// The layout of a device mesh: ranks 0 to N-1 in row-major order over named dimensions, as in
// PyTorch's init_device_mesh. An immutable value without communication or LibTorch, safe to use
// from any thread.
//
//   {{"pp", 2}, {"dp", 3}}     pp 0: ranks 0 1 2     pp 1: ranks 3 4 5

struct MeshDim {
  std::string name;
  int size;

  friend bool operator==(const MeshDim&, const MeshDim&) = default;
};

class MeshLayout {
 public:
  // Throws std::invalid_argument if a name appears twice or a size is below 1.
  explicit MeshLayout(std::vector<MeshDim> dims);

  std::span<const MeshDim> dims() const { return dims_; }
  int size() const;  // number of ranks
  // The size of one dimension. This and the following throw std::invalid_argument, listing the
  // dimensions, if there is no such dimension.
  int size(std::string_view dim) const;

  // The coordinate of `rank` along `dim`.
  int coordinate(int rank, std::string_view dim) const;
  // `rank` and the ranks that differ from it only along `dims`, ascending. For example, the
  // data-parallel copies of a rank are its peers along {"dp_replicate", "dp_shard"}.
  std::vector<int> peers(int rank, std::span<const std::string> dims) const;

  friend bool operator==(const MeshLayout&, const MeshLayout&) = default;

 private:
  size_t index_of(std::string_view dim) const;
  int stride(size_t index) const;  // distance between adjacent ranks along a dimension

  std::vector<MeshDim> dims_;
};

// How a tensor is distributed over the ranks of a mesh, as a value: a mesh, one placement per mesh
// dimension, and the shape of the whole tensor. From these follow the boxes that a rank owns and
// the ranks that own an element. What PyTorch's DTensor knows about a tensor, without the tensor;
// no LibTorch.
//
//   // A column-parallel weight of 9 rows and 4 columns, sharded by rows over tp and then over dp.
//   const Layout layout(MeshLayout({{"dp", 2}, {"tp", 2}}),
//                       {TensorPlacement::strided_shard(0, 2), TensorPlacement::shard(0)}, {9, 4});
//   layout.boxes(1)   {{begin {5, 0}, sizes {2, 4}}}      dp 0, tp 1 owns rows 5 and 6
//   layout.text()     "[9, 4] dp=2:strided_shard(0,2) tp=2:shard(0)"
//
// Every split is that of torch.chunk (chunk_of). Immutable values; safe to use from any thread.

// What one mesh dimension does with a tensor.
class TensorPlacement {
 public:
  // Every coordinate of the mesh dimension has the same elements.
  static TensorPlacement replicate() { return TensorPlacement(); }
  // Tensor dimension `dim` is split along the mesh dimension, after the mesh dimensions to the left
  // that shard `dim` too. Negative dimensions count from the end, as in PyTorch.
  static TensorPlacement shard(int dim) { return {dim, 1}; }
  // As shard(dim), but `dim` is first cut into `split_factor` pieces, and each of them is split
  // along this mesh dimension. The pieces are those of the mesh dimensions to the right that shard
  // `dim`, so this is how fully_shard shards what tensor parallelism has sharded already: the split
  // factor is the product of their sizes. If no mesh dimension to the right shards `dim`, every
  // coordinate owns a part of each piece. PyTorch calls this _StridedShard(dim, split_factor);
  // with split_factor 1 it is shard(dim).
  static TensorPlacement strided_shard(int dim, int64_t split_factor) {
    return {dim, split_factor};
  }

  // The tensor dimension that is split; nullopt for replicate().
  std::optional<int> dim() const { return dim_; }
  int64_t split_factor() const { return split_factor_; }  // 1 unless strided
  // "replicate", "shard(0)" or "strided_shard(0,2)".
  std::string text() const;

  friend bool operator==(const TensorPlacement&, const TensorPlacement&) = default;

 private:
  TensorPlacement() = default;
  TensorPlacement(int dim, int64_t split_factor) : dim_(dim), split_factor_(split_factor) {}

  std::optional<int> dim_;
  int64_t split_factor_ = 1;
};

// The elements with begin[d] <= index[d] < begin[d] + sizes[d] in every dimension d.
struct Box {
  std::vector<int64_t> begin;
  std::vector<int64_t> sizes;

  friend bool operator==(const Box&, const Box&) = default;
};

class Layout {
 public:
  // `placements` has one entry per mesh dimension; `shape` is that of the whole tensor.
  // Throws std::invalid_argument if there are more or fewer, a size is negative, a placement shards
  // a dimension that the tensor does not have, or a split factor is not at least 1 or not a product
  // of the splits of the mesh dimensions to its right.
  Layout(MeshLayout mesh, std::vector<TensorPlacement> placements, std::vector<int64_t> shape);

  const MeshLayout& mesh() const { return mesh_; }
  std::span<const TensorPlacement> placements() const { return placements_; }
  std::span<const int64_t> shape() const { return shape_; }

  // The boxes that `rank` owns, in row-major order of their beginnings; none if it owns no element.
  // More than one only if a strided shard has no shard to its right. `rank` must be in the mesh.
  std::vector<Box> boxes(int rank) const;
  // The shape of the rank's local tensor: its boxes put together. Some size is 0 if it owns none.
  std::vector<int64_t> local_shape(int rank) const;
  // The largest local size of any rank in each dimension: the shape to which local tensors are
  // padded for collectives. Linear in the number of ranks.
  std::vector<int64_t> padded_shape() const;
  // The ranks that own the element at `index`, ascending. Throws std::invalid_argument if the
  // tensor has no such element.
  std::vector<int> owners(std::span<const int64_t> index) const;

  // The text form, which parse_layout() reads.
  std::string text() const;

  friend bool operator==(const Layout& a, const Layout& b) {
    return a.mesh_ == b.mesh_ && a.placements_ == b.placements_ && a.shape_ == b.shape_;
  }

 private:
  // One split of a tensor dimension into `count` pieces. A rank takes the piece with its coordinate
  // along a mesh dimension, or all pieces if `mesh_dim` is nullopt.
  struct Split {
    int64_t count;
    std::optional<size_t> mesh_dim;
  };

  void add_split(size_t mesh_dim);
  // What `rank` owns of a tensor dimension, ascending and without empty chunks.
  std::vector<Chunk> owned(size_t dim, int rank) const;

  MeshLayout mesh_;
  std::vector<TensorPlacement> placements_;  // dimensions from 0
  std::vector<int64_t> shape_;
  std::vector<std::vector<Split>> splits_;  // by tensor dimension, in the order of the cuts
};

// A layout as one rank sees it. boxes(rank) are what the rank stores.
struct LocalLayout {
  Layout layout;
  int rank;  // of the layout's mesh

  friend bool operator==(const LocalLayout&, const LocalLayout&) = default;
};

// Reads what Layout::text() writes, if the names of the mesh dimensions are without spaces, `=` and
// `:`. Throws std::invalid_argument, naming the place, for any other text and for a layout that the
// constructor refuses.
Layout parse_layout(std::string_view text);

}  // namespace pipewright::layout

#endif  // PIPEWRIGHT_LAYOUT_LAYOUT_H_
