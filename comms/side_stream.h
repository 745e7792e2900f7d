#ifndef PIPEWRIGHT_COMMS_SIDE_STREAM_H_
#define PIPEWRIGHT_COMMS_SIDE_STREAM_H_

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <optional>

namespace pipewright::comms {

// A stream beside the current one. Backends order communication after the stream on which it is
// posted, so communication posted on a side stream does not wait for computation issued before it.
// Does nothing on devices without streams, such as the CPU.
//
//   side.wait_for_current();        // the optimizer has written the shards
//   {
//     const SideStream::Scope scope(side, device);
//     gather = group->allgather_into_tensor_coalesced(full, shards);
//   }
//   compute();                      // at the same time as the all-gather
//   gather->wait();                 // orders the current stream after it
//
// Memory that is allocated on the side stream returns to it when it is freed, and what is posted
// next may use it. So call wait_for_current() before each free of memory that the current stream
// has used. Never blocks the host. For one thread at a time.
class SideStream {
 public:
  // High priority is PyTorch's for communication: a gather is small beside the computation that
  // waits for it.
  explicit SideStream(bool is_high_priority = true) : is_high_priority_(is_high_priority) {}

  // Orders what is posted later after what the current stream has been given so far.
  void wait_for_current();
  // Orders what the current stream is given next after what has been posted here so far.
  void join_current();
  // Orders what is posted later after `event` alone.
  void wait_for(const c10::Event& event);

  // While it exists, the side stream is the thread's current one. The first one creates the stream,
  // on `device`, and calls wait_for_current().
  class Scope {
   public:
    Scope(SideStream& side, c10::Device device);

   private:
    c10::OptionalStreamGuard guard_;
  };

 private:
  const bool is_high_priority_;
  std::optional<c10::Stream> stream_;
  std::optional<c10::Event> event_;
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_SIDE_STREAM_H_
