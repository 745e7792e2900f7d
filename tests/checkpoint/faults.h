#ifndef PIPEWRIGHT_TESTS_CHECKPOINT_FAULTS_H_
#define PIPEWRIGHT_TESTS_CHECKPOINT_FAULTS_H_

// Crashes and errors at any system call that changes a file. A test that links faults.cc gets its
// own write, fsync, rename, mkdir, ... instead of the C library's, and each call of them is a step.
//
//   if (fork() == 0) {
//     tests::set_fault({.at_step = 7, .kind = tests::Fault::kPowerLoss});
//     save();       // ends in the middle, with exit code kCrashed
//     _exit(0);     // took fewer than 7 steps
//   }
//
// Not thread-safe.

namespace pipewright::tests {

struct Fault {
  enum Kind {
    kKill,       // the process ends before the step
    kPowerLoss,  // the machine does: data and names that were not synced are lost
    kError,      // the step does nothing and fails with `error`
  };
  int at_step = 0;  // from 1; 0: never
  Kind kind = kKill;
  int error = 0;  // of errno
};

inline constexpr int kCrashed = 77;  // exit code

// Starts to count steps.
void set_fault(const Fault& fault);
int steps_taken();

}  // namespace pipewright::tests

#endif  // PIPEWRIGHT_TESTS_CHECKPOINT_FAULTS_H_
