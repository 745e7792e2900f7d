#include "pipewright/layout/layout.h"

#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>

namespace pipewright::layout {
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
  // What tp alone leaves of these rows, and of out_proj's columns.
  const std::vector<Indices> over_tp = {{9, 5, 4},    {12, 6, 6},   {15, 8, 7},   {20, 10, 10},
                                        {48, 24, 24}, {51, 26, 25}, {64, 32, 32}, {68, 34, 34}};
  for (const Indices& of : over_tp) {
    const Layout rows(MeshLayout({{"tp", 2}}), {shard(0)}, {of[0]});
    EXPECT_EQ(rows.local_shape(0), (Indices{of[1]}));
    EXPECT_EQ(rows.local_shape(1), (Indices{of[2]}));
  }
  // out_proj, weight and bias: rows over dp, the weight's columns over tp.
  const std::vector<Indices> over_dp = {{3, 2, 1}, {5, 3, 2}, {16, 8, 8}, {17, 9, 8}};
  for (const Indices& dim : over_dp) {
    const MeshLayout mesh({{"dp", 2}, {"tp", 2}});
    const Layout bias(mesh, {shard(0), kReplicate}, {dim[0]});
    for (const Indices& of : over_tp) {
      const Layout weight(mesh, {shard(0), shard(-1)}, {dim[0], of[0]});
      EXPECT_EQ(weight.local_shape(0), (Indices{dim[1], of[1]}));
      EXPECT_EQ(weight.local_shape(1), (Indices{dim[1], of[2]}));
      EXPECT_EQ(weight.local_shape(2), (Indices{dim[2], of[1]}));
      EXPECT_EQ(weight.local_shape(3), (Indices{dim[2], of[2]}));
    }
    EXPECT_EQ(bias.local_shape(0), (Indices{dim[1]}));
    EXPECT_EQ(bias.local_shape(1), (Indices{dim[1]}));
    EXPECT_EQ(bias.local_shape(2), (Indices{dim[2]}));
    EXPECT_EQ(bias.local_shape(3), (Indices{dim[2]}));
  }
  const Layout out_proj(MeshLayout({{"dp", 2}, {"tp", 2}}), {shard(0), shard(-1)}, {17, 9});
  EXPECT_EQ(out_proj.boxes(3), (std::vector<Box>{{{9, 5}, {8, 4}}}));
}

// The order of ranks: 8 rows over dp 2 and tp 2, by hand.
TEST(Layout, RowsOfEachRankByHand) {
  const Layout layout(MeshLayout({{"dp", 2}, {"tp", 2}}), {strided(0, 2), shard(0)}, {8});
  EXPECT_EQ(along(layout, 0, 0), (Indices{0, 1}));  // dp 0, tp 0
  EXPECT_EQ(along(layout, 1, 0), (Indices{4, 5}));  // dp 0, tp 1
  EXPECT_EQ(along(layout, 2, 0), (Indices{2, 3}));  // dp 1, tp 0
  EXPECT_EQ(along(layout, 3, 0), (Indices{6, 7}));  // dp 1, tp 1
  EXPECT_EQ(layout.owners(Indices{1}), std::vector{0});
  EXPECT_EQ(layout.owners(Indices{4}), std::vector{1});
  EXPECT_EQ(layout.owners(Indices{3}), std::vector{2});
  EXPECT_EQ(layout.owners(Indices{7}), std::vector{3});
}

TEST(Layout, TextIsReadBack) {
  const Layout layout(MeshLayout({{"dp_replicate", 2}, {"dp", 2}, {"tp", 4}}),
                      {kReplicate, strided(0, 4), shard(-2)}, {9, 4});
  EXPECT_EQ(layout.text(), "[9, 4] dp_replicate=2:replicate dp=2:strided_shard(0,4) tp=4:shard(0)");
  EXPECT_EQ(parse_layout(layout.text()), layout);
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
}  // namespace pipewright::layout
