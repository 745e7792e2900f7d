#ifndef PIPEWRIGHT_EXAMPLES_EVENT_FILE_H_
#define PIPEWRIGHT_EXAMPLES_EVENT_FILE_H_

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace pipewright::examples {

struct Scalar {
  std::string tag;   // the name of the chart
  double value = 0;  // written in single precision
};

// An event file of TensorBoard: `tensorboard --logdir FOLDER` draws its scalars. The format is
// TensorFlow's: records (tensorflow/core/lib/io/record_writer.h) that each hold an Event message
// of Protocol Buffers (tensorflow/core/util/event.proto). For one thread. Times are in seconds
// since 1970. Each function throws std::runtime_error if the file cannot be written.
class EventFile {
 public:
  // Creates a new file in `folder`, and the folder if there is none. What earlier files in the
  // folder have of `first_step` and later is no longer drawn: a run that went on from there
  // replaces it.
  EventFile(const std::filesystem::path& folder, int64_t first_step, double time);

  // What is written is in the file when the call returns.
  void write(int64_t step, double time, const std::vector<Scalar>& scalars);

 private:
  void write_record(const std::string& event);

  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_EVENT_FILE_H_
