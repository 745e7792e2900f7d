// Resharding against brute force: every element comes from where a walk over all indices finds it.
#include "pipewright/checkpoint/read_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <stdexcept>

#include "pipewright/checkpoint/save.h"
#include "pipewright/layout/boxes.h"
#include "pipewright/layout/layout.h"
#include "tests/checkpoint/scratch.h"

namespace pipewright::checkpoint {
namespace {

using layout::Layout;
using layout::MeshLayout;
using layout::TensorPlacement;
using Index = std::vector<int64_t>;

// All indices of a box, in row-major order.
std::vector<Index> indices_of(const Box& box) {
  std::vector<Index> all = {{}};
  for (size_t dim = 0; dim < box.begin.size(); ++dim) {
    std::vector<Index> longer;
    for (const Index& index : all) {
      for (int64_t at = 0; at < box.sizes[dim]; ++at) {
        longer.push_back(index);
        longer.back().push_back(box.begin[dim] + at);
      }
    }
    all = std::move(longer);
  }
  return all;
}

Box random_box(std::mt19937* random, const std::vector<int64_t>& shape) {
  Box box;
  for (const int64_t size : shape) {
    const auto begin = static_cast<int64_t>((*random)() % static_cast<uint64_t>(size + 1));
    box.begin.push_back(begin);
    box.sizes.push_back(
        static_cast<int64_t>((*random)() % static_cast<uint64_t>(size - begin + 1)));
  }
  return box;
}

TEST(BoxesTest, IntersectionAndDifferencePartitionABox) {
  std::mt19937 random(1);
  for (int run = 0; run < 3000; ++run) {
    std::vector<int64_t> shape;
    for (uint64_t dims = random() % 4; dims > 0; --dims)
      shape.push_back(static_cast<int64_t>(random() % 4) + 1);
    const Box box = random_box(&random, shape), cut = random_box(&random, shape);
    const auto all = indices_of(box), others = indices_of(cut);
    EXPECT_EQ(volume(box), static_cast<int64_t>(all.size()));
    std::multiset<Index> inside, outside;
    for (const Index& index : all)
      (std::ranges::find(others, index) != others.end() ? inside : outside).insert(index);
    const auto both = intersection(box, cut);
    const auto shared = both ? indices_of(*both) : std::vector<Index>{};
    EXPECT_EQ(std::multiset<Index>(shared.begin(), shared.end()), inside);
    std::multiset<Index> rest;
    for (const Box& piece : difference(box, cut)) {
      for (const Index& index : indices_of(piece)) rest.insert(index);
    }
    EXPECT_EQ(rest, outside) << text(box) << text(cut);
  }
}

TEST(BoxesTest, CoverageCountsEachElement) {
  std::mt19937 random(2);
  int exact = 0;
  for (int run = 0; run < 3000; ++run) {
    const std::vector<int64_t> shape = {static_cast<int64_t>(random() % 4),
                                        static_cast<int64_t>(random() % 3) + 1};
    std::vector<Box> boxes;
    if (run % 2 == 0) {
      // A tiling, of which a box is sometimes missing or there twice.
      std::vector<Box> parts = {layout::whole_box(shape)};
      for (int cuts = 0; cuts < 3; ++cuts) {
        const Box cut = random_box(&random, shape);
        std::vector<Box> next;
        for (const Box& part : parts) {
          if (const auto both = intersection(part, cut)) next.push_back(*both);
          if (volume(part) == 0) continue;
          for (const Box& rest : difference(part, cut)) next.push_back(rest);
        }
        parts = std::move(next);
      }
      boxes = parts;
      std::ranges::shuffle(boxes, random);
      if (random() % 3 == 0 && !boxes.empty()) boxes.pop_back();
      if (random() % 3 == 0 && !boxes.empty()) boxes.push_back(boxes.front());
    } else {
      for (uint64_t count = random() % 4; count > 0; --count)
        boxes.push_back(random_box(&random, shape));
    }
    std::map<Index, int> times;
    for (const Box& box : boxes) {
      for (const Index& index : indices_of(box)) ++times[index];
    }
    const layout::Coverage coverage = layout::cover(shape, boxes);
    std::set<Index> gaps;
    for (const Box& gap : coverage.gaps) {
      for (const Index& index : indices_of(gap)) gaps.insert(index);
    }
    bool overlaps = false;
    for (const Index& index : indices_of(layout::whole_box(shape))) {
      EXPECT_EQ(gaps.contains(index), times[index] == 0);
      overlaps = overlaps || times[index] > 1;
    }
    EXPECT_EQ(!coverage.overlaps.empty(), overlaps);
    for (const auto& [later, first] : coverage.overlaps) {
      EXPECT_LT(first, later);
      EXPECT_TRUE(intersection(boxes[later], boxes[first]));
    }
    exact += coverage.is_exact() ? 1 : 0;
  }
  EXPECT_GT(exact, 300);
}

// The value of an element of a tensor: which tensor, and where.
uint16_t value_of(size_t tensor, const Index& index, const std::vector<int64_t>& shape) {
  int64_t flat = 0;
  for (size_t dim = 0; dim < shape.size(); ++dim) flat = flat * shape[dim] + index[dim];
  return static_cast<uint16_t>(1000 * tensor + static_cast<size_t>(flat));
}

std::vector<uint16_t> values_of(size_t tensor, const Box& box, const std::vector<int64_t>& shape) {
  std::vector<uint16_t> values;
  for (const Index& index : indices_of(box)) values.push_back(value_of(tensor, index, shape));
  return values;
}

// A random layout over a mesh of two dimensions, `ranks` in all.
Layout random_layout(std::mt19937* random, int first, int second, std::vector<int64_t> shape) {
  const auto placement = [&](int64_t later_splits) {
    if (shape.empty() || (*random)() % 4 == 0) return TensorPlacement::replicate();
    const int dim = static_cast<int>((*random)() % shape.size());
    return (*random)() % 3 == 0 ? TensorPlacement::strided_shard(dim, later_splits)
                                : TensorPlacement::shard(dim);
  };
  const MeshLayout mesh({{"a", first}, {"b", second}});
  for (;;) {
    try {
      const TensorPlacement left = placement(second);
      return Layout(mesh, {left, placement(1)}, shape);
    } catch (const std::invalid_argument&) {
      // A split factor that the mesh does not have: draw again.
    }
  }
}

// Saves tensors with random layouts, each box by the first rank that owns it, and loads them with
// others.
TEST(ReadPlanTest, AnyLayoutIsLoadedFromAnyOther) {
  std::mt19937 random(3);
  const std::vector<std::vector<int64_t>> shapes = {{7, 5}, {4, 3, 6}, {11}, {}, {0, 3}, {8, 8}};
  for (int run = 0; run < 60; ++run) {
    const int saving[] = {static_cast<int>(random() % 3) + 1, static_cast<int>(random() % 3) + 1};
    const int loading[] = {static_cast<int>(random() % 3) + 1, static_cast<int>(random() % 3) + 1};
    const auto folder = tests::scratch_folder("reshard");
    std::map<std::string, WholeTensor> tensors;
    std::vector<std::vector<uint16_t>> data;
    data.reserve(1000);
    Snapshot snapshot;
    for (size_t tensor = 0; tensor < shapes.size(); ++tensor) {
      const Layout layout = random_layout(&random, saving[0], saving[1], shapes[tensor]);
      std::set<Index> saved;
      for (int rank = 0; rank < layout.mesh().size(); ++rank) {
        for (const Box& box : layout.boxes(rank)) {
          if (!saved.insert(box.begin).second) continue;
          data.push_back(values_of(tensor, box, shapes[tensor]));
          snapshot.parts.push_back({"t" + std::to_string(tensor), DType::kU16, shapes[tensor], box,
                                    std::as_bytes(std::span(data.back())), layout.text()});
        }
      }
      if (saved.empty())  // no element: one rank says that it is there
        snapshot.parts.push_back({"t" + std::to_string(tensor),
                                  DType::kU16,
                                  shapes[tensor],
                                  layout::whole_box(shapes[tensor]),
                                  {},
                                  layout.text()});
    }
    Saver saver({folder, 0}, [](const std::string& mine) { return std::vector{mine}; });
    CheckpointReport report;
    const auto checkpoint = StoredCheckpoint::open(saver.save(snapshot), &report);
    ASSERT_TRUE(checkpoint) << report.files[0].diagnostics.kept()[0].message;

    for (int rank = 0; rank < loading[0] * loading[1]; ++rank) {
      std::vector<WantedBox> wanted;
      std::vector<std::vector<uint16_t>> expected;
      uint64_t bytes = 0;
      for (size_t tensor = 0; tensor < shapes.size(); ++tensor) {
        std::mt19937 same(static_cast<unsigned>(run) * 100 + static_cast<unsigned>(tensor));
        const Layout layout = random_layout(&same, loading[0], loading[1], shapes[tensor]);
        for (const Box& box : layout.boxes(rank)) {
          wanted.push_back({"t" + std::to_string(tensor), box});
          expected.push_back(values_of(tensor, box, shapes[tensor]));
          bytes += 2 * expected.back().size();
        }
      }
      std::vector<std::vector<uint16_t>> loaded;
      std::vector<std::span<std::byte>> buffers;
      for (const auto& values : expected) loaded.emplace_back(values.size(), uint16_t{65535});
      for (auto& values : loaded) buffers.push_back(std::as_writable_bytes(std::span(values)));
      const ReadPlan plan = plan_reads(checkpoint->tensors(), wanted);
      EXPECT_EQ(plan.bytes(), bytes);  // not one more than is needed
      read(plan, *checkpoint, buffers);
      EXPECT_EQ(loaded, expected);
    }
  }
}

// One tensor in one file, saved whole at offset 0.
std::map<std::string, WholeTensor> whole_tensor(DType dtype, const std::vector<int64_t>& shape) {
  return {{"w", {dtype, shape, {{layout::whole_box(shape), 0, 0}}}}};
}

TEST(ReadPlanTest, AdjacentBytesAreOneRun) {
  const auto runs = [](const std::vector<int64_t>& shape, const Box& box) {
    const WantedBox wanted{"w", box};
    const ReadPlan plan = plan_reads(whole_tensor(DType::kF32, shape), {&wanted, 1});
    EXPECT_EQ(plan.copies.size(), 1u);
    return std::pair(plan.copies[0].runs(), plan.copies[0].run);
  };
  using Runs = std::pair<uint64_t, uint64_t>;
  EXPECT_EQ(runs({1000, 1000}, {{0, 0}, {1000, 1000}}), Runs(1, 4'000'000));
  EXPECT_EQ(runs({1000, 1000}, {{500, 0}, {500, 1000}}), Runs(1, 2'000'000));  // rows
  EXPECT_EQ(runs({1000, 1000}, {{0, 500}, {1000, 500}}), Runs(1000, 2000));    // columns
  EXPECT_EQ(runs({10, 20, 30}, {{2, 3, 0}, {4, 5, 30}}), Runs(4, 5 * 30 * 4));
  EXPECT_EQ(runs({}, {{}, {}}), Runs(1, 4));
}

TEST(ReadPlanTest, WhatIsNotThereIsRefused) {
  const auto plan = [](DType dtype, const WantedBox& wanted) {
    plan_reads(whole_tensor(dtype, {4, 6}), {&wanted, 1});
  };
  EXPECT_NO_THROW(plan(DType::kF32, {"w", {{0, 0}, {4, 6}}}));
  EXPECT_THROW(plan(DType::kF32, {"v", {{0, 0}, {4, 6}}}), std::invalid_argument);
  EXPECT_THROW(plan(DType::kF32, {"w", {{0, 0}, {4, 7}}}), std::invalid_argument);
  EXPECT_THROW(plan(DType::kF32, {"w", {{1, 0}, {4, 6}}}), std::invalid_argument);
  EXPECT_THROW(plan(DType::kF32, {"w", {{-1, 0}, {4, 6}}}), std::invalid_argument);
  EXPECT_THROW(plan(DType::kF32, {"w", {{0}, {4}}}), std::invalid_argument);
  EXPECT_THROW(plan(DType::kF32, {"w", {{INT64_MAX, 0}, {1, 6}}}), std::invalid_argument);
  // Elements of four bits can be read whole only.
  EXPECT_NO_THROW(plan(DType::kF4, {"w", {{0, 0}, {4, 6}}}));
  EXPECT_THROW(plan(DType::kF4, {"w", {{0, 0}, {2, 6}}}), std::invalid_argument);
}

TEST(CheckTensorsTest, EverythingIsReportedAtOnce) {
  const std::map<std::string, WholeTensor> there = {{"a", {DType::kF32, {2, 3}, {}}},
                                                    {"b", {DType::kF32, {4}, {}}},
                                                    {"c", {DType::kBF16, {4}, {}}},
                                                    {"wq.weight", {DType::kF32, {4}, {}}}};
  const std::vector<TensorSpec> expected = {{"a", DType::kF32, {2, 3}},
                                            {"b", DType::kF32, {5}},
                                            {"c", DType::kF32, {4}},
                                            {"wk.weight", DType::kF32, {4}}};
  ir::Diagnostics diagnostics;
  check_tensors(there, expected, /*allow_others=*/false, &diagnostics);
  std::vector<std::string> messages;
  for (const ir::Diagnostic& error : diagnostics.kept()) messages.push_back(error.message);
  EXPECT_EQ(messages, (std::vector<std::string>{
                          "tensor `b`: expected F32[5], got F32[4]",
                          "tensor `c`: expected F32[4], got BF16[4]",
                          "expected tensor `wk.weight` of F32[4], got none",
                          "unexpected tensor `wq.weight` of F32[4]",
                      }));
  EXPECT_EQ(diagnostics.kept()[2].help, "did you mean `wq.weight`?");
  ir::Diagnostics fewer;
  check_tensors(there, expected, /*allow_others=*/true, &fewer);
  EXPECT_EQ(fewer.total(), 3u);
}

}  // namespace
}  // namespace pipewright::checkpoint
