// What channels ask of a backend that groups operations, as NCCL does.
#include "pipewright/comms/channels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "pipewright/comms/group.h"

namespace pipewright::comms {
namespace {

class Done final : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds) override { return true; }
};

// Its groups belong to the thread, and one that is not closed takes all that is issued later. It
// refuses tensors of 3 elements.
class Grouping final : public c10d::Backend {
 public:
  using Backend::Backend;
  const std::string getBackendName() const override { return "grouping"; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { ++open; }
  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    --open;
    return c10::make_intrusive<Done>();
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int, int) override {
    if (tensors[0].numel() == 3) throw std::runtime_error("out of buffers");
    ++sent;
    return c10::make_intrusive<Done>();
  }

  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>&, int, int) override {
    return c10::make_intrusive<Done>();
  }

  int open = 0, sent = 0;
};

// So that a user can choose the settings of one (NcclOptions::group). The sender is the first
// member.
TEST(Channels, AreNamedByTheirEnds) {
  const auto names_of = [](ir::ChannelModel model) {
    World world(0, 2, c10::make_intrusive<c10d::HashStore>(),
                [&](const std::string&, int rank, int size) {
                  return c10::make_intrusive<Grouping>(rank, size);
                });
    const std::vector<int> ranks = {0, 1};
    const Channels channels(world, "channel", ranks, model, {{0, 1}, {1, 0}}, at::kCPU);
    std::vector<std::string> names;
    for (const GroupState& state : world.groups()->states()) names.push_back(state.name);
    return names;
  };
  EXPECT_EQ(names_of(ir::ChannelModel::kEdge),
            (std::vector<std::string>{"channel.0-1[0,1]#0", "channel.1-0[1,0]#0"}));
  EXPECT_EQ(names_of(ir::ChannelModel::kPeer), std::vector<std::string>{"channel.0-1[0,1]#0"});
  EXPECT_EQ(names_of(ir::ChannelModel::kRank), std::vector<std::string>{"channel[0,1]#0"});
}

TEST(Channels, CloseTheGroupOfAPostThatThrows) {
  c10::intrusive_ptr<Grouping> made;
  World world(0, 2, c10::make_intrusive<c10d::HashStore>(),
              [&](const std::string&, int rank, int size) {
                return made = c10::make_intrusive<Grouping>(rank, size);
              });
  const std::vector<int> ranks = {0, 1};
  Channels channels(world, "edge", ranks, ir::ChannelModel::kEdge, {{0, 1}}, at::kCPU);
  const int connects = made->sent;
  try {
    channels.send({{at::ones({2}), 0}, {at::ones({3}), 1}, {at::ones({4}), 2}}, 1);
    ADD_FAILURE() << "expected an error";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "out of buffers");
  }
  EXPECT_EQ(made->sent, connects + 1);
  EXPECT_EQ(made->open, 0);
  channels.send({{at::ones({2}), 0}, {at::ones({2}), 1}}, 1);
  EXPECT_EQ(made->open, 0);
}

}  // namespace
}  // namespace pipewright::comms
