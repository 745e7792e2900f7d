#include "comms/mesh.h"

#include <stdexcept>

namespace pipewright::comms {

Mesh::Mesh(World& world, std::vector<MeshDim> dims) : world_(world), layout_(std::move(dims)) {
  if (layout_.size() == world.size()) return;
  std::string product;
  for (const MeshDim& dim : layout_.dims())
    product += (product.empty() ? "" : " x ") + dim.name + " " + std::to_string(dim.size);
  throw std::invalid_argument("a mesh of " + product + " has " + std::to_string(layout_.size()) +
                              " ranks, and there are " + std::to_string(world.size()));
}

std::vector<int> Mesh::ranks(const std::vector<std::string>& dims) const {
  return layout_.peers(world_.rank(), dims);
}

BackendPtr Mesh::group(const std::vector<std::string>& dims) {
  BackendPtr& group = groups_[dims];
  if (!group) {
    std::string name = "mesh";
    for (const std::string& dim : dims) name += "." + dim;
    group = world_.make_group(name, ranks(dims));
  }
  return group;
}

}  // namespace pipewright::comms
