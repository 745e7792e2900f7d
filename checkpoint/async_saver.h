#ifndef PIPEWRIGHT_CHECKPOINT_ASYNC_SAVER_H_
#define PIPEWRIGHT_CHECKPOINT_ASYNC_SAVER_H_

#include <filesystem>
#include <future>
#include <memory>

#include "pipewright/checkpoint/save.h"

namespace pipewright::checkpoint {

// Saves beside training: a thread of its own writes the checkpoint while the caller goes on.
//
//   AsyncSaver saver({.folder = "ckpt", .rank = rank}, exchange);
//   saver.start(snapshot);  // returns once the save before has ended
//   ...
//   saver.wait();  // after the last step
//
// One save is under way at a time, so it never takes the memory of more than one snapshot. The
// checkpoint before stays the latest until the new one is whole and durable, as with Saver.
//
// One per rank. Its functions are collective, and for one thread. `exchange` is called by the
// other thread: it must not be used for anything else.
class AsyncSaver {
 public:
  // As Saver's.
  AsyncSaver(SaverOptions options, Exchange exchange);

  // Waits for the save under way, if there is one, however long it takes.
  ~AsyncSaver() = default;

  // Starts to save. Waits for the save under way first, and throws its error, on all ranks: then
  // this save was not started, and may be started again. The memory of the snapshot's parts must
  // not change until wait() returns; the snapshot is released when it is saved.
  void start(std::shared_ptr<const Snapshot> snapshot);

  // Waits for the save under way. Returns the folder of its checkpoint, or an empty path if no save
  // is under way. Throws as Saver::save().
  std::filesystem::path wait();

 private:
  Saver saver_;
  std::future<std::filesystem::path> saving_;  // waits in its destructor
};

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_ASYNC_SAVER_H_
