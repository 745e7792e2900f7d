#include "pipewright/ir/channel.h"

#include <charconv>

namespace pipewright::ir {

std::string_view name(ChannelModel model) {
  return kChannelModels[static_cast<size_t>(model)].name;
}

std::string to_string_capacity(ChannelCapacity capacity) {
  return capacity == kUnboundedCapacity ? "inf" : std::to_string(capacity);
}

std::optional<ChannelCapacity> parse_capacity(std::string_view text) {
  if (text == "inf") return kUnboundedCapacity;
  ChannelCapacity capacity = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, capacity);
  if (error != std::errc() || stop != end || capacity == kUnboundedCapacity) return std::nullopt;
  return capacity;
}

std::string describe_channels(ChannelModel model, ChannelCapacity capacity) {
  return "channels " + std::string(name(model)) + ", capacity " + to_string_capacity(capacity);
}

uint32_t queue_index(ChannelModel model, uint32_t peer, bool is_send) {
  switch (model) {
    case ChannelModel::kRank:
      return 0;
    case ChannelModel::kPeer:
      return peer;
    case ChannelModel::kEdge:
      return 2 * peer + (is_send ? 1 : 0);
  }
  return 0;
}

uint32_t queues_per_rank(ChannelModel model, uint32_t num_ranks) {
  switch (model) {
    case ChannelModel::kRank:
      return 1;
    case ChannelModel::kPeer:
      return num_ranks;
    case ChannelModel::kEdge:
      return 2 * num_ranks;
  }
  return 0;
}

}  // namespace pipewright::ir
