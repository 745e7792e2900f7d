#ifndef PIPEWRIGHT_COMMS_PROCESS_DUMP_SIGNAL_H_
#define PIPEWRIGHT_COMMS_PROCESS_DUMP_SIGNAL_H_

namespace pipewright::comms {

// Makes a signal, by custom SIGUSR2, ask every rank of this process where it is: the watcher's
// thread answers within a tick (StepObserver::dump in failure_domain.h), and the ranks go on.
//
//   comms::dump_on_signal(SIGUSR2);  // then: kill -USR2 PID
//
// Throws std::runtime_error if the signal cannot be handled. Any thread.
void dump_on_signal(int signal);

// How often such a signal has arrived.
int dumps_requested();

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_PROCESS_DUMP_SIGNAL_H_
