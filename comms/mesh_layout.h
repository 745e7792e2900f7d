#ifndef PIPEWRIGHT_COMMS_MESH_LAYOUT_H_
#define PIPEWRIGHT_COMMS_MESH_LAYOUT_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

// The layout of a device mesh: ranks 0 to N-1 in row-major order over named dimensions, as in
// PyTorch's init_device_mesh. An immutable value without communication or LibTorch, safe to use
// from any thread.
//
//   {{"pp", 2}, {"dp", 3}}     pp 0: ranks 0 1 2     pp 1: ranks 3 4 5

namespace pipewright::comms {

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

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_MESH_LAYOUT_H_
