#include "pipewright/comms/mesh.h"

#include <algorithm>
#include <span>
#include <stdexcept>

#include "pipewright/comms/failure/failure_domain.h"

namespace pipewright::comms {

Mesh::Mesh(World& world, std::vector<layout::MeshDim> dims)
    : world_(world), layout_(std::move(dims)) {
  if (layout_.size() == world.size()) {
    std::string coordinates;
    for (const layout::MeshDim& dim : layout_.dims())
      coordinates +=
          (coordinates.empty() ? "" : ", ") + dim.name + " " + std::to_string(coordinate(dim.name));
    world.failures().set_coordinates(coordinates);
    return;
  }
  std::string product;
  for (const layout::MeshDim& dim : layout_.dims())
    product += (product.empty() ? "" : " x ") + dim.name + " " + std::to_string(dim.size);
  throw std::invalid_argument("mesh " + product + " does not fit the world: expected " +
                              std::to_string(world.size()) + " ranks, got " +
                              std::to_string(layout_.size()));
}

std::vector<int> Mesh::ranks(const std::vector<std::string>& dims) const {
  return layout_.peers(world_.rank(), dims);
}

BackendPtr Mesh::group(const std::vector<std::string>& dims) {
  return neighbours(dims, static_cast<int>(ranks(dims).size()));
}

BackendPtr Mesh::neighbours(const std::vector<std::string>& dims, int count) {
  const std::vector<int> all = ranks(dims);
  const auto size = static_cast<int>(all.size());
  if (count < 1 || size % count != 0) {
    throw std::invalid_argument(
        "group size does not divide the mesh dimensions: expected a divisor of " +
        std::to_string(size) + ", got " + std::to_string(count));
  }
  BackendPtr& group = groups_[{dims, count}];
  if (!group) {
    std::string name = "mesh";
    for (const std::string& dim : dims) name += "." + dim;
    if (count != size) name += "/" + std::to_string(count);
    const auto place = static_cast<int>(std::ranges::find(all, world_.rank()) - all.begin());
    const int begin = place / count * count;
    group = world_.make_group(
        name, std::span(all).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)));
  }
  return group;
}

}  // namespace pipewright::comms
