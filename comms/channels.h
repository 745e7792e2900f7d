#ifndef PIPEWRIGHT_COMMS_CHANNELS_H_
#define PIPEWRIGHT_COMMS_CHANNELS_H_

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/comms/world.h"
#include "pipewright/ir/channel.h"

// The communicators that SENDs and RECVs of a pipeline go through, as its channel model says:
//
//   rank   one of all ranks of the pipeline
//   peer   one for each two ranks that talk
//   edge   one for each ordered pair of ranks
//
// A communicator serves the operations of a rank in the order of posting, as NCCL's stream does, so
// what shares a queue in the model shares it here. Ranks are those of the program.

namespace pipewright::comms {

using Edge = std::pair<int, int>;  // from, to

// The order in which the edges' communicators are made: rounds in which no rank stands twice, one
// after another. Every rank walks it and makes those that it is an end of; the first that is not
// made has both ends at it, so that nothing waits for ever, and those of a round are made at once.
// Pure; tested alone.
std::vector<Edge> creation_order(std::vector<Edge> edges);

// Of one rank, one thread at a time.
class Channels {
 public:
  // Collective over the pipeline's ranks, which all give the same. `ranks` holds the world's rank
  // of each rank of the program; `edges` all that it sends along. Each is used once, to connect it:
  // the first message of a communicator can be slow.
  Channels(World& world, const std::string& name, std::span<const int> ranks,
           ir::ChannelModel model, std::vector<Edge> edges, at::Device device);

  Channels(const Channels&) = delete;
  Channels& operator=(const Channels&) = delete;

  // Posts, and does not wait. One contiguous tensor; `tag` is for backends that have tags.
  c10::intrusive_ptr<c10d::Work> send(const at::Tensor& tensor, int to, int tag);
  c10::intrusive_ptr<c10d::Work> receive(const at::Tensor& tensor, int from, int tag);

  // Ends what is pending, here and, where the backend has a connection, at the peers. Nothing can
  // be sent any more.
  void abort();

 private:
  struct Channel {
    BackendPtr backend;
    int peer;  // its index in the backend
  };
  const Channel& channel(const Edge& edge) const;

  const int rank_;                    // of the program
  std::map<Edge, Channel> channels_;  // those of this rank, in both directions
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_CHANNELS_H_
