#include <gtest/gtest.h>

#include <stdexcept>

#include "pipewright/layout/layout.h"

namespace pipewright::layout {
namespace {

std::vector<int> peers(const MeshLayout& mesh, int rank, std::vector<std::string> dims) {
  return mesh.peers(rank, dims);
}

// The layout of numpy.arange(12).reshape(2, 3, 2), as in init_device_mesh.
TEST(MeshLayout, RowMajor) {
  const MeshLayout mesh({{"pp", 2}, {"dp", 3}, {"tp", 2}});
  EXPECT_EQ(mesh.size(), 12);
  EXPECT_EQ(mesh.size("dp"), 3);
  EXPECT_EQ(mesh.coordinate(9, "pp"), 1);
  EXPECT_EQ(mesh.coordinate(9, "dp"), 1);
  EXPECT_EQ(mesh.coordinate(9, "tp"), 1);
  EXPECT_EQ(peers(mesh, 9, {"pp"}), (std::vector{3, 9}));
  EXPECT_EQ(peers(mesh, 9, {"dp"}), (std::vector{7, 9, 11}));
  EXPECT_EQ(peers(mesh, 9, {"tp"}), (std::vector{8, 9}));
}

TEST(MeshLayout, PeersAlongSeveralDimensions) {
  const MeshLayout mesh({{"pp", 2}, {"dp_replicate", 2}, {"dp_shard", 3}});
  EXPECT_EQ(peers(mesh, 8, {"dp_replicate", "dp_shard"}), (std::vector{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(peers(mesh, 8, {"pp", "dp_replicate"}), (std::vector{2, 5, 8, 11}));
  EXPECT_EQ(peers(mesh, 8, {}), (std::vector{8}));
}

TEST(MeshLayout, Errors) {
  EXPECT_THROW(MeshLayout({{"pp", 2}, {"pp", 3}}), std::invalid_argument);
  EXPECT_THROW(MeshLayout({{"pp", 0}}), std::invalid_argument);
  try {
    MeshLayout({{"pp", 2}, {"dp", 2}}).size("tp");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "unknown mesh dimension: expected one of `pp`, `dp`, got `tp`");
  }
}

}  // namespace
}  // namespace pipewright::layout
