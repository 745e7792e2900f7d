#include "examples/checkpoints.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <utility>

#include "examples/usage_error.h"
#include "pipewright/autograd/checkpoint.h"
#include "pipewright/checkpoint/load.h"
#include "pipewright/checkpoint/torch/optimizer_state.h"

namespace pipewright::examples {
namespace {

constexpr const char* kLatest = "latest";

// How long a rank may take to write its part after another rank has.
constexpr std::chrono::minutes kSaveTimeout{30};

// Each rank has its generator; a world with other ranks leaves theirs alone.
std::string generator_key(int rank) { return "generator.cpu." + std::to_string(rank); }

}  // namespace

void check(const CheckpointFlags& flags) {
  if (!flags.save.empty()) return;
  if (flags.every > 0) throw UsageError("--save-every: expected --save too");
  if (flags.resume == kLatest) throw UsageError("--resume latest: expected --save too");
}

Checkpoints::Checkpoints(CheckpointFlags flags, comms::World& world,
                         checkpoint::TrainingState& state, checkpoint::Snapshot run)
    : flags_(std::move(flags)),
      world_(world),
      state_(state),
      run_(std::move(run)),
      exchange_(world, "checkpoint"),
      saver_exchange_(world, "checkpoint/save", kSaveTimeout) {
  if (!flags_.save.empty())
    saver_.emplace(checkpoint::SaverOptions{.folder = flags_.save, .rank = world.rank()},
                   std::ref(saver_exchange_));
}

void Checkpoints::say(const std::string& text) const {
  if (world_.rank() == 0) std::fprintf(stderr, "%s\n", text.c_str());
}

int64_t Checkpoints::resume() {
  if (flags_.resume.empty()) return 0;
  if (flags_.resume != kLatest)
    return load(flags_.resume,
                checkpoint::open_on_all(flags_.resume, world_.rank(), std::ref(exchange_),
                                        checkpoint::Verify::kData));
  const auto latest = checkpoint::open_latest_on_all(
      flags_.save, world_.rank(), std::ref(exchange_),
      [&](const std::string& text) { say("passed over:\n" + text); }, checkpoint::Verify::kData);
  if (latest) return load(latest->path, latest->checkpoint);
  say("no checkpoint in `" + flags_.save + "`: starting from step 0");
  return 0;
}

int64_t Checkpoints::load(const std::string& path, const checkpoint::StoredCheckpoint& checkpoint) {
  const auto& manifest = checkpoint.manifest();
  if (!manifest) {
    // Of PyTorch, or exported. What it was trained on is unknown, so the data begin again.
    const bool has_optimizer = std::ranges::any_of(checkpoint.tensors(), [](const auto& tensor) {
      return tensor.first.starts_with("optim.");
    });
    if (has_optimizer)
      state_.load(checkpoint, std::ref(exchange_));
    else
      state_.load_weights(checkpoint, std::ref(exchange_));
    say(std::string(has_optimizer ? "weights and optimizer state" : "weights") + " from `" + path +
        "`: starting from step 0");
    return 0;
  }
  for (const auto& [key, value] : run_.state) {
    const auto saved = manifest->state.find(key);
    if (saved != manifest->state.end() && saved->second != value)
      throw UsageError("--" + key + ": expected " + saved->second + ", as in `" + path + "`, got " +
                       value);
  }
  state_.load(checkpoint, std::ref(exchange_));
  if (const auto saved = manifest->state.find(generator_key(world_.rank()));
      saved != manifest->state.end())
    checkpoint::set_generator_state(autograd::cpu_generator(), saved->second);
  say("resumed from `" + path + "`");
  return manifest->step;
}

checkpoint::StateSnapshot Checkpoints::snapshot(checkpoint::StateSnapshot reused) const {
  checkpoint::StateSnapshot taken = state_.deferred_snapshot(std::move(reused));
  checkpoint::Snapshot& snapshot = taken.snapshot;
  snapshot.schedule = run_.schedule;
  snapshot.program_digest = run_.program_digest;
  snapshot.mesh = run_.mesh;
  snapshot.state.insert(run_.state.begin(), run_.state.end());
  snapshot.state[generator_key(world_.rank())] =
      checkpoint::generator_state(autograd::cpu_generator());
  return taken;
}

void Checkpoints::save(int64_t step, int64_t last) {
  if (!saver_ || (step != last && (flags_.every == 0 || step % flags_.every != 0))) return;
  saver_->wait();  // then the memory of that save is free
  if (!saved_) saved_ = std::make_shared<checkpoint::StateSnapshot>();
  *saved_ = snapshot(std::move(*saved_));
  saved_->snapshot.step = step;
  saved_->snapshot.state["data_position"] = std::to_string(step);
  saver_->start({saved_, &saved_->snapshot}, [saved = saved_] { saved->copy(); });
  if (step == last) saver_->wait();
}

void Checkpoints::before_update() {
  if (saver_) saver_->wait_copied();
}

}  // namespace pipewright::examples
