#ifndef PIPEWRIGHT_EXECUTOR_STEP_LOCK_H_
#define PIPEWRIGHT_EXECUTOR_STEP_LOCK_H_

namespace pipewright::executor {

// The thread of a step holds this lock while it runs actions, and releases it in waits for other
// ranks. Stages, losses and DataParallels that call an interpreter pass the interpreter's global
// lock, such as Python's GIL: they need not take it per action, and the interpreter's other threads
// run during waits. A stage unlocks it around work of its own that needs no interpreter.
//
// The executor calls both methods on the thread that called step() or eval(), in turn, lock()
// first. It does not hold the lock when it creates the executor, votes, or cleans up after a
// failure.
class StepLock {
 public:
  virtual ~StepLock() = default;
  virtual void lock() = 0;
  virtual void unlock() = 0;
};

// Holds the lock as long as it lives. Null has no effect.
class StepLockHeld {
 public:
  explicit StepLockHeld(StepLock* lock) : lock_(lock) {
    if (lock_) lock_->lock();
  }
  ~StepLockHeld() {
    if (lock_) lock_->unlock();
  }
  StepLockHeld(const StepLockHeld&) = delete;
  StepLockHeld& operator=(const StepLockHeld&) = delete;

 private:
  StepLock* const lock_;
};

// The opposite: for a wait of a thread that holds the lock.
class StepLockReleased {
 public:
  explicit StepLockReleased(StepLock* lock) : lock_(lock) {
    if (lock_) lock_->unlock();
  }
  ~StepLockReleased() {
    if (lock_) lock_->lock();
  }
  StepLockReleased(const StepLockReleased&) = delete;
  StepLockReleased& operator=(const StepLockReleased&) = delete;

 private:
  StepLock* const lock_;
};

}  // namespace pipewright::executor

#endif  // PIPEWRIGHT_EXECUTOR_STEP_LOCK_H_
