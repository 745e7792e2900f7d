#include "pipewright/comms/mesh_layout.h"

#include <algorithm>
#include <stdexcept>

namespace pipewright::comms {

MeshLayout::MeshLayout(std::vector<MeshDim> dims) : dims_(std::move(dims)) {
  for (size_t i = 0; i < dims_.size(); ++i) {
    if (dims_[i].size < 1) {
      throw std::invalid_argument("mesh dimension `" + dims_[i].name +
                                  "`: expected a size of at least 1, got " +
                                  std::to_string(dims_[i].size));
    }
    for (size_t j = 0; j < i; ++j) {
      if (dims_[j].name == dims_[i].name) {
        throw std::invalid_argument("mesh dimension `" + dims_[i].name + "` appears twice");
      }
    }
  }
}

int MeshLayout::size() const {
  int ranks = 1;
  for (const MeshDim& dim : dims_) ranks *= dim.size;
  return ranks;
}

int MeshLayout::size(std::string_view dim) const { return dims_[index_of(dim)].size; }

int MeshLayout::coordinate(int rank, std::string_view dim) const {
  const size_t index = index_of(dim);
  return rank / stride(index) % dims_[index].size;
}

std::vector<int> MeshLayout::peers(int rank, std::span<const std::string> dims) const {
  std::vector<int> ranks = {rank};
  for (const std::string& dim : dims) {
    const size_t index = index_of(dim);
    std::vector<int> wider;
    for (const int known : ranks) {
      const int first = known - coordinate(known, dim) * stride(index);
      for (int i = 0; i < dims_[index].size; ++i) wider.push_back(first + i * stride(index));
    }
    ranks = std::move(wider);
  }
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

size_t MeshLayout::index_of(std::string_view dim) const {
  std::string names;
  for (size_t i = 0; i < dims_.size(); ++i) {
    if (dims_[i].name == dim) return i;
    names += (i ? ", `" : "`") + dims_[i].name + "`";
  }
  throw std::invalid_argument("unknown mesh dimension: expected one of " + names + ", got `" +
                              std::string(dim) + "`");
}

int MeshLayout::stride(size_t index) const {
  int stride = 1;
  for (size_t i = index + 1; i < dims_.size(); ++i) stride *= dims_[i].size;
  return stride;
}

}  // namespace pipewright::comms
