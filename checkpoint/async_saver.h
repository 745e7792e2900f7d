#ifndef PIPEWRIGHT_CHECKPOINT_ASYNC_SAVER_H_
#define PIPEWRIGHT_CHECKPOINT_ASYNC_SAVER_H_

#include <filesystem>
#include <functional>
#include <future>
#include <memory>

#include "pipewright/checkpoint/save.h"

namespace pipewright::checkpoint {

// Saves beside training: a thread of its own writes the checkpoint while the caller goes on.
//
//   AsyncSaver saver({.folder = "ckpt", .rank = rank}, exchange);
//   saver.start(snapshot, copy);  // returns once the save before has ended
//   ...                           // forward and backward of the next step
//   saver.wait_copied();          // before its update
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
  //
  // With `copy`, the saving thread calls that first, to copy into this memory what is saved: call
  // wait_copied() before any of that changes. An error of it fails the save, on all ranks.
  void start(std::shared_ptr<const Snapshot> snapshot, std::function<void()> copy = nullptr);

  // Waits until the save under way, if there is one, has called its `copy`. Never throws: if `copy`
  // has thrown, wait() does. Not collective.
  void wait_copied();

  // Waits for the save under way. Returns the folder of its checkpoint, or an empty path if no save
  // is under way. Throws as Saver::save().
  std::filesystem::path wait();

 private:
  Saver saver_;
  std::future<void> copied_;                   // valid until it has been waited for
  std::future<std::filesystem::path> saving_;  // waits in its destructor
};

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_ASYNC_SAVER_H_
