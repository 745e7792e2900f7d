#ifndef PIPEWRIGHT_COMMS_CHANNELS_H_
#define PIPEWRIGHT_COMMS_CHANNELS_H_

#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/comms/world.h"
#include "pipewright/ir/channel.h"

// The communicators that carry the SENDs and RECVs of a pipeline. The channel model (ir/channel.h)
// says how many there are:
//
//   rank   one for all ranks of the pipeline
//   peer   one per pair of ranks that communicate
//   edge   one per ordered pair of ranks, like PyTorch's directed pairwise groups (pytorch#196666)
//
// A communicator serves each rank's operations in posting order, as NCCL's stream does, so the
// operations that share a queue in the model share one here. Ranks are those of the program.

namespace pipewright::comms {

using Edge = std::pair<int, int>;  // from, to

// The order in which ranks create the communicators of `edges`. It consists of rounds in which no
// rank appears twice. If every rank creates its own edges in this order, creation cannot deadlock,
// and the edges of a round are created concurrently. A pure function; duplicates are dropped.
std::vector<Edge> creation_order(std::vector<Edge> edges);

// The channels of one rank. For one thread at a time.
class Channels {
 public:
  // `ranks` maps each rank of the program to its rank in the world; `edges` lists all pairs of
  // program ranks between which the program sends. The group of the channel from rank 0 to rank 1
  // is called `name`.0-1, for PEER that of both directions, for RANK there is one, `name`.
  // Collective over the pipeline's ranks, which must all pass the same arguments, and blocking:
  // sends one message along each edge to connect it, because the first message of a communicator
  // can be slow. Throws std::invalid_argument if this world's rank is not in `ranks`.
  Channels(World& world, const std::string& name, std::span<const int> ranks,
           ir::ChannelModel model, std::vector<Edge> edges, at::Device device);
  // Shuts the communicators down, or drops aborted ones after a failure.
  ~Channels();

  Channels(const Channels&) = delete;
  Channels& operator=(const Channels&) = delete;

  // Post a transfer of one contiguous tensor, whose memory is what it says (no lazy conjugate), and
  // return without waiting. `tag` is ignored by backends without tags (NCCL). On a device, keep the
  // tensor until the stream on which it was allocated has waited for the transfer: its allocator is
  // not told that another stream uses it. Throw ContractError if the edge is not among those of the
  // constructor, or after abort().
  c10::intrusive_ptr<c10d::Work> send(const at::Tensor& tensor, int to, int tag);
  c10::intrusive_ptr<c10d::Work> receive(const at::Tensor& tensor, int from, int tag);

  // The same for several tensors: one operation where the backend can group them (NCCL: one kernel
  // for all), otherwise one per tensor. Both ends must pass equally many.
  struct Message {
    at::Tensor tensor;
    int tag;
  };
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;
  Works send(const std::vector<Message>& messages, int to);
  Works receive(const std::vector<Message>& messages, int from);

 private:
  struct Channel {
    BackendPtr backend;
    int peer;  // its rank in the backend
  };
  const Channel& channel(const Edge& edge) const;
  using Post = std::function<c10::intrusive_ptr<c10d::Work>(const Message&)>;
  static Works post_all(c10d::Backend& backend, const std::vector<Message>& messages,
                        const Post& post);

  const int rank_;                    // of the program
  std::map<Edge, Channel> channels_;  // the edges of this rank, both directions
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_CHANNELS_H_
