#ifndef PIPEWRIGHT_COMMS_PROCESS_ERROR_FILE_H_
#define PIPEWRIGHT_COMMS_PROCESS_ERROR_FILE_H_

#include <string>
#include <string_view>

#include "pipewright/comms/process/environment.h"

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

// Tells torchrun why this process is about to fail. A trainer calls it before it exits:
//
//   } catch (const std::exception& error) {
//     comms::write_error_file(error.what());
//     return 1;
//   }
//
// Writes the file that TORCHELASTIC_ERROR_FILE names, in the form that torchrun's agent reads
// (torch.distributed.elastic.multiprocessing.errors), which then shows the message of the process
// that failed first. Does nothing under other launchers. Failures to write are ignored, because the
// process has a failure to report already. Bytes that are not UTF-8 become U+FFFD. Any thread.
void write_error_file(std::string_view message, const Variables& variables);
void write_error_file(std::string_view message);

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_PROCESS_ERROR_FILE_H_
