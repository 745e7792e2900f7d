#ifndef PIPEWRIGHT_TESTS_CHECKPOINT_TORCH_SAVED_H_
#define PIPEWRIGHT_TESTS_CHECKPOINT_TORCH_SAVED_H_

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "pipewright/checkpoint/load.h"
#include "pipewright/checkpoint/read_plan.h"
#include "pipewright/checkpoint/save.h"
#include "pipewright/checkpoint/torch/training_state.h"
#include "pipewright/layout/boxes.h"

// Saves a TrainingState, and reads back what was saved.

namespace pipewright::checkpoint {

// The exchange of a world of one rank.
inline std::vector<std::string> alone(const std::string& mine) { return {mine}; }

inline StoredCheckpoint open(const std::filesystem::path& path) {
  return open_on_all(path, /*rank=*/0, alone);
}

// Each tensor of a checkpoint, whole.
inline std::map<std::string, std::vector<std::byte>> contents(const std::filesystem::path& path) {
  const StoredCheckpoint checkpoint = open(path);
  std::map<std::string, std::vector<std::byte>> result;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    std::vector<std::byte>& data = result[name];
    data.resize(*bytes_of(tensor.dtype, tensor.shape));
    const WantedBox wanted{name, layout::whole_box(tensor.shape)};
    const std::span<std::byte> buffer = data;
    read(plan_reads(checkpoint.tensors(), {&wanted, 1}), checkpoint, {&buffer, 1});
  }
  return result;
}

inline std::filesystem::path save(const TrainingState& state, const std::filesystem::path& folder,
                                  int rank, const Exchange& exchange) {
  StateSnapshot taken = state.snapshot();
  taken.snapshot.step = 7;
  Saver saver({.folder = folder, .rank = rank}, exchange);
  return saver.save(taken.snapshot);
}

inline void expect_bytes(const std::vector<std::byte>& bytes, const at::Tensor& tensor,
                         const std::string& name) {
  ASSERT_EQ(bytes.size(), tensor.nbytes()) << name;
  EXPECT_EQ(std::memcmp(bytes.data(), tensor.contiguous().const_data_ptr(), bytes.size()), 0)
      << name;
}

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_TESTS_CHECKPOINT_TORCH_SAVED_H_
