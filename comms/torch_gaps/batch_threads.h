#ifndef PIPEWRIGHT_COMMS_TORCH_GAPS_BATCH_THREADS_H_
#define PIPEWRIGHT_COMMS_TORCH_GAPS_BATCH_THREADS_H_

#include <sched.h>

namespace pipewright::comms {

// Threads that the calling thread starts while this lives are batch threads of Linux's scheduler:
// when one wakes up, it does not take the processor from a thread that runs. Their priority is that
// of other threads. Does nothing if the calling thread has another policy than the default.
//
// This is for the thread of a Gloo device. Gloo writes to a connection under a lock, and the write
// wakes the thread of the device at the other end. If that takes the processor of the writer, the
// lock stays taken, and while it is, the writer's own device asks in a loop whether it can read: it
// may use all of the other processor until its time slice ends.
class BatchThreads {
 public:
  BatchThreads() : is_default_(::sched_getscheduler(0) == SCHED_OTHER) { set(SCHED_BATCH); }
  ~BatchThreads() { set(SCHED_OTHER); }
  BatchThreads(const BatchThreads&) = delete;
  BatchThreads& operator=(const BatchThreads&) = delete;

 private:
  // Where a container forbids it, threads stay as they are.
  void set(int policy) const {
    const sched_param no_priority{};
    if (is_default_) ::sched_setscheduler(0, policy, &no_priority);
  }

  const bool is_default_;
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_TORCH_GAPS_BATCH_THREADS_H_
