#ifndef PIPEWRIGHT_COMMS_MESH_H_
#define PIPEWRIGHT_COMMS_MESH_H_

#include <map>
#include <string>
#include <vector>

#include "pipewright/comms/mesh_layout.h"
#include "pipewright/comms/world.h"

namespace pipewright::comms {

// The ranks of a world over named dimensions, with the groups along them. One thread at a time.
class Mesh {
 public:
  // Throws std::invalid_argument where the dimensions do not multiply to the world's size. `world`
  // must outlive it.
  Mesh(World& world, std::vector<MeshDim> dims);

  const MeshLayout& layout() const { return layout_; }
  int size(std::string_view dim) const { return layout_.size(dim); }
  int coordinate(std::string_view dim) const { return layout_.coordinate(world_.rank(), dim); }
  // Along some dimensions, this rank among them, ascending.
  std::vector<int> ranks(const std::vector<std::string>& dims) const;
  // The group of these ranks: several dimensions make one group, as replicate x shard. Made the
  // first time, which is collective over its members; all ranks ask in the same order.
  BackendPtr group(const std::vector<std::string>& dims);
  // Of these ranks, `count` neighbours, this rank among them; the groups so made are all as large.
  // Throws std::invalid_argument where `count` does not divide them.
  BackendPtr neighbours(const std::vector<std::string>& dims, int count);

 private:
  World& world_;
  const MeshLayout layout_;
  std::map<std::pair<std::vector<std::string>, int>, BackendPtr> groups_;  // by number of ranks too
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_MESH_H_
