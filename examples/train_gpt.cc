// Trains a small GPT on the bytes of a file, with pipeline, data and tensor parallelism: train_gpt
// --help.
//
// This is the library's example of a trainer: train() is the complete training loop; local_model.h
// wraps the model, and the rest is the command line, the data and the display. Ranks are threads of
// this process; under `pipewright launch`, torchrun or srun, each process is one rank, and ranks
// communicate over Gloo, or with --device cuda over NCCL (device.h). Equal seeds produce equal
// weights and batches either way.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <variant>

#include "examples/any_rank.h"
#include "examples/batch.h"
#include "examples/checkpoints.h"
#include "examples/device.h"
#include "examples/exit_codes.h"
#include "examples/fused_adamw.h"
#include "examples/late_copy.h"
#include "examples/learning_rate.h"
#include "examples/local_model.h"
#include "examples/measured_costs.h"
#include "examples/measured_search.h"
#include "examples/options.h"
#include "examples/part_costs.h"
#include "examples/program.h"
#include "examples/progress.h"
#include "examples/recorded_step.h"
#include "examples/run_summary.h"
#include "examples/schedule_search.h"
#include "examples/stop_signal.h"
#include "examples/text.h"
#include "examples/text_generation.h"
#include "examples/usage_error.h"
#include "pipewright/autograd/kept_results.h"
#include "pipewright/checkpoint/save.h"
#include "pipewright/comms/mesh.h"
#include "pipewright/comms/process/error_file.h"
#include "pipewright/comms/threads/threads.h"
#include "pipewright/comms/world.h"
#include "pipewright/executor/executor.h"
#include "pipewright/modules/clip_grad_norm.h"

namespace pipewright::examples {
namespace {

// Which steps are recorded, and in which pipeline.
class Recording {
 public:
  // Collective over the mesh. Of the copies of the pipeline the first one is recorded.
  Recording(const Options& options, int64_t first_step, comms::Mesh& mesh, at::Device device)
      : options_(options),
        first_step_(first_step),
        device_(device),
        is_recorder_(in_first_copy(mesh) && mesh.coordinate("tp") == 0),
        pipeline_(mesh.group({"pp"})) {}

  // Whether this rank is in that pipeline.
  bool is_recorder() const { return is_recorder_; }

  // Runs a step, recorded if it is to be.
  executor::StepResult step(int64_t step, executor::Executor& executor,
                            const executor::Batch& batch) {
    latest_.reset();
    if (!is_recorder_ || !is_recorded(step)) return executor.step(batch);
    executor.record();
    executor::StepResult result = executor.step(batch);
    ir::Timeline measured = executor.recording();
    executor.record(false);
    RecordedStep own;
    const bool is_asked = !options_.record.empty() && step == options_.recorded_step();
    if (executor.rank() == 0)
      own = take_recording(is_asked ? options_.record : "", step, executor.program(),
                           std::move(measured));
    // The first rank has the figures, the others have zeros.
    std::vector<at::Tensor> sum = {
        torch::tensor({own.seconds, own.bubble, own.predicted_bubble}, at::kDouble).to(device_)};
    if (pipeline_->getSize() > 1) pipeline_->allreduce(sum)->wait();
    const auto figure = [&](int64_t at) { return sum[0][at].item<double>(); };
    latest_ = RecordedStep{step, figure(0), figure(1), figure(2)};
    if (is_asked) asked_ = latest_;
    if (is_of_last(step) && (!fastest_ || latest_->seconds < fastest_->seconds)) fastest_ = latest_;
    return result;
  }

  // The step before this call, if it was recorded; that of --record; of the last steps the fastest.
  // On every rank of the pipeline.
  const std::optional<RecordedStep>& latest() const { return latest_; }
  const std::optional<RecordedStep>& asked() const { return asked_; }
  const std::optional<RecordedStep>& fastest() const { return fastest_; }

 private:
  // As many steps as a search has measured: --schedule search compares both.
  bool is_of_last(int64_t step) const {
    return options_.searches() && step >= options_.steps - kMeasuredSteps;
  }
  // The display shows the bubble of the second step, and of every fiftieth after it.
  bool is_recorded(int64_t step) const {
    // On a device only the step that is asked for: to read its events, the host waits for it.
    const bool is_shown = device_.is_cpu() && (!options_.json || options_.writes_figures());
    return (!options_.record.empty() && step == options_.recorded_step()) || is_of_last(step) ||
           (is_shown && (step - first_step_) % 50 == 1);
  }

  const Options& options_;
  const int64_t first_step_;
  const at::Device device_;
  const bool is_recorder_;
  const comms::BackendPtr pipeline_;
  std::optional<RecordedStep> latest_, asked_, fastest_;
};

// Shows the figures of steps in their order, each when its device has them: the host goes on and
// queues the next steps.
class LateFigures {
 public:
  explicit LateFigures(Progress& progress) : progress_(progress) {}

  void add(const at::Tensor& loss, const at::Tensor& norm, double learning_rate,
           const std::optional<RecordedStep>& recorded) {
    steps_.push_back({LateCopy(loss), LateCopy(norm), learning_rate, recorded});
    while (!steps_.empty() && steps_.front().norm.is_there() && steps_.front().loss.is_there())
      show_first();
  }
  // Waits for all that are left.
  void finish() {
    while (!steps_.empty()) show_first();
  }

 private:
  struct Step {
    LateCopy loss, norm;
    double learning_rate;
    std::optional<RecordedStep> recorded;
  };

  void show_first() {
    const Step& step = steps_.front();
    if (step.recorded) progress_.recorded(*step.recorded);
    progress_.step(
        {step.loss.wait().item<double>(), step.norm.wait().item<double>(), step.learning_rate});
    steps_.pop_front();
  }

  Progress& progress_;
  std::deque<Step> steps_;
};

Progress::Style style_of(const Options& options) {
  if (options.json) return Progress::Style::kJson;
  return isatty(STDOUT_FILENO) != 0 ? Progress::Style::kBar : Progress::Style::kLines;
}

// The ranks with the last stage, of this rank's part of tensor parallelism. With two replicas of
// the model, each of them has the losses of its microbatches. To be called on these ranks.
comms::BackendPtr group_of_losses(const ir::Placement& placement, const comms::Mesh& mesh,
                                  const comms::BackendPtr& copies, comms::World& world) {
  if (placement.num_replicas() == 1) return copies;
  const std::vector<int> with_last = placement.ranks_of(placement.num_stages() - 1);
  std::vector<int> ranks = mesh.ranks({"pp", "dp_replicate", "dp_shard"});
  std::erase_if(ranks, [&](int rank) {
    return std::ranges::count(with_last, mesh.layout().coordinate(rank, "pp")) == 0;
  });
  return world.make_group("losses", ranks);
}

// One rank.
void train(Options options, const ir::Program& first, const Text& text, comms::World& world,
           at::Device device) {
  const c10::DeviceGuard current(device);
  options.model = balanced_model(options, world);
  // The ranks: pipelines along "pp", copies of them along the two data-parallel dimensions, and
  // layers that are split along "tp".
  comms::Mesh mesh(world, {{"pp", options.pp},
                           {"dp_replicate", options.dp_replicate},
                           {"dp_shard", options.dp_shard},
                           {"tp", options.tp}});
  const comms::BackendPtr copies = mesh.group({"dp_replicate", "dp_shard"});
  const comms::BackendPtr all_ranks = mesh.group({"pp", "dp_replicate", "dp_shard", "tp"});
  const comms::BackendPtr tp = options.tp > 1 ? mesh.group({"tp"}) : nullptr;

  const auto run_of = [&](const LocalModel& model) -> executor::ExecutorOptions {
    return {.loss = make_loss(options, tp),
            .scale_grads = false,  // the loss has the factor
            .timeout = options.step_limit(),
            .first_timeout = options.first_step_limit(),
            // The report of the hang is on stderr already, and where torchrun looks for it.
            .on_stuck = [](const std::string&) { std::_Exit(kHang); },
            .device = device,
            .ranks = mesh.ranks({"pp"}),
            .same_batch = tp,
            .tied = model.tied};
  };
  std::vector<FoundSchedule> tried;  // the fastest first
  if (options.searches() && options.sample.empty())
    tried = try_schedules(options, run_of, text, mesh, world, device);
  const FoundSchedule* const found = tried.empty() ? nullptr : &tried.front();
  const ir::Program& program = found ? found->program : first;

  options.model.blocks = blocks_of(program, options.model.layers);
  LocalModel model = make_local_model(options, program.placement, mesh, world, device);
  const int last_stage = program.placement.num_stages() - 1;
  const bool has_loss = model.stages.contains(last_stage);
  const comms::BackendPtr with_losses =
      has_loss ? group_of_losses(program.placement, mesh, copies, world) : nullptr;
  const auto loss_of = [&](const executor::StepResult& result) {
    return total_loss(result.losses, *with_losses, copies->getSize());
  };
  if (!options.profile.empty()) {
    const schedule::Costs costs =
        found ? found->costs
              : measure_costs(options, program, model, run_of(model), text, mesh, world).costs;
    if (world.rank() == 0) write_costs(options.profile, costs);
  }

  // The executor: runs this rank's row of the program on these stages.
  executor::Executor executor(program, model.stages, world, run_of(model));

  // The optimizer, and what it and the model were when they were saved.
  FusedAdamW optimizer(model.parameters, torch::optim::AdamWOptions(options.learning_rate));
  model.state.set_optimizer(optimizer);
  checkpoint::Snapshot run;
  run.schedule = options.schedule;
  run.program_digest = executor.program_digest();
  for (const layout::MeshDim& dim : mesh.layout().dims()) {
    if (dim.name != "tp" || dim.size > 1) run.mesh.push_back(dim);
  }
  run.state = {{"seed", std::to_string(options.model.seed)}};
  Checkpoints checkpoints(options.checkpoints, world, model.state, run);
  const int64_t first_step = checkpoints.resume();
  if (options.has_learning_rate) {
    for (auto& group : optimizer.param_groups()) group.options().set_lr(options.learning_rate);
  }

  if (!options.sample.empty()) {
    const std::string more = generate_text(options, executor, mesh, world, options.sample, 200);
    if (world.rank() == 0) std::printf("%s%s\n", options.sample.c_str(), more.c_str());
    return;
  }

  // Training: the usual loop.
  const std::vector<modules::GradsToClip> gradients = modules::grads_to_clip(model.parameters);
  if (!options.record.empty() && options.recorded_step() < first_step)
    throw UsageError("--record: expected a step from " + std::to_string(first_step) +
                     ", where the checkpoint goes on, got " +
                     std::to_string(options.recorded_step()));
  Recording recording(options, first_step, mesh, device);
  const bool reports =
      mesh.coordinate("pp") == program.placement.ranks_of(last_stage)[0] && recording.is_recorder();
  Progress progress(
      style_of(options), first_step, options.steps, options.batch * options.model.context,
      reports ? Progress::Files{options.metrics, options.tensorboard} : Progress::Files{});
  if (!options.json) {
    const std::string summary = summary_of(options, program, model, mesh, world);
    if (reports) progress.say(summary + (found ? '\n' + text_of(tried) : ""));
  }
  const bool shows_norm =
      on_any_rank(reports && progress.shows_gradient_norm(), *all_ranks, device);
  LateFigures figures(progress);
  StopVote stop(all_ranks, device);
  for (int64_t step = first_step; step < options.steps; ++step) {
    optimizer.zero_grad();
    const std::vector<int64_t> starts = text.batch(options.model.seed, step, options.batch);
    const executor::Batch batch = batch_of(text, starts, mesh, device);
    const executor::StepResult result = recording.step(step, executor, batch);
    at::Tensor norm = at::zeros({});
    if (options.clip > 0)
      norm = modules::clip_grad_norm_(gradients, *all_ranks, options.clip);
    else if (shows_norm)
      norm = modules::total_grad_norm(gradients, *all_ranks);
    const double factor = learning_rate_factor(options.learning_rate_plan, step, options.steps);
    checkpoints.before_update();
    if (!model.parameters.empty()) scaled_step(optimizer, factor);
    const at::Tensor loss = has_loss ? loss_of(result) : at::zeros({});
    if (reports) {
      const double rate = optimizer.param_groups().front().options().get_lr() * factor;
      figures.add(loss, norm, rate, recording.latest());
    }
    const bool stops =
        !options.checkpoints.save.empty() && step + 1 < options.steps && stop.should_stop();
    checkpoints.save(step + 1, stops ? step + 1 : options.steps);
    if (stops) {
      figures.finish();
      throw SavedAndStopped();
    }
  }
  figures.finish();

  // The loss on the held-back text.
  constexpr int64_t kBatches = 4;
  double held_back = 0;
  for (int64_t batch = 0; batch < kBatches; ++batch) {
    const std::vector<int64_t> starts = text.held_back(options.batch, batch, kBatches);
    const executor::StepResult result = executor.eval(batch_of(text, starts, mesh, device));
    if (has_loss) held_back += loss_of(result).item<double>() / kBatches;
  }
  constexpr int64_t kSampleBytes = 64;
  const std::string prompt = text.held_back_begin(options.model.context / 2);
  const std::string sample =
      options.json ? "" : generate_text(options, executor, mesh, world, prompt, kSampleBytes);
  if (!reports) return;
  RunFigures run_figures = {.held_back_loss = held_back,
                            .bigram_loss = text.bigram_loss(),
                            .recorded = recording.asked(),
                            .sample = sample,
                            .checkpoint = options.checkpoints.save,
                            .recording = options.record,
                            .costs = options.profile};
  for (const FoundSchedule& one : tried)
    run_figures.tried.push_back({one.found_by, one.program.placement.num_stages(), one.seconds,
                                 one.bubble, one.measured_seconds});
  if (found) run_figures.searched = recording.fastest();
  progress.finish(run_figures);
}

// train(), whose errors outside of a step end all other ranks too, and say who failed first.
void train_or_fail(const Options& options, const ir::Program& program, const Text& text,
                   comms::World& world, at::Device device) {
  try {
    train(options, program, text, world, device);
  } catch (const executor::StepError& error) {
    if (!world.failed()) world.fail(error.what());
    throw;
  } catch (const UsageError& error) {
    world.fail(error.what());
    throw;
  } catch (const checkpoint::AgreedError& error) {  // no rank was the first
    world.fail(error.what());
    throw;
  } catch (const std::exception& error) {
    const std::string own = world.fail(error.what());
    const std::string explained = world.explain(own);
    if (world.hung()) throw executor::HangError(explained);
    throw std::runtime_error(explained);
  }
}

// Runs all ranks as threads. Rethrows the error of the lowest rank that failed.
void train_threads(const Options& options, const ir::Program& program, const Text& text,
                   at::Device device) {
  std::vector<comms::World> worlds =
      comms::thread_worlds(options.ranks(), {.timeout = options.world_limit()});
  std::vector<std::exception_ptr> errors(worlds.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < worlds.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        train_or_fail(options, program, text, worlds[rank], device);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// Keeps memory that is freed: each step needs it again, and to get it from the system each time
// takes up to a tenth of a step on a CPU.
void keep_freed_memory() {
  constexpr int kNever = 1 << 30;  // bytes
  mallopt(M_MMAP_THRESHOLD, kNever);
  mallopt(M_TRIM_THRESHOLD, kNever);
}

// Lets MKL find its kernels for the functions of vectors that a model calls. It does so when each
// is first called, without a lock: of two ranks that are first at once, one may get another kernel,
// whose last bits differ, and a run is no longer the same every time.
void find_kernels(Checkpointing checkpointing) {
  const at::Tensor numbers = at::ones({64});
  for (const auto function : {at::cos, at::sin, at::exp, at::log}) function(numbers);
  // The same of LibTorch and the operators of a policy.
  if (checkpointing == Checkpointing::kSelective) autograd::KeepPolicy::matrix_products();
}

void run(const Options& options) {
  check(options);
  keep_freed_memory();
  find_kernels(options.model.activation_checkpointing);
  comms::dump_on_signal(SIGUSR2);
  if (!options.checkpoints.save.empty()) listen_for_stop();
  const ir::Program program = options.searches()
                                  ? program_to_measure(options, stages_to_search(options).front())
                                  : make_program(options);
  const Text text(options.data, options.model.context);
  const comms::Environment environment = comms::read_environment();
  const at::Device device = find_device(options.device, environment);
  const std::shared_ptr<const void> ranges = show_ranges(device);
  // Otherwise each rank would start its own pool of threads, as many as there are cores. And a byte
  // of a sample is too little work for several.
  if (options.ranks() > 1 || !options.sample.empty()) at::set_num_threads(1);
  if (environment.world_size == 1) return train_threads(options, program, text, device);
  if (environment.world_size != options.ranks()) {
    std::string flags = times_copies("--pp", options.pp, options);
    if (options.tp > 1) flags += " times --tp " + std::to_string(options.tp);
    throw UsageError(flags + ": expected " + std::to_string(options.ranks()) + " processes, got " +
                     std::to_string(environment.world_size));
  }
  comms::World world = process_world(device, environment, options.world_limit());
  train_or_fail(options, program, text, world, device);
}

int main(int argc, char** argv) {
  const std::variant<Options, int> parsed = parse_options(argc, argv);
  if (const int* exit_code = std::get_if<int>(&parsed)) return *exit_code;
  const Options& options = std::get<Options>(parsed);
  try {
    run(options);
  } catch (const UsageError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return kUsage;
  } catch (const SavedAndStopped&) {
    std::fprintf(stderr, "saved and stopped by a signal; --resume latest goes on\n");
    return kSavedAndStopped;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    comms::write_error_file(error.what());
    return dynamic_cast<const executor::HangError*>(&error) ? kHang : kFailure;
  }
  return kSuccess;
}

}  // namespace
}  // namespace pipewright::examples

int main(int argc, char** argv) { return pipewright::examples::main(argc, argv); }
