#ifndef PIPEWRIGHT_COMMS_MESH_H_
#define PIPEWRIGHT_COMMS_MESH_H_

#include <map>
#include <string>
#include <vector>

#include "pipewright/comms/world.h"
#include "pipewright/layout/layout.h"

namespace pipewright::comms {

// A device mesh: the ranks of a world laid out over named dimensions, and the process groups along
// them. The counterpart of PyTorch's DeviceMesh. For one thread at a time.
//
//   Mesh mesh(world, {{"pp", 2}, {"dp", 4}});
//   BackendPtr dp = mesh.group({"dp"});  // of the 4 ranks that share this rank's pp coordinate
class Mesh {
 public:
  // `world` must outlive the mesh. Errors name the coordinates of this rank from now on. Throws
  // std::invalid_argument if a name appears twice, a size is below 1, or the product of the sizes
  // is not the size of the world.
  Mesh(World& world, std::vector<layout::MeshDim> dims);

  const layout::MeshLayout& layout() const { return layout_; }
  int size(std::string_view dim) const { return layout_.size(dim); }
  int coordinate(std::string_view dim) const { return layout_.coordinate(world_.rank(), dim); }
  // This rank and all ranks that differ from it only along `dims`, ascending.
  std::vector<int> ranks(const std::vector<std::string>& dims) const;
  // The process group of ranks(dims). Several dimensions form one flattened group, for example
  // replicate x shard. The first call creates it, which blocks and is collective over its members:
  // all ranks must request their groups in the same order. Later calls return the same group.
  BackendPtr group(const std::vector<std::string>& dims);
  // Splits ranks(dims) into groups of `count` consecutive ranks and returns the group that contains
  // this rank. Blocks and is collective like group(). Throws std::invalid_argument if `count` does
  // not divide their number.
  BackendPtr neighbours(const std::vector<std::string>& dims, int count);

 private:
  World& world_;
  const layout::MeshLayout layout_;
  std::map<std::pair<std::vector<std::string>, int>, BackendPtr> groups_;  // by dims and size
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_MESH_H_
