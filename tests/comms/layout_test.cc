#include "pipewright/comms/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>

namespace pipewright::comms {
namespace {

using Indices = std::vector<int64_t>;

const TensorPlacement kReplicate = TensorPlacement::replicate();
TensorPlacement shard(int dim) { return TensorPlacement::shard(dim); }
TensorPlacement strided(int dim, int64_t factor) {
  return TensorPlacement::strided_shard(dim, factor);
}

// Piece `index` of torch.chunk(count) of a list, by dealing out elements one at a time.
Indices chunk(const Indices& whole, int count, int index) {
  const size_t each = (whole.size() + static_cast<size_t>(count) - 1) / static_cast<size_t>(count);
  Indices piece;
  for (size_t i = 0; i < whole.size(); ++i) {
    if (i / each == static_cast<size_t>(index)) piece.push_back(whole[i]);
  }
  return piece;
}

Indices iota(int64_t size) {
  Indices all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// The indices along dimension `dim` of the boxes of `rank`, in their order.
Indices along(const Layout& layout, int rank, size_t dim) {
  Indices indices;
  for (const Box& box : layout.boxes(rank)) {
    for (int64_t i = 0; i < box.sizes[dim]; ++i) indices.push_back(box.begin[dim] + i);
  }
  return indices;
}

std::string error_of(const auto& function) {
  try {
    function();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Layout, Replicated) {
  const Layout layout(MeshLayout({{"dp", 2}}), {kReplicate}, {3, 4});
  EXPECT_EQ(layout.boxes(0), (std::vector<Box>{{{0, 0}, {3, 4}}}));
  EXPECT_EQ(layout.boxes(1), layout.boxes(0));
  EXPECT_EQ(layout.owners(Indices{2, 3}), (std::vector{0, 1}));
}

TEST(Layout, Scalar) {
  const Layout layout(MeshLayout({{"dp", 2}}), {kReplicate}, {});
  EXPECT_EQ(layout.boxes(1), (std::vector<Box>{{{}, {}}}));
  EXPECT_EQ(layout.owners(Indices{}), (std::vector{0, 1}));
}

TEST(Layout, ShardsLikeTorchChunk) {
  for (int64_t length = 0; length <= 20; ++length) {
    for (int ranks = 1; ranks <= 6; ++ranks) {
      const Layout layout(MeshLayout({{"dp", ranks}}), {shard(0)}, {length});
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(along(layout, rank, 0), chunk(iota(length), ranks, rank))
            << layout.text() << " rank " << rank;
      }
    }
  }
}

// fully_shard over a tensor that is sharded by tp: tp cuts the whole tensor, fully_shard cuts what
// a tp rank has.
TEST(Layout, FullyShardOverTensorParallel) {
  for (int64_t length = 0; length <= 30; ++length) {
    for (int dp = 1; dp <= 4; ++dp) {
      for (int tp = 1; tp <= 4; ++tp) {
        const Layout layout(MeshLayout({{"dp", dp}, {"tp", tp}}), {strided(0, tp), shard(0)},
                            {length});
        for (int rank = 0; rank < dp * tp; ++rank) {
          const Indices of_tp = chunk(iota(length), tp, rank % tp);
          EXPECT_EQ(along(layout, rank, 0), chunk(of_tp, dp, rank / tp))
              << layout.text() << " rank " << rank;
        }
      }
    }
  }
}

// Two mesh dimensions that shard one tensor dimension: the left one cuts first, as in DTensor.
TEST(Layout, TheLeftShardCutsFirst) {
  for (int64_t length = 0; length <= 30; ++length) {
    const Layout layout(MeshLayout({{"a", 3}, {"b", 2}}), {shard(0), shard(0)}, {length});
    for (int rank = 0; rank < 6; ++rank) {
      EXPECT_EQ(along(layout, rank, 0), chunk(chunk(iota(length), 3, rank / 2), 2, rank % 2));
    }
  }
}

// Three levels: tp, then cp over what tp has, then dp over what both have.
TEST(Layout, StridedShardsOfStridedShards) {
  for (int64_t length = 0; length <= 40; ++length) {
    const Layout layout(MeshLayout({{"dp", 3}, {"cp", 2}, {"tp", 2}}),
                        {strided(0, 4), strided(0, 2), shard(0)}, {length});
    for (int rank = 0; rank < 12; ++rank) {
      const Indices of_tp = chunk(iota(length), 2, rank % 2);
      const Indices of_cp = chunk(of_tp, 2, rank / 2 % 2);
      EXPECT_EQ(along(layout, rank, 0), chunk(of_cp, 3, rank / 4));
    }
  }
}

// A strided shard alone: every rank has a part of each piece, as in a fused QKV weight. The case of
// DTensor's documentation: 9 elements, split factor 2, 4 ranks.
TEST(Layout, StridedShardAlone) {
  const Layout layout(MeshLayout({{"tp", 4}}), {strided(0, 2)}, {9});
  EXPECT_EQ(along(layout, 0, 0), (Indices{0, 1, 5}));
  EXPECT_EQ(along(layout, 1, 0), (Indices{2, 3, 6}));
  EXPECT_EQ(along(layout, 2, 0), (Indices{4, 7}));
  EXPECT_EQ(along(layout, 3, 0), (Indices{8}));
  EXPECT_EQ(layout.boxes(0), (std::vector<Box>{{{0}, {2}}, {{5}, {1}}}));
  EXPECT_EQ(layout.local_shape(0), (Indices{3}));
}

// PyTorch's fully_shard over tensor parallelism with tp 2 and dp 2: local rows per tp rank, then
// per dp rank.
TEST(Layout, RowsOfPyTorchs2DTests) {
  struct Case {
    int64_t rows;
    Indices first_tp, second_tp;
  };
  for (const Case& c :
       {Case{9, {3, 2}, {2, 2}}, Case{12, {3, 3}, {3, 3}}, Case{15, {4, 4}, {4, 3}},
        Case{20, {5, 5}, {5, 5}}, Case{48, {12, 12}, {12, 12}}, Case{51, {13, 13}, {13, 12}},
        Case{64, {16, 16}, {16, 16}}, Case{68, {17, 17}, {17, 17}}}) {
    const Layout in_proj(MeshLayout({{"dp", 2}, {"tp", 2}}), {strided(0, 2), shard(0)},
                         {c.rows, 3});
    for (int dp = 0; dp < 2; ++dp) {
      const auto i = static_cast<size_t>(dp);
      EXPECT_EQ(in_proj.local_shape(2 * dp), (Indices{c.first_tp[i], 3}));
      EXPECT_EQ(in_proj.local_shape(2 * dp + 1), (Indices{c.second_tp[i], 3}));
    }
  }
  // out_proj: rows over dp, columns over tp.
  const Layout out_proj(MeshLayout({{"dp", 2}, {"tp", 2}}), {shard(0), shard(-1)}, {17, 9});
  EXPECT_EQ(out_proj.local_shape(0), (Indices{9, 5}));
  EXPECT_EQ(out_proj.local_shape(3), (Indices{8, 4}));
  EXPECT_EQ(out_proj.boxes(3), (std::vector<Box>{{{9, 5}, {8, 4}}}));
}

// Every placement of a 2-D tensor on a mesh of three dimensions.
std::vector<Layout> many_layouts() {
  const MeshLayout mesh({{"dp_replicate", 2}, {"dp_shard", 3}, {"tp", 2}});
  const std::vector<TensorPlacement> any = {kReplicate,    shard(0),      shard(1),
                                            strided(0, 2), strided(1, 2), strided(0, 6),
                                            strided(1, 6), strided(0, 3)};
  std::vector<Layout> layouts;
  for (const Indices& shape : {Indices{7, 5}, Indices{1, 12}, Indices{0, 3}, Indices{13, 2}}) {
    for (const TensorPlacement& a : any) {
      for (const TensorPlacement& b : any) {
        for (const TensorPlacement& c : any) {
          try {
            layouts.push_back(Layout(mesh, {a, b, c}, shape));
          } catch (const std::invalid_argument&) {  // a split factor that does not fit
          }
        }
      }
    }
  }
  return layouts;
}

// owners() is computed from the index, boxes() from the rank: they must agree, and every element
// must have the same number of owners, one per coordinate of the dimensions that replicate it.
TEST(Layout, OwnersAreTheRanksWhoseBoxesHoldTheElement) {
  const std::vector<Layout> layouts = many_layouts();
  ASSERT_GT(layouts.size(), 400u);
  for (const Layout& layout : layouts) {
    std::map<Indices, std::vector<int>> owners;
    Indices largest = {0, 0};
    for (int rank = 0; rank < layout.mesh().size(); ++rank) {
      int64_t elements = 0;
      for (const Box& box : layout.boxes(rank)) {
        EXPECT_GT(box.sizes[0] * box.sizes[1], 0) << layout.text();
        for (int64_t i = 0; i < box.sizes[0]; ++i) {
          for (int64_t j = 0; j < box.sizes[1]; ++j) {
            owners[{box.begin[0] + i, box.begin[1] + j}].push_back(rank);
            ++elements;
          }
        }
      }
      const Indices local = layout.local_shape(rank);
      EXPECT_EQ(local[0] * local[1], elements) << layout.text();
      for (size_t dim = 0; dim < 2; ++dim) largest[dim] = std::max(largest[dim], local[dim]);
    }
    EXPECT_EQ(layout.padded_shape(), largest) << layout.text();
    size_t copies = 1;
    for (size_t i = 0; i < 3; ++i) {
      if (!layout.placements()[i].dim())
        copies *= static_cast<size_t>(layout.mesh().dims()[i].size);
    }
    ASSERT_EQ(static_cast<int64_t>(owners.size()), layout.shape()[0] * layout.shape()[1])
        << layout.text();
    for (const auto& [index, ranks] : owners) {
      EXPECT_EQ(ranks.size(), copies) << layout.text();
      EXPECT_EQ(layout.owners(index), ranks) << layout.text();
    }
  }
}

TEST(Layout, TextIsReadBack) {
  const Layout layout(MeshLayout({{"dp_replicate", 2}, {"dp", 2}, {"tp", 4}}),
                      {kReplicate, strided(0, 4), shard(-2)}, {9, 4});
  EXPECT_EQ(layout.text(), "[9, 4] dp_replicate=2:replicate dp=2:strided_shard(0,4) tp=4:shard(0)");
  std::set<std::string> texts;
  for (const Layout& other : many_layouts()) {
    EXPECT_EQ(parse_layout(other.text()), other) << other.text();
    EXPECT_TRUE(texts.insert(other.text()).second) << other.text();
  }
  EXPECT_EQ(parse_layout("[] dp=1:replicate").shape().size(), 0u);
  EXPECT_EQ(parse_layout("[5000000000]").shape()[0], 5000000000);
}

TEST(Layout, RefusesWhatIsNoLayout) {
  const MeshLayout mesh({{"dp", 2}, {"tp", 2}});
  EXPECT_EQ(error_of([&] { Layout(mesh, {shard(0)}, {4}); }),
            "layout of [4]: expected one placement per mesh dimension (2), got 1");
  EXPECT_EQ(error_of([&] {
              Layout(mesh, {shard(1), kReplicate}, {4});
            }),
            "layout of [4]: `shard(1)` on mesh dimension `dp`: expected a dimension of a tensor "
            "with 1");
  EXPECT_EQ(error_of([&] {
              Layout(mesh, {shard(-2), kReplicate}, {4});
            }),
            "layout of [4]: `shard(-2)` on mesh dimension `dp`: expected a dimension of a tensor "
            "with 1");
  EXPECT_EQ(error_of([&] {
              Layout(mesh, {strided(0, 3), shard(0)}, {4});
            }),
            "layout of [4]: `strided_shard(0,3)` on mesh dimension `dp`: expected a split factor "
            "that is the product of the sizes of mesh dimensions to its right that shard the same "
            "dimension");
  EXPECT_EQ(error_of([&] {
              Layout(mesh, {strided(0, 0), shard(0)}, {4});
            }),
            "layout of [4]: `strided_shard(0,0)` on mesh dimension `dp`: expected a split factor "
            "of at least 1");
  EXPECT_EQ(error_of([&] {
              Layout(mesh, {shard(0), shard(0)}, {-4});
            }),
            "layout of [-4]: expected sizes of at least 0, got -4");
  const Layout layout(mesh, {shard(0), kReplicate}, {4});
  EXPECT_EQ(error_of([&] { layout.owners(Indices{4}); }),
            "expected the index of an element of a tensor of shape [4], got [4]");
  EXPECT_EQ(error_of([&] {
              layout.owners(Indices{0, 0});
            }),
            "expected the index of an element of a tensor of shape [4], got [0, 0]");
}

TEST(Layout, ParsingNamesThePlace) {
  EXPECT_EQ(error_of([] { parse_layout("9, 4] dp=2:shard(0)"); }),
            "layout `9, 4] dp=2:shard(0)`, column 1: expected `[`");
  EXPECT_EQ(error_of([] { parse_layout("[9 4]"); }), "layout `[9 4]`, column 3: expected `, `");
  EXPECT_EQ(error_of([] { parse_layout("[9] =2:shard(0)"); }),
            "layout `[9] =2:shard(0)`, column 5: expected the name of a mesh dimension");
  EXPECT_EQ(error_of([] { parse_layout("[9] dp=x:shard(0)"); }),
            "layout `[9] dp=x:shard(0)`, column 8: expected a whole number");
  EXPECT_EQ(error_of([] { parse_layout("[9] dp=9999999999:shard(0)"); }),
            "layout `[9] dp=9999999999:shard(0)`, column 8: expected a whole number");
  EXPECT_EQ(error_of([] { parse_layout("[9] dp=2:partial"); }),
            "layout `[9] dp=2:partial`, column 10: expected `replicate`, `shard(DIM)` or "
            "`strided_shard(DIM,FACTOR)`");
  EXPECT_EQ(error_of([] { parse_layout("[9] dp=2:shard(0)x"); }),
            "layout `[9] dp=2:shard(0)x`, column 18: expected the end or a space");
  EXPECT_EQ(error_of([] { parse_layout("[9] dp=0:shard(0)"); }),
            "mesh dimension `dp`: expected a size of at least 1, got 0");
}

}  // namespace
}  // namespace pipewright::comms
