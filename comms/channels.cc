// Creation of communicators without deadlock.
//
// Idea: a group is created by all of its members together, so ranks that create their groups in
// unrelated orders deadlock. All ranks therefore walk one order of edges, and each creates the
// edges that it is an end of. To create many at once, the order consists of rounds: each round
// takes, in ascending order, every remaining edge that shares no rank with an edge already in the
// round.
//
// Invariant: both ends of the first edge that is not yet created have created all of their earlier
// edges, so both are now creating this edge, and it makes progress. Edges of one round do not wait
// for each other.
//
// Complexity: an edge can be deferred only by edges that share an end with it, so at most 2D - 1
// rounds for D edges per rank, each linear in what remains: O(D E log P) for E edges and P ranks.
#include "pipewright/comms/channels.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "pipewright/ir/errors.h"

namespace pipewright::comms {
namespace {

int index_of(std::span<const int> ranks, int rank) {
  const auto found = std::ranges::find(ranks, rank);
  if (found == ranks.end()) {
    throw std::invalid_argument("world rank " + std::to_string(rank) +
                                " is not a rank of the pipeline");
  }
  return static_cast<int>(found - ranks.begin());
}

// What a backend is given: NCCL has no complex numbers, so they travel as pairs of real ones. On a
// device, a tensor on the same memory that the allocator does not know: PyTorch's NCCL backend
// calls recordStream() for every SEND and RECV. Then memory that is freed could not be used again
// before the channel has done all that was queued by then: with a host that runs ahead, a whole
// step.
std::vector<at::Tensor> message_of(const at::Tensor& tensor) {
  const at::Tensor real = tensor.is_complex() ? at::view_as_real(tensor) : tensor;
  if (real.is_cpu()) return {real};
  return {at::from_blob(
      real.data_ptr(), real.sizes(), real.strides(), [real](void*) {}, real.options(),
      real.device())};
}

}  // namespace

std::vector<Edge> creation_order(std::vector<Edge> edges) {
  std::ranges::sort(edges);
  // Not ranges::unique: clang-tidy 14 cannot compile it.
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  std::vector<Edge> order;
  while (!edges.empty()) {
    std::set<int> busy;
    std::vector<Edge> later;
    for (const Edge& edge : edges) {
      const bool fits = !busy.contains(edge.first) && !busy.contains(edge.second);
      (fits ? order : later).push_back(edge);
      if (fits) busy.insert({edge.first, edge.second});
    }
    edges = std::move(later);
  }
  return order;
}

Channels::Channels(World& world, const std::string& name, std::span<const int> ranks,
                   ir::ChannelModel model, std::vector<Edge> edges, at::Device device)
    : rank_(index_of(ranks, world.rank())) {
  const auto world_rank = [&](int rank) { return ranks[static_cast<size_t>(rank)]; };
  BackendPtr all;
  if (model == ir::ChannelModel::kRank && ranks.size() > 1) all = world.make_group(name, ranks);
  for (const Edge& edge : creation_order(std::move(edges))) {
    const auto [from, to] = edge;
    if (from != rank_ && to != rank_) continue;
    const int peer = from == rank_ ? to : from;
    Channel& created = channels_[edge];
    if (all) {
      created = {all, peer};
    } else if (const auto back = channels_.find({to, from});
               model == ir::ChannelModel::kPeer && back != channels_.end()) {
      created = back->second;
    } else {
      const std::vector<int> pair = {world_rank(from), world_rank(to)};
      const std::string ends = std::to_string(from) + "-" + std::to_string(to);
      created = {world.make_group(name + "." + ends, pair), from == rank_ ? 1 : 0};
    }
    const at::Tensor nothing = at::zeros({1}, at::TensorOptions(device));
    (from == rank_ ? send(nothing, to, 0) : receive(nothing, from, 0))->wait();
  }
}

Channels::~Channels() {
  // In one order on all ranks, because shutting down may wait for the other end.
  for (auto& [edge, channel] : channels_) channel.backend.reset();
}

c10::intrusive_ptr<c10d::Work> Channels::send(const at::Tensor& tensor, int to, int tag) {
  const Channel& to_peer = channel({rank_, to});
  std::vector<at::Tensor> tensors = message_of(tensor);
  return to_peer.backend->send(tensors, to_peer.peer, tag);
}

c10::intrusive_ptr<c10d::Work> Channels::receive(const at::Tensor& tensor, int from, int tag) {
  const Channel& from_peer = channel({from, rank_});
  std::vector<at::Tensor> tensors = message_of(tensor);
  return from_peer.backend->recv(tensors, from_peer.peer, tag);
}

Channels::Works Channels::send(const std::vector<Message>& messages, int to) {
  return post_all(*channel({rank_, to}).backend, messages,
                  [&](const Message& message) { return send(message.tensor, to, message.tag); });
}

Channels::Works Channels::receive(const std::vector<Message>& messages, int from) {
  return post_all(*channel({from, rank_}).backend, messages, [&](const Message& message) {
    return receive(message.tensor, from, message.tag);
  });
}

Channels::Works Channels::post_all(c10d::Backend& backend, const std::vector<Message>& messages,
                                   const Post& post) {
  const bool grouped = messages.size() > 1 && backend.supportsCoalescing();
  if (grouped) backend.startCoalescing();
  Works works;
  try {
    for (const Message& message : messages) works.push_back(post(message));
  } catch (const std::exception&) {
    // NCCL's group belongs to the thread: if it stayed open, nothing that is issued later would
    // start.
    try {
      if (grouped) backend.endCoalescing();
    } catch (const std::exception&) {  // a consequence
    }
    throw;
  }
  if (grouped) works = {backend.endCoalescing()};
  return works;
}

const Channels::Channel& Channels::channel(const Edge& edge) const {
  const auto found = channels_.find(edge);
  if (found == channels_.end()) {
    throw ContractError("no channel from rank " + std::to_string(edge.first) + " to rank " +
                        std::to_string(edge.second) + ": expected an edge of the pipeline");
  }
  return found->second;
}

}  // namespace pipewright::comms
