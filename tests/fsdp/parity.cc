#include "tests/fsdp/parity.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace pipewright::tests {
namespace {

torch::nn::Module* at_path(torch::nn::Module& module, const std::string& path) {
  torch::nn::Module* found = &module;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    found = found->named_children()[path.substr(begin, end - begin)].get();
    begin = end + 1;
  }
  return found;
}

bool close(const at::Tensor& want, const at::Tensor& got) {
  return want.sizes() == got.sizes() && at::allclose(got, want, 1e-9, 1e-11);
}

Groups numbered(const std::string& name, int count) {
  Groups groups;
  for (int i = 0; i < count; ++i) groups.push_back({name + std::to_string(i)});
  return groups;
}

}  // namespace

Groups blocks(int count) { return numbered("block", count); }
Groups mlps(int count) { return numbered("mlp", count); }

thread_local comms::Injector Sharding::injector;

Sharding::Sharding(Rank& self, torch::nn::Module& module, const Groups& groups,
                   const fsdp::Options& options)
    : world_(self.world->wrapped([log = self.log](comms::BackendPtr backend) {
        return comms::record(backend, log, injector);
      })),
      mesh_(world_, {{"dp", world_.size()}}) {
  for (const std::vector<std::string>& paths : groups) {
    std::vector<torch::nn::Module*> modules;
    for (const std::string& path : paths) modules.push_back(at_path(module, path));
    units.push_back(fsdp::fully_shard(modules, mesh_, {"dp"}, options));
  }
  units.push_back(fsdp::fully_shard(module, mesh_, {"dp"}, options));
  self.log->clear();
}

at::Tensor part_of(const at::Tensor& whole, int rank, int ranks, int64_t dim) {
  const auto chunks = whole.chunk(ranks, dim);
  if (rank < static_cast<int>(chunks.size())) return chunks[static_cast<size_t>(rank)];
  return whole.narrow(dim, 0, 0);
}

std::string shard_difference(const torch::nn::Module& plain, const torch::nn::Module& sharded,
                             const Rank& self, const Placement& placement) {
  const auto want = plain.named_parameters(), got = sharded.named_parameters();
  if (want.size() != got.size()) return "different numbers of parameters";
  for (size_t i = 0; i < want.size(); ++i) {
    const std::string& name = want[i].key();
    if (name != got[i].key()) return name + " is " + got[i].key();
    const int64_t dim = placement ? placement(want[i].value()) : 0;
    const auto part = [&](const at::Tensor& whole) {
      return part_of(whole, self.rank, self.world->size(), dim);
    };
    if (!close(part(want[i].value()), got[i].value())) return name + " differs";
    const at::Tensor &one = want[i].value().grad(), &other = got[i].value().grad();
    if (one.defined() != other.defined()) return "one gradient of " + name + " is not defined";
    if (one.defined() && !close(part(one), other)) return "the gradient of " + name + " differs";
  }
  return "";
}

void expect_equal_step(Rank& self, torch::nn::Module& plain, torch::optim::Adam& plain_optimizer,
                       torch::nn::Module& module, torch::optim::Adam& optimizer,
                       const Placement& placement) {
  average_grads(plain, *self.by_hand);
  EXPECT_EQ(shard_difference(plain, module, self, placement), "") << "after backward";
  plain_optimizer.step();
  optimizer.step();
  EXPECT_EQ(shard_difference(plain, module, self, placement), "") << "after step";
}

}  // namespace pipewright::tests
