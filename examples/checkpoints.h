#ifndef PIPEWRIGHT_EXAMPLES_CHECKPOINTS_H_
#define PIPEWRIGHT_EXAMPLES_CHECKPOINTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "pipewright/checkpoint/save.h"
#include "pipewright/checkpoint/torch/training_state.h"
#include "pipewright/comms/store_rounds.h"
#include "pipewright/comms/world.h"

namespace pipewright::examples {

// The flags --save, --save-every and --resume.
struct CheckpointFlags {
  std::string save;    // folder; empty: nothing is saved
  int64_t every = 0;   // steps; 0: only at the end
  std::string resume;  // a checkpoint, or "latest" in `save`; empty: from the beginning
};
// Throws UsageError for flags that need another one.
void check(const CheckpointFlags& flags);

// One rank's saving and resuming. Its functions are collective over the world.
class Checkpoints {
 public:
  // `run` has what is saved besides `state`; a checkpoint whose texts differ from those in
  // `run.state` belongs to another training. All of them must outlive the object. Rank 0 locks the
  // folder to save into.
  Checkpoints(CheckpointFlags flags, comms::World& world, checkpoint::TrainingState& state,
              checkpoint::Snapshot run);

  // Loads what the flags say, and returns the number of steps that it was trained. Without
  // --resume, or if there is nothing to resume, that is 0. Rank 0 says on stderr what was loaded.
  // Throws UsageError if the checkpoint is of another training.
  int64_t resume();

  // Saves after `step` steps of `last` if the flags say so: beside the steps that follow, but
  // after the last one it returns when all is saved. Throws the error of the save before.
  void save(int64_t step, int64_t last);
  // Before the weights change: waits until the thread that saves has copied them.
  void before_update();

 private:
  checkpoint::StateSnapshot snapshot(checkpoint::StateSnapshot reused) const;
  int64_t load(const std::string& path, const checkpoint::StoredCheckpoint& checkpoint);
  void say(const std::string& text) const;

  const CheckpointFlags flags_;
  comms::World& world_;
  checkpoint::TrainingState& state_;
  const checkpoint::Snapshot run_;
  comms::StoreExchange exchange_;
  comms::StoreExchange saver_exchange_;
  std::shared_ptr<checkpoint::StateSnapshot> saved_;  // the snapshot that is or was saved last
  std::optional<checkpoint::AsyncSaver> saver_;
};

}  // namespace pipewright::examples

#endif  // PIPEWRIGHT_EXAMPLES_CHECKPOINTS_H_
