// Layouts of every kind against an oracle that knows only what the placements mean. It finds the
// order of the cuts of a tensor dimension by trying all permutations, and deals out indices one by
// one; it uses nothing of comms but the values it judges.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>

#include "pipewright/layout/layout.h"

namespace pipewright::layout {
namespace {

using Indices = std::vector<int64_t>;

// A cut of a tensor dimension. `place`: the mesh dimension along which its pieces are dealt out; or
// one behind all of them, for a cut of which every rank has all pieces.
struct Cut {
  size_t place;
  int64_t count;
  int64_t factor;  // the product of the cuts from places to the right that come before this one
};

// The cuts of tensor dimension `dim` in their order: for each, those before it that come from
// places to its right make as many pieces as its split factor says. A strided shard with nothing to
// its right has a cut of its own there. Empty if there is no such order.
std::optional<std::vector<Cut>> cuts_of(int dim, const std::vector<int>& mesh,
                                        const std::vector<TensorPlacement>& placements) {
  std::vector<Cut> cuts;
  for (size_t place = 0; place < mesh.size(); ++place) {
    if (placements[place].dim() == dim)
      cuts.push_back({place, mesh[place], placements[place].split_factor()});
  }
  if (!cuts.empty() && cuts.back().factor > 1) cuts.push_back({mesh.size(), cuts.back().factor, 1});
  const auto less = [](const Cut& a, const Cut& b) { return a.place < b.place; };
  do {
    bool fits = true;
    for (size_t i = 0; i < cuts.size(); ++i) {
      int64_t pieces = 1;
      for (size_t before = 0; before < i; ++before)
        if (cuts[before].place > cuts[i].place) pieces *= cuts[before].count;
      fits = fits && pieces == cuts[i].factor;
    }
    if (fits) return cuts;
  } while (std::next_permutation(cuts.begin(), cuts.end(), less));
  return std::nullopt;
}

// Piece `index` of torch.chunk(count) of a list, by dealing out elements one at a time.
Indices chunk(const Indices& whole, int64_t count, int64_t index) {
  const int64_t each = (static_cast<int64_t>(whole.size()) + count - 1) / count;
  Indices piece;
  for (size_t i = 0; i < whole.size(); ++i) {
    if (static_cast<int64_t>(i) / each == index) piece.push_back(whole[i]);
  }
  return piece;
}

// The indices of a dimension of `size` that the rank at these coordinates has.
Indices owned(int64_t size, const std::vector<Cut>& cuts, const Indices& coordinates) {
  Indices all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  std::vector<Indices> pieces = {all};
  for (const Cut& cut : cuts) {
    std::vector<Indices> smaller;
    for (const Indices& piece : pieces) {
      for (int64_t i = 0; i < cut.count; ++i) {
        if (cut.place == coordinates.size() || coordinates[cut.place] == i)
          smaller.push_back(chunk(piece, cut.count, i));
      }
    }
    pieces = smaller;
  }
  Indices mine;
  for (const Indices& piece : pieces) mine.insert(mine.end(), piece.begin(), piece.end());
  return mine;
}

const std::vector<int> kSizes = {2, 3, 2};  // of the mesh

// Every placement of a 2-D tensor on a mesh of three dimensions, as `check` sees it; some are none.
void for_each_layout(
    const std::function<void(const std::vector<TensorPlacement>&, const Indices&)>& check) {
  std::vector<TensorPlacement> any = {TensorPlacement::replicate()};
  for (const int dim : {0, 1}) {
    for (const int64_t factor : {1, 2, 3, 4, 6})
      any.push_back(TensorPlacement::strided_shard(dim, factor));
  }
  for (const Indices& shape : {Indices{7, 5}, Indices{1, 12}, Indices{0, 3}, Indices{13, 2}}) {
    for (const TensorPlacement& a : any) {
      for (const TensorPlacement& b : any) {
        for (const TensorPlacement& c : any) check({a, b, c}, shape);
      }
    }
  }
}

MeshLayout mesh() {
  return MeshLayout({{"dp_replicate", kSizes[0]}, {"dp_shard", kSizes[1]}, {"tp", kSizes[2]}});
}

std::optional<Layout> layout_of(const std::vector<TensorPlacement>& placements,
                                const Indices& shape) {
  try {
    return Layout(mesh(), placements, shape);
  } catch (const std::invalid_argument&) {
    return std::nullopt;
  }
}

// The elements of each rank, in order, and what they determine: who owns an element, local sizes,
// the largest of them. Split factors that fit no order are refused, and no others.
TEST(Layout, IsThatOfTheBruteForceChunker) {
  int layouts = 0, refused = 0;
  for_each_layout([&](const std::vector<TensorPlacement>& placements, const Indices& shape) {
    const auto rows = cuts_of(0, kSizes, placements), columns = cuts_of(1, kSizes, placements);
    const std::optional<Layout> layout = layout_of(placements, shape);
    ASSERT_EQ(layout.has_value(), rows && columns)
        << placements[0].text() << placements[1].text() << placements[2].text();
    if (!layout) return void(++refused);
    ++layouts;
    std::map<Indices, std::vector<int>> owners;
    Indices largest = {0, 0};
    for (int rank = 0; rank < 12; ++rank) {
      const Indices coordinates = {rank / 6, rank / 2 % 3, rank % 2};
      const Indices mine[] = {owned(shape[0], *rows, coordinates),
                              owned(shape[1], *columns, coordinates)};
      std::set<Indices> expected, got;
      for (const int64_t i : mine[0]) {
        for (const int64_t j : mine[1]) {
          expected.insert({i, j});
          owners[{i, j}].push_back(rank);
        }
      }
      Indices previous = {-1, -1};
      for (const Box& box : layout->boxes(rank)) {
        EXPECT_LT(previous, box.begin) << layout->text();
        previous = box.begin;
        EXPECT_GT(box.sizes[0] * box.sizes[1], 0) << layout->text();
        for (int64_t i = 0; i < box.sizes[0]; ++i) {
          for (int64_t j = 0; j < box.sizes[1]; ++j)
            EXPECT_TRUE(got.insert({box.begin[0] + i, box.begin[1] + j}).second) << layout->text();
        }
      }
      ASSERT_EQ(got, expected) << layout->text() << " rank " << rank;
      const Indices local = layout->local_shape(rank);
      for (size_t dim = 0; dim < 2; ++dim) {
        EXPECT_EQ(local[dim], static_cast<int64_t>(mine[dim].size())) << layout->text();
        largest[dim] = std::max(largest[dim], local[dim]);
      }
    }
    EXPECT_EQ(layout->padded_shape(), largest) << layout->text();
    ASSERT_EQ(static_cast<int64_t>(owners.size()), shape[0] * shape[1]) << layout->text();
    for (const auto& [index, ranks] : owners)
      EXPECT_EQ(layout->owners(index), ranks) << layout->text();
  });
  EXPECT_GT(layouts, 500);
  EXPECT_GT(refused, 500);
}

TEST(Layout, EachHasItsOwnTextAndIsReadBack) {
  std::set<std::string> texts;
  for_each_layout([&](const std::vector<TensorPlacement>& placements, const Indices& shape) {
    const std::optional<Layout> layout = layout_of(placements, shape);
    if (!layout) return;
    EXPECT_EQ(parse_layout(layout->text()), *layout) << layout->text();
    EXPECT_TRUE(texts.insert(layout->text()).second) << layout->text();
  });
  EXPECT_GT(texts.size(), 500u);
}

}  // namespace
}  // namespace pipewright::layout
