#include "pipewright/layout/layout.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <utility>

namespace pipewright::layout {

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

// A layout is kept as a list of cuts per tensor dimension, in the order in which they are applied.
// shard() cuts before everything to its right, so it goes to the front of the list that the mesh
// dimensions to its right have made; strided_shard() goes behind the cuts whose pieces it splits.
// A rank follows the list and takes one piece of every cut.

namespace {

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

// "[9, 4]".
std::string list(std::span<const int64_t> sizes) {
  std::string text = "[";
  for (const int64_t size : sizes) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(size);
  }
  return text + "]";
}

}  // namespace

std::string TensorPlacement::text() const {
  if (!dim_) return "replicate";
  const std::string dim = std::to_string(*dim_);
  if (split_factor_ == 1) return "shard(" + dim + ")";
  return "strided_shard(" + dim + "," + std::to_string(split_factor_) + ")";
}

Layout::Layout(MeshLayout mesh, std::vector<TensorPlacement> placements, std::vector<int64_t> shape)
    : mesh_(std::move(mesh)),
      placements_(std::move(placements)),
      shape_(std::move(shape)),
      splits_(shape_.size()) {
  if (placements_.size() != mesh_.dims().size()) {
    refuse("layout of " + list(shape_) + ": expected one placement per mesh dimension (" +
           std::to_string(mesh_.dims().size()) + "), got " + std::to_string(placements_.size()));
  }
  for (const int64_t size : shape_) {
    if (size >= 0) continue;
    refuse("layout of " + list(shape_) + ": expected sizes of at least 0, got " +
           std::to_string(size));
  }
  for (size_t i = placements_.size(); i-- > 0;) {
    if (placements_[i].dim()) add_split(i);
  }
}

void Layout::add_split(size_t mesh_dim) {
  TensorPlacement& placement = placements_[mesh_dim];
  const auto at_fault = [&] {
    return "layout of " + list(shape_) + ": `" + placement.text() + "` on mesh dimension `" +
           mesh_.dims()[mesh_dim].name + "`";
  };
  const int num_dims = static_cast<int>(shape_.size());
  const int dim = *placement.dim() < 0 ? *placement.dim() + num_dims : *placement.dim();
  const int64_t factor = placement.split_factor();
  if (dim < 0 || dim >= num_dims) {
    refuse(at_fault() + ": expected a dimension of a tensor with " + std::to_string(num_dims));
  }
  if (factor < 1) refuse(at_fault() + ": expected a split factor of at least 1");

  std::vector<Split>& splits = splits_[static_cast<size_t>(dim)];
  if (splits.empty() && factor > 1) splits.push_back({factor, std::nullopt});
  auto position = splits.begin();
  int64_t pieces = 1;
  while (pieces < factor && position != splits.end()) pieces *= position++->count;
  if (pieces != factor) {
    refuse(at_fault() +
           ": expected a split factor that is the product of the sizes of mesh dimensions to its "
           "right that shard the same dimension");
  }
  splits.insert(position, {mesh_.dims()[mesh_dim].size, mesh_dim});
  placement = TensorPlacement::strided_shard(dim, factor);
}

std::vector<Chunk> Layout::owned(size_t dim, int rank) const {
  std::vector<Chunk> owned = {{0, shape_[dim]}};
  for (const Split& split : splits_[dim]) {
    const int64_t first =
        split.mesh_dim ? mesh_.coordinate(rank, mesh_.dims()[*split.mesh_dim].name) : 0;
    const int64_t end = split.mesh_dim ? first + 1 : split.count;
    std::vector<Chunk> parts;
    for (const Chunk& whole : owned) {
      for (int64_t piece = first; piece < end; ++piece) {
        const Chunk part = chunk_of(whole.length, split.count, piece);
        if (part.length > 0) parts.push_back({whole.begin + part.begin, part.length});
      }
    }
    owned = std::move(parts);
  }
  std::erase_if(owned, [](const Chunk& chunk) { return chunk.length == 0; });
  return owned;
}

std::vector<Box> Layout::boxes(int rank) const {
  std::vector<Box> boxes = {{}};
  for (size_t dim = 0; dim < shape_.size(); ++dim) {
    const std::vector<Chunk> chunks = owned(dim, rank);
    std::vector<Box> products;
    for (const Box& box : boxes) {
      for (const Chunk& chunk : chunks) {
        Box& product = products.emplace_back(box);
        product.begin.push_back(chunk.begin);
        product.sizes.push_back(chunk.length);
      }
    }
    boxes = std::move(products);
  }
  return boxes;
}

std::vector<int64_t> Layout::local_shape(int rank) const {
  std::vector<int64_t> sizes;
  for (size_t dim = 0; dim < shape_.size(); ++dim) {
    int64_t& size = sizes.emplace_back(0);
    for (const Chunk& chunk : owned(dim, rank)) size += chunk.length;
  }
  return sizes;
}

std::vector<int64_t> Layout::padded_shape() const {
  std::vector<int64_t> largest(shape_.size());
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    const std::vector<int64_t> sizes = local_shape(rank);
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      largest[dim] = std::max(largest[dim], sizes[dim]);
    }
  }
  return largest;
}

std::vector<int> Layout::owners(std::span<const int64_t> index) const {
  bool exists = index.size() == shape_.size();
  for (size_t dim = 0; exists && dim < shape_.size(); ++dim) {
    exists = 0 <= index[dim] && index[dim] < shape_[dim];
  }
  if (!exists) {
    refuse("expected the index of an element of a tensor of shape " + list(shape_) + ", got " +
           list(index));
  }
  // The coordinate along each mesh dimension whose piece holds the element; -1 for any.
  std::vector<int64_t> coordinates(placements_.size(), -1);
  for (size_t dim = 0; dim < shape_.size(); ++dim) {
    Chunk within = {0, shape_[dim]};
    for (const Split& split : splits_[dim]) {
      const int64_t piece = (index[dim] - within.begin) / chunk_length(within.length, split.count);
      const Chunk part = chunk_of(within.length, split.count, piece);
      within = {within.begin + part.begin, part.length};
      if (split.mesh_dim) coordinates[*split.mesh_dim] = piece;
    }
  }
  std::vector<int> owners = {0};
  for (size_t i = 0; i < coordinates.size(); ++i) {
    const int size = mesh_.dims()[i].size;
    std::vector<int> longer;
    for (const int owner : owners) {
      for (int c = 0; c < size; ++c) {
        if (coordinates[i] < 0 || coordinates[i] == c) longer.push_back(owner * size + c);
      }
    }
    owners = std::move(longer);
  }
  return owners;
}

std::string Layout::text() const {
  std::string text = list(shape_);
  for (size_t i = 0; i < placements_.size(); ++i) {
    const MeshDim& dim = mesh_.dims()[i];
    text += " " + dim.name + "=" + std::to_string(dim.size) + ":" + placements_[i].text();
  }
  return text;
}

namespace {

// Reads a layout from the front of a text. Every function moves on behind what it has read.
class LayoutReader {
 public:
  explicit LayoutReader(std::string_view text) : text_(text) {}

  Layout read() {
    std::vector<int64_t> shape;
    expect("[");
    while (!skip("]")) {
      if (!shape.empty()) expect(", ");
      shape.push_back(number<int64_t>());
    }
    std::vector<MeshDim> dims;
    std::vector<TensorPlacement> placements;
    while (skip(" ")) {
      std::string dim_name = name();
      expect("=");
      dims.push_back({std::move(dim_name), number<int>()});
      expect(":");
      placements.push_back(placement());
    }
    if (place_ != text_.size()) fail("the end or a space");
    return Layout(MeshLayout(std::move(dims)), std::move(placements), std::move(shape));
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    refuse("layout `" + std::string(text_) + "`, column " + std::to_string(place_ + 1) +
           ": expected " + expected);
  }

  bool skip(std::string_view token) {
    if (!text_.substr(place_).starts_with(token)) return false;
    place_ += token.size();
    return true;
  }

  void expect(std::string_view token) {
    if (!skip(token)) fail("`" + std::string(token) + "`");
  }

  std::string name() {
    const std::string_view rest = text_.substr(place_);
    const std::string_view name = rest.substr(0, rest.find_first_of(" =:"));
    if (name.empty()) fail("the name of a mesh dimension");
    place_ += name.size();
    return std::string(name);
  }

  template <typename Number>
  Number number() {
    Number value = 0;
    const char* const begin = text_.data() + place_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc()) fail("a whole number");
    place_ += static_cast<size_t>(end - begin);
    return value;
  }

  TensorPlacement placement() {
    if (skip("replicate")) return TensorPlacement::replicate();
    const bool strided = skip("strided_");
    if (!skip("shard(")) fail("`replicate`, `shard(DIM)` or `strided_shard(DIM,FACTOR)`");
    const int dim = number<int>();
    int64_t factor = 1;
    if (strided) {
      expect(",");
      factor = number<int64_t>();
    }
    expect(")");
    return TensorPlacement::strided_shard(dim, factor);
  }

  std::string_view text_;
  size_t place_ = 0;
};

}  // namespace

Layout parse_layout(std::string_view text) { return LayoutReader(text).read(); }

}  // namespace pipewright::layout
