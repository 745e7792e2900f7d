#ifndef PIPEWRIGHT_EXECUTOR_STEP_LOCK_H_
#define PIPEWRIGHT_EXECUTOR_STEP_LOCK_H_

namespace pipewright::executor {

// An interpreter's global lock, such as Python's GIL, which stages and losses that call the
// interpreter pass to the executor. The executor takes it before each F, for the stage's forward
// and the loss, and releases it where the step waits for another rank, and at the end of the step.
//
// It stays taken after a forward: while another thread of the interpreter never rests, each lock()
// waits for a time slice of that thread (5 ms in Python), so a step that takes the lock once per
// forward ends soonest. Nor does the executor take it for a backward: a stage whose backward runs
// long without the interpreter, or may not run under the lock, calls unlock() there. The waits of a
// DataParallel keep the lock as it is.
//
// All calls are made on the thread that called step() or eval(). The lock is not taken when the
// executor is created, votes, or cleans up after a failure.
class StepLock {
 public:
  virtual ~StepLock() = default;
  // Without effect if the thread of the step has the lock.
  virtual void lock() = 0;
  // Without effect if it has not.
  virtual void unlock() = 0;
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_STEP_LOCK_H_
