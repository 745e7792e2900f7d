#ifndef PIPEWRIGHT_CHECKPOINT_SAVE_H_
#define PIPEWRIGHT_CHECKPOINT_SAVE_H_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "pipewright/checkpoint/safetensors.h"
#include "pipewright/layout/layout.h"

namespace pipewright::checkpoint {

using layout::Box;

class SaveLock;

// An error that all ranks throw with the same text: none of them waits for another, and the text
// names the rank that it comes from, if it is one rank's.
class AgreedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Agreement between the ranks that save or load together: whether a step of it succeeded on all.

// Sends `mine` to all ranks, and returns what each rank sent, by rank: an all-gather of short texts
// over the store, and the barrier of the protocol. Throws if a rank does not take part in time.
using Exchange = std::function<std::vector<std::string>(const std::string& mine)>;

// Collective. Runs `work`, which returns UTF-8, and tells the others how it went. Returns the
// results of all ranks, by rank. If `work` throws on some rank, throws std::runtime_error on all
// ranks, with the error of the first such rank.
std::vector<std::string> agree(const Exchange& exchange, const std::function<std::string()>& work);

// Saving: all ranks write their parts of the tensors, and rank 0 makes them a checkpoint.
//
//   Saver saver({.folder = "ckpt", .rank = rank}, exchange);
//   saver.save({.step = 100, .parts = parts, .schedule = "1F1B", .state = {{"lr", "0.001"}}});
//
// A crash at any moment, of a rank or of the machine, leaves the checkpoints that were saved before
// as they are, and at most a folder *.tmp more, which the next Saver removes.

// A part of a tensor of the whole model.
struct TensorPart {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;  // of the whole tensor
  Box box;
  std::span<const std::byte> data;  // row-major, little-endian
  std::string layout;               // of the whole tensor: layout::Layout::text(), or empty
};

// What one rank saves. One rank saves each box of replicated data.
struct Snapshot {
  int64_t step = 0;
  std::vector<TensorPart> parts;
  // The state of all ranks together; a key has the same value on each. UTF-8.
  std::map<std::string, std::string> state;
  // What follows is rank 0's.
  std::string schedule;
  std::string program_digest;
  std::vector<layout::MeshDim> mesh;
};

struct SaverOptions {
  std::filesystem::path folder;
  int rank = 0;
  int keep = 2;  // checkpoints to keep, at least 1; older ones are removed
};

// One per rank. Its functions are collective: all ranks call them in the same order. If one of them
// fails on a rank, it throws std::runtime_error on all ranks, with the error of the first rank that
// failed; what `exchange` throws passes through. Not thread-safe, but any thread may call it, so
// that training can go on while it writes.
class Saver {
 public:
  // Rank 0 creates the folder, locks it for the lifetime of the Saver, and removes what a crash
  // left there.
  Saver(SaverOptions options, Exchange exchange);
  ~Saver();

  // Returns the folder of the checkpoint, once it is durable. One of the same step is replaced.
  // Afterwards removes checkpoints of earlier steps, but for the `keep` latest. Throws also if the
  // parts of all ranks do not cover each tensor exactly once. With `error`, this rank has failed to
  // take its snapshot, so nothing is saved.
  std::filesystem::path save(const Snapshot& snapshot, std::exception_ptr error = nullptr);

 private:
  std::string write_shards(const Snapshot& snapshot, const std::string& save_id) const;
  void commit(const Snapshot& snapshot, const std::string& save_id,
              const std::vector<std::string>& records) const;
  void prune(int64_t step) const;

  std::filesystem::path temporary_folder(int64_t step) const;

  SaverOptions options_;
  Exchange exchange_;
  std::unique_ptr<SaveLock> lock_;  // rank 0's
};

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
  // See Saver.
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

#endif  // PIPEWRIGHT_CHECKPOINT_SAVE_H_
