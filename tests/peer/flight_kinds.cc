// Calls every collective of c10d on two ranks, and writes what each has called as a flight
// recorder's dump: flight_kinds FOLDER writes FOLDER/rank_0 and FOLDER/rank_1.
#include <ATen/ATen.h>

#include <cstdio>
#include <fstream>
#include <thread>

#include "pipewright/comms/group.h"
#include "pipewright/comms/threads/threads.h"
#include "pipewright/executor/hang/flight_dump.h"

namespace pipewright::executor {
namespace {

using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;

// Ranks as threads support a few of them; the others count as called too.
template <typename Call>
void call(const Call& one) {
  try {
    one();
  } catch (const std::exception&) {
  }
}

void call_all(c10d::Backend& group) {
  const at::Tensor small = at::ones({2, 3}), large = at::ones({4, 3});
  Tensors a = {small.clone()}, b = {small.clone()}, whole = {large.clone()};
  Tensors each = {small.clone(), small.clone()}, other = {small.clone(), small.clone()};
  Lists lists = {each};
  at::Tensor part = small.clone(), all = large.clone(), from = large.clone();
  std::vector<int64_t> sizes = {2, 2};
  call([&] { group.broadcast(a); });
  call([&] { group.allreduce(a); });
  call([&] { group.allreduce_sparse(a); });
  call([&] { group.allreduce_coalesced(a); });
  call([&] { group.reduce(a); });
  call([&] { group.allgather(lists, b); });
  call([&] { group._allgather_base(all, part); });
  call([&] { group.allgather_coalesced(lists, b); });
  call([&] { group.allgather_into_tensor_coalesced(whole, b); });
  call([&] { group.gather(lists, b); });
  call([&] { group.scatter(a, lists); });
  call([&] { group.reduce_scatter(a, lists); });
  call([&] { group._reduce_scatter_base(part, all); });
  call([&] { group.reduce_scatter_tensor_coalesced(a, whole); });
  call([&] { group.alltoall(each, other); });
  call([&] { group.alltoall_base(all, from, sizes, sizes); });
  call([&] { group.barrier(); });
}

void write(const comms::GroupState& state, const std::string& path) {
  FlightDump dump;
  dump.groups.push_back({state.name, "collectives", state.members});
  for (const comms::Collective& one : state.last) {
    dump.entries.push_back(to_flight_entry(one, state));
    std::printf("%s\n", one.op.c_str());
  }
  std::ofstream(path, std::ios::binary) << to_pickle(dump);
}

int run(const std::string& folder) {
  std::vector<comms::World> worlds = comms::thread_worlds(2);
  std::vector<comms::BackendPtr> groups(2);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const int all[] = {0, 1};
      groups[rank] = worlds[rank].make_group("all", all);
      call_all(*groups[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t rank = 0; rank < 2; ++rank) {
    for (const comms::GroupState& state : worlds[rank].groups()->states())
      write(state, folder + "/rank_" + std::to_string(rank));
  }
  return 0;
}

}  // namespace
}  // namespace pipewright::executor

int main(int argc, char** argv) { return argc == 2 ? pipewright::executor::run(argv[1]) : 2; }
