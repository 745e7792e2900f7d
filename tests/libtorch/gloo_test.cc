// Four ranks over Gloo on loopback, from C++ alone. Gloo is in the wheel's libtorch_cpu.so, and
// what its headers declare in third_party/gloo.
#define USE_C10D_GLOO 1
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

TEST(Gloo, ReduceScatterOfFourRanks) {
  constexpr int kWorld = 4;
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  auto server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kWorld; ++rank) {
    ranks.emplace_back([&, rank] {
      c10d::TCPStoreOptions client;
      client.port = server->getPort();
      auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", client);
      auto gloo = c10d::ProcessGroupGloo::Options::create();
      gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
      auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, kWorld, gloo);
      at::Tensor in = at::ones({8}) * (rank + 1), out = at::empty({2});
      group->_reduce_scatter_base(out, in)->wait();
      EXPECT_FLOAT_EQ(out.sum().item<float>(), 2 * (1 + 2 + 3 + 4));
    });
  }
  for (auto& rank : ranks) rank.join();
}
