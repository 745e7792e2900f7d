#include "pipewright/comms/channels.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <set>
#include <stdexcept>

namespace pipewright::comms {
namespace {

int index_of(std::span<const int> ranks, int rank) {
  const auto found = std::ranges::find(ranks, rank);
  if (found == ranks.end()) {
    throw std::invalid_argument("rank " + std::to_string(rank) +
                                " of the world is not in the pipeline");
  }
  return static_cast<int>(found - ranks.begin());
}

}  // namespace

std::vector<Edge> creation_order(std::vector<Edge> edges) {
  std::ranges::sort(edges);
  edges.erase(std::ranges::unique(edges).begin(), edges.end());
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
    Channel& made = channels_[edge];
    if (all) {
      made = {all, peer};
    } else if (const auto back = channels_.find({to, from});
               model == ir::ChannelModel::kPeer && back != channels_.end()) {
      made = back->second;
    } else {
      const std::vector<int> pair = {world_rank(from), world_rank(to)};
      made = {world.make_group(name, pair), from == rank_ ? 1 : 0};
    }
    const at::Tensor nothing = at::zeros({1}, at::TensorOptions(device));
    (from == rank_ ? send(nothing, to, 0) : receive(nothing, from, 0))->wait();
  }
}

c10::intrusive_ptr<c10d::Work> Channels::send(const at::Tensor& tensor, int to, int tag) {
  const Channel& to_peer = channel({rank_, to});
  std::vector<at::Tensor> tensors = {tensor};
  return to_peer.backend->send(tensors, to_peer.peer, tag);
}

c10::intrusive_ptr<c10d::Work> Channels::receive(const at::Tensor& tensor, int from, int tag) {
  const Channel& from_peer = channel({from, rank_});
  std::vector<at::Tensor> tensors = {tensor};
  return from_peer.backend->recv(tensors, from_peer.peer, tag);
}

void Channels::abort() {
  for (auto& [edge, channel] : channels_) channel.backend->abort();
  // Gloo's abort does nothing; its connections close with the last reference.
  channels_.clear();
}

const Channels::Channel& Channels::channel(const Edge& edge) const {
  const auto found = channels_.find(edge);
  if (found == channels_.end()) {
    throw std::logic_error("no channel from rank " + std::to_string(edge.first) + " to rank " +
                           std::to_string(edge.second));
  }
  return found->second;
}

}  // namespace pipewright::comms
