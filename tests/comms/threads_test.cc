// Ranks as threads: collectives, transfers and errors; meshes and channels over them; the calls
// that a recording backend records, delays, holds and fails.
#include "pipewright/comms/threads/threads.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <barrier>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "pipewright/comms/channels.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/comms/nccl/nccl_settings.h"
#include "pipewright/comms/threads/thread_backend.h"
#include "pipewright/ir/errors.h"
#include "tests/support/ranks/ranks.h"
#include "tests/support/recording/recording_backend.h"

namespace pipewright::comms {
namespace {

using Tensors = std::vector<at::Tensor>;
using tests::errors_of_ranks;
using tests::run_ranks;

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  return ranks;
}

// Runs `body` on each rank with a group of all ranks.
std::string with_group(int size, const std::function<void(c10d::Backend&, int)>& body,
                       const ThreadOptions& options = {}) {
  std::vector<World> worlds = thread_worlds(size, options);
  return run_ranks(size, [&](int rank) {
    const BackendPtr group = worlds[static_cast<size_t>(rank)].make_group("all", all_ranks(size));
    body(*group, rank);
  });
}

at::Tensor row(int rank, int64_t size = 4) { return at::arange(size) + 10 * rank; }

// Every rank of a mesh has such groups along dimensions of size 1.
TEST(LocalGroups, NeedNoConnection) {
  std::vector<std::string> connected;
  const MakeBackend connect = [&](const std::string& name, int, int) {
    connected.push_back(name);
    return BackendPtr();
  };
  const MakeBackend make = with_local_groups(connect, 2, std::chrono::minutes(1));
  const BackendPtr alone = make("mesh.tp[1]#0", 0, 1);
  ASSERT_TRUE(alone);
  make("mesh.pp[0,1]#0", 1, 2);
  with_local_groups(connect, 1, std::chrono::minutes(1))("world", 0, 1);
  EXPECT_EQ(connected, (std::vector<std::string>{"mesh.pp[0,1]#0", "world"}));

  c10d::AllreduceOptions average;
  average.reduceOp = c10d::ReduceOp::AVG;
  Tensors mean = {row(7).to(at::kDouble)};
  alone->allreduce(mean, average)->wait();
  at::Tensor input = row(7), gathered = at::zeros(4, at::kLong), reduced = at::zeros(4, at::kLong);
  alone->_allgather_base(gathered, input)->wait();
  alone->_reduce_scatter_base(reduced, input)->wait();
  Tensors sent = {row(7)};
  alone->broadcast(sent)->wait();
  alone->barrier()->wait();
  for (const at::Tensor& result : {mean[0].to(at::kLong), gathered, reduced, sent[0]})
    EXPECT_TRUE(at::equal(result, row(7))) << result;
}

TEST(Threads, Collectives) {
  EXPECT_EQ(
      with_group(3,
                 [](c10d::Backend& group, int rank) {
                   Tensors sum = {row(rank)};
                   group.allreduce(sum)->wait();
                   EXPECT_TRUE(at::equal(sum[0], at::arange(4) * 3 + 30));

                   c10d::AllreduceOptions average;
                   average.reduceOp = c10d::ReduceOp::AVG;
                   Tensors mean = {row(rank).to(at::kDouble)};
                   group.allreduce(mean, average)->wait();
                   EXPECT_TRUE(at::equal(mean[0], at::arange(4).to(at::kDouble) + 10));

                   c10d::AllreduceOptions most;
                   most.reduceOp = c10d::ReduceOp::MAX;
                   Tensors largest = {row(rank)};
                   group.allreduce(largest, most)->wait();
                   EXPECT_TRUE(at::equal(largest[0], row(2)));

                   c10d::BroadcastOptions from_one;
                   from_one.rootRank = 1;
                   Tensors copy = {row(rank)};
                   group.broadcast(copy, from_one)->wait();
                   EXPECT_TRUE(at::equal(copy[0], row(1)));

                   at::Tensor mine = row(rank, 2), all = at::empty({6}, at::kLong);
                   group._allgather_base(all, mine)->wait();
                   EXPECT_TRUE(at::equal(all, at::cat({row(0, 2), row(1, 2), row(2, 2)})));

                   std::vector<Tensors> lists = {{at::empty({2}, at::kLong),
                                                  at::empty({2}, at::kLong),
                                                  at::empty({2}, at::kLong)}};
                   Tensors part = {row(rank, 2)};
                   group.allgather(lists, part)->wait();
                   for (int from = 0; from < 3; ++from)
                     EXPECT_TRUE(at::equal(lists[0][static_cast<size_t>(from)], row(from, 2)));

                   at::Tensor whole = row(rank, 6), share = at::empty({2}, at::kLong);
                   group._reduce_scatter_base(share, whole)->wait();
                   EXPECT_TRUE(at::equal(share, at::arange(6).narrow(0, 2 * rank, 2) * 3 + 30));
                   EXPECT_TRUE(at::equal(whole, row(rank, 6)));

                   group.barrier()->wait();
                 }),
      "");
}

TEST(Threads, TransfersOfSeveralCapacities) {
  for (const ir::ChannelCapacity capacity : {0u, 1u, ir::kUnboundedCapacity}) {
    EXPECT_EQ(with_group(2,
                         [](c10d::Backend& group, int rank) {
                           for (int i = 0; i < 20; ++i) {
                             if (rank == 0) {
                               Tensors sent = {at::full({2, 3}, i)};
                               group.send(sent, 1, i)->wait();
                             } else {
                               Tensors got = {at::empty({2, 3}, at::kLong)};
                               group.recv(got, 0, i)->wait();
                               EXPECT_TRUE(at::equal(got[0], at::full({2, 3}, i)));
                             }
                           }
                         },
                         {.capacity = capacity}),
              "");
  }
}

std::string error_of_rank0(const std::function<void(c10d::Backend&, int)>& body,
                           std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  std::vector<World> worlds = thread_worlds(2, {.timeout = timeout});
  return errors_of_ranks(2, [&](int rank) {
    const BackendPtr group = worlds[static_cast<size_t>(rank)].make_group("all", all_ranks(2));
    body(*group, rank);
  })[0];
}

TEST(Threads, ErrorsNameRankAndOperation) {
  const std::string size = error_of_rank0([](c10d::Backend& group, int rank) {
    Tensors tensors = {at::zeros({rank == 0 ? 3 : 4})};
    (rank == 0 ? group.send(tensors, 1, 5) : group.recv(tensors, 0, 5))->wait();
  });
  EXPECT_NE(
      size.find("rank 1: RECV from rank 0, tag 5, 4 x Float does not match rank 0: SEND to rank 1, "
                "tag 5, 3 x Float"),
      std::string::npos)
      << size;
  const std::string tag = error_of_rank0([](c10d::Backend& group, int rank) {
    Tensors tensors = {at::zeros({3})};
    (rank == 0 ? group.send(tensors, 1, 5) : group.recv(tensors, 0, 6))->wait();
  });
  EXPECT_NE(tag.find("tag 6"), std::string::npos) << tag;
  const std::string late = error_of_rank0(
      [](c10d::Backend& group, int rank) {
        Tensors tensors = {at::zeros({3})};
        if (rank == 0) group.send(tensors, 1, 5)->wait();
      },
      std::chrono::milliseconds(30));
  EXPECT_NE(late.find("rank 0: SEND to rank 1, tag 5, 3 x Float timed out after 30 ms"),
            std::string::npos)
      << late;
  const std::string gone = error_of_rank0([](c10d::Backend& group, int rank) {
    Tensors tensors = {at::zeros({3})};
    if (rank == 0) group.recv(tensors, 1, 5)->wait();
    group.abort();
  });
  EXPECT_NE(gone.find("rank 1 aborted the group"), std::string::npos) << gone;
  const std::string other = error_of_rank0([](c10d::Backend& group, int rank) {
    Tensors tensors = {at::zeros({3})};
    (rank == 0 ? group.allreduce(tensors) : group.broadcast(tensors))->wait();
  });
  EXPECT_NE(other.find("ALLREDUCE, 3 x Float does not match rank 1: BROADCAST"), std::string::npos)
      << other;
}

TEST(Threads, InvalidArguments) {
  const std::string errors = with_group(2, [](c10d::Backend& group, int) {
    Tensors two = {at::zeros({2}), at::zeros({2})}, strided = {at::zeros({2, 3}).t()};
    Tensors one = {at::zeros({2})}, marked = {at::zeros({2}, at::kComplexFloat).conj()};
    std::vector<Tensors> too_few = {{at::zeros({2})}};
    EXPECT_THROW(group.send(two, 1, 0), std::invalid_argument);
    EXPECT_THROW(group.send(one, 2, 0), std::invalid_argument);
    EXPECT_THROW(group.send(marked, 1, 0), std::invalid_argument);
    EXPECT_THROW(group.recv(one, -1, 0), std::invalid_argument);
    EXPECT_THROW(group.allreduce(strided), std::invalid_argument);
    EXPECT_THROW(group.allgather(too_few, one), std::invalid_argument);
  });
  EXPECT_EQ(errors, "");
}

TEST(World, GroupsOfTheSameNameAreDistinct) {
  std::vector<World> worlds = thread_worlds(3);
  EXPECT_EQ(run_ranks(3,
                      [&](int rank) {
                        World& world = worlds[static_cast<size_t>(rank)];
                        for (int i = 0; i < 2; ++i) {
                          if (rank == 1) continue;
                          const BackendPtr ends = world.make_group("ends", std::vector{0, 2});
                          EXPECT_EQ(ends->getRank(), rank / 2);
                          EXPECT_EQ(ends->getSize(), 2);
                          Tensors sum = {at::full({1}, rank)};
                          ends->allreduce(sum)->wait();
                          EXPECT_EQ(sum[0].item<int64_t>(), 2);
                        }
                      }),
            "");
  EXPECT_THROW(worlds[0].make_group("x", std::vector{1, 2}), std::invalid_argument);
  EXPECT_THROW(worlds[0].make_group("x", std::vector{0, 0}), std::invalid_argument);
  EXPECT_THROW(worlds[0].make_group("x", std::vector{0, 3}), std::invalid_argument);
}

TEST(Mesh, GroupsAlongDimensions) {
  std::vector<World> worlds = thread_worlds(6);
  EXPECT_EQ(run_ranks(6,
                      [&](int rank) {
                        Mesh mesh(worlds[static_cast<size_t>(rank)], {{"pp", 2}, {"dp", 3}});
                        const auto sum_along = [&](const std::vector<std::string>& dims) {
                          Tensors sum = {at::full({1}, rank)};
                          mesh.group(dims)->allreduce(sum)->wait();
                          return sum[0].item<int64_t>();
                        };
                        EXPECT_EQ(sum_along({"dp"}), rank < 3 ? 0 + 1 + 2 : 3 + 4 + 5);
                        EXPECT_EQ(sum_along({"pp"}), 2 * (rank % 3) + 3);
                        EXPECT_EQ(sum_along({"pp", "dp"}), 15);
                        EXPECT_EQ(mesh.group({"dp"}), mesh.group({"dp"}));
                      }),
            "");
  EXPECT_THROW(Mesh(worlds[0], {{"pp", 4}}), std::invalid_argument);
}

TEST(Channels, NoRankAppearsTwiceInARound) {
  // PyTorch's example: a ring of 4 ranks.
  const std::vector<Edge> order =
      creation_order({{0, 1}, {1, 2}, {2, 3}, {3, 0}, {1, 0}, {2, 1}, {3, 2}, {0, 3}, {0, 1}});
  EXPECT_EQ(order.size(), 8u);
  EXPECT_EQ(order[0], Edge(0, 1));
  EXPECT_EQ(order[1], Edge(2, 3));
}

class ChannelsOf : public testing::TestWithParam<ir::ChannelModel> {};

// A ring and a pair with both directions, created and used in an order that rendezvous allows.
TEST_P(ChannelsOf, CarryMessages) {
  const std::vector<Edge> edges = {{0, 1}, {1, 2}, {2, 3}, {3, 0}, {1, 0}};
  const std::vector<int> ranks = {3, 1, 0, 2};  // world rank of each program rank
  std::barrier all_done(4);
  std::vector<World> worlds = thread_worlds(4);
  EXPECT_EQ(run_ranks(4,
                      [&](int world_rank) {
                        World& world = worlds[static_cast<size_t>(world_rank)];
                        const int rank =
                            static_cast<int>(std::ranges::find(ranks, world_rank) - ranks.begin());
                        Channels channels(world, "ring", ranks, GetParam(), edges, at::kCPU);
                        for (const auto& [from, to] : edges) {
                          const int tag = 4 * from + to;
                          if (rank == from)
                            channels.send(at::full({2}, tag), to, tag)->wait();
                          else if (rank == to) {
                            const at::Tensor got = at::empty({2}, at::kLong);
                            channels.receive(got, from, tag)->wait();
                            EXPECT_TRUE(at::equal(got, at::full({2}, tag)));
                          }
                        }
                        all_done.arrive_and_wait();
                        EXPECT_THROW(channels.send(at::zeros({1}), (rank + 2) % 4, 0),
                                     ContractError);
                      }),
            "");
}

INSTANTIATE_TEST_SUITE_P(Models, ChannelsOf,
                         testing::Values(ir::ChannelModel::kRank, ir::ChannelModel::kPeer,
                                         ir::ChannelModel::kEdge),
                         [](const auto& of) { return std::string(ir::name(of.param)); });

TEST(Recording, CountsCalls) {
  const auto log = std::make_shared<CallLog>();
  EXPECT_EQ(
      with_group(2,
                 [&](c10d::Backend& inner, int rank) {
                   const BackendPtr group = record(BackendPtr::reclaim_copy(&inner), log);
                   Tensors message = {at::zeros({3})};
                   (rank == 0 ? group->send(message, 1, 9) : group->recv(message, 0, 9))->wait();
                   group->allreduce(message)->wait();
                   group->allreduce(message)->wait();
                 }),
      "");
  EXPECT_EQ(log->count("send"), 1);
  EXPECT_EQ(log->bytes("send"), 12);
  EXPECT_EQ(log->count("allreduce"), 4);
  EXPECT_EQ(log->count("broadcast"), 0);
  for (const CallRecord& call : log->calls()) {
    if (call.op != "recv") continue;
    EXPECT_EQ(call.rank, 1);
    EXPECT_EQ(call.peer, 0);
    EXPECT_EQ(call.tag, 9);
  }
}

TEST(Recording, DelaysHoldsAndFailsCalls) {
  std::vector<World> worlds = thread_worlds(2);
  const auto log = std::make_shared<CallLog>();
  const std::vector<std::string> errors = errors_of_ranks(2, [&](int rank) {
    World world = worlds[static_cast<size_t>(rank)].wrapped([&](const BackendPtr& inner) {
      return record(inner, log, [](const CallRecord& call) {
        Fault fault;
        fault.hold = call.op == "allreduce" && call.number == 1;
        fault.fail_work = call.op == "allreduce" && call.number == 3 && call.rank == 1;
        fault.refuse = call.op == "barrier" && call.rank == 0;
        if (call.op == "allreduce") fault.work_delay = std::chrono::milliseconds(5);
        return fault;
      });
    });
    const BackendPtr group = world.make_group("all", all_ranks(2));
    // The first call is forwarded after the second one on both ranks, so their order is swapped.
    Tensors first = {at::full({1}, 1)}, second = {at::full({2}, 10)}, third = {at::full({1}, 5)};
    const auto held = group->allreduce(first);
    group->allreduce(second)->wait();
    held->wait();
    EXPECT_EQ(first[0].item<int64_t>(), 2);
    EXPECT_EQ(second[0][1].item<int64_t>(), 20);
    group->allreduce(third)->wait();
    group->barrier()->wait();
  });
  EXPECT_EQ(errors[0], "injected failure of rank 0, barrier 1");
  EXPECT_EQ(errors[1], "injected failure of rank 1, allreduce 3");
}

// Backends learn the world ranks of a group's members from its name.
TEST(World, NamesGroupsByTheirMembers) {
  std::vector<std::string> names;
  World world(4, 6, c10::make_intrusive<c10d::HashStore>(),
              [&names](const std::string& name, int, int) {
                names.push_back(name);
                return BackendPtr();
              });
  world.make_group("mesh.dp", std::vector{0, 4, 2});
  world.make_group("odd]name[7", std::vector{4});
  EXPECT_EQ(names[0], "mesh.dp[0,4,2]#0");
  EXPECT_EQ(members_of(names[0]), (std::vector{0, 4, 2}));
  EXPECT_EQ(members_of(names[1]), std::vector{4});
}

}  // namespace
}  // namespace pipewright::comms
