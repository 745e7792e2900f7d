#ifndef PIPEWRIGHT_COMMS_MESH_LAYOUT_H_
#define PIPEWRIGHT_COMMS_MESH_LAYOUT_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

// The arithmetic of a device mesh: ranks 0 to N-1 laid out row-major over named dimensions, as in
// PyTorch's init_device_mesh. No LibTorch. A value; any thread.
//
//   {{"pp", 2}, {"dp", 3}}     pp 0: ranks 0 1 2     pp 1: ranks 3 4 5

namespace pipewright::comms {

struct MeshDim {
  std::string name;
  int size;
};

class MeshLayout {
 public:
  // Throws std::invalid_argument for a name twice, or a size below 1.
  explicit MeshLayout(std::vector<MeshDim> dims);

  std::span<const MeshDim> dims() const { return dims_; }
  int size() const;  // ranks
  // Along one dimension. Throws std::invalid_argument, naming those there are.
  int size(std::string_view dim) const;

  // Where `rank` stands along `dim`.
  int coordinate(int rank, std::string_view dim) const;
  // The ranks that differ from `rank` along `dims` alone, ascending: replicate and shard together
  // are {"dp_replicate", "dp_shard"}.
  std::vector<int> peers(int rank, std::span<const std::string> dims) const;

 private:
  size_t index_of(std::string_view dim) const;
  int stride(size_t index) const;  // between neighbours along a dimension

  std::vector<MeshDim> dims_;
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_MESH_LAYOUT_H_
