#include "executor/executor.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <thread>

#include "executor/digest.h"
#include "ir/action_text.h"
#include "ir/render.h"
#include "ir/shape.h"
#include "schedule/lower.h"
#include "schedule/verify.h"

namespace pipewright::executor {
namespace {

std::vector<int> ranks_of(const ir::Program& program, const comms::World& world,
                          const ExecutorOptions& options) {
  std::vector<int> ranks = options.ranks;
  const auto wanted = static_cast<size_t>(program.placement.num_ranks());
  if (ranks.empty()) {
    for (int rank = 0; rank < program.placement.num_ranks(); ++rank) ranks.push_back(rank);
  }
  const bool fits = ranks.size() == wanted && std::ranges::all_of(ranks, [&](int rank) {
                      return rank >= 0 && rank < world.size();
                    });
  if (!fits) {
    throw std::invalid_argument("the program has " + std::to_string(wanted) + " ranks, given are " +
                                std::to_string(ranks.size()) + " of a world of " +
                                std::to_string(world.size()));
  }
  return ranks;
}

int rank_in(const std::vector<int>& ranks, const comms::World& world) {
  const auto found = std::ranges::find(ranks, world.rank());
  if (found == ranks.end()) {
    throw std::invalid_argument("rank " + std::to_string(world.rank()) +
                                " of the world runs no rank of the program");
  }
  return static_cast<int>(found - ranks.begin());
}

std::string key_of(const std::vector<int>& ranks, comms::World& world) {
  std::string name = "executor";
  for (const int rank : ranks) name += "." + std::to_string(rank);
  return world.unique_name(name);
}

std::string text_of(const ir::Diagnostics& diagnostics) {
  return ir::render(diagnostics, nullptr, {});
}

bool check(const ir::Program& program, bool shape_alone, ir::Diagnostics* diagnostics) {
  if (!ir::check_declared_shape(program, ir::Level::kComputeComms, ir::CellIndex(), {},
                                diagnostics))
    return false;
  return shape_alone ||
         schedule::verify(program, schedule::options_of(program.lowering), diagnostics);
}

}  // namespace

Executor::Executor(ir::Program program, std::map<int, LocalStage> stages, comms::World& world,
                   ExecutorOptions options)
    : program_(std::move(program)),
      options_(std::move(options)),
      world_(world),
      ranks_(ranks_of(program_, world, options_)),
      rank_(rank_in(ranks_, world)),
      key_(key_of(ranks_, world)),
      timeout_(options_.timeout.value_or(world.timeout())),
      row_(plan_row(program_.rows.at(static_cast<size_t>(rank_)))),
      has_backward_(executor::has_backward(program_)) {
  verify(program_);
  check_stages(stages);
  compare_digests();
  const std::vector<comms::Edge> edges = edges_of(program_);
  const ir::ChannelModel model = schedule::options_of(program_.lowering).channels;
  if (!edges.empty()) {
    channels_.emplace(world_, key_, ranks_, model, edges, options_.device);
    transfers_.emplace(
        program_.placement, *channels_, world_.store(), key_,
        Transfers::Options{model, timeout_, options_.device, options_.output_metas, [this] {
                             const std::string failure = key_ + "/failure";
                             if (world_.store()->check({failure}))
                               throw std::runtime_error("another rank has failed");
                           }});
  }
  runner_.emplace(program_.placement, program_.num_microbatches, std::move(stages),
                  transfers_ ? &*transfers_ : nullptr,
                  ActionRunner::Options{options_.loss, options_.scale_grads,
                                        program_.lowering.weight_free_w.value_or(false)});
}

Executor::~Executor() = default;

void Executor::verify(const ir::Program& program) const {
  ir::Diagnostics diagnostics;
  if (check(program, options_.allow_unverified, &diagnostics)) return;
  throw std::invalid_argument("the program is not valid:\n" + text_of(diagnostics));
}

void Executor::check_stages(const std::map<int, LocalStage>& stages) const {
  const ir::Placement& placement = program_.placement;
  for (const auto& [stage, with] : stages) {
    if (stage < 0 || stage >= placement.num_stages() || placement.rank_of(stage) != rank_) {
      throw std::invalid_argument("stage " + std::to_string(stage) + " is given to rank " +
                                  std::to_string(rank_) + ", which does not hold it");
    }
    if (!with.stage)
      throw std::invalid_argument("stage " + std::to_string(stage) + " is a null pointer");
  }
  for (const int stage : placement.stages_of(rank_)) {
    if (!stages.contains(stage)) {
      throw std::invalid_argument("rank " + std::to_string(rank_) + " holds stage " +
                                  std::to_string(stage) + ", which is not given");
    }
  }
  if (stages.contains(placement.num_stages() - 1) && has_backward_ && !options_.loss) {
    throw std::invalid_argument("stage " + std::to_string(placement.num_stages() - 1) +
                                " begins backward, and there is no loss function");
  }
}

void Executor::compare_digests() const {
  const auto key = [&](size_t rank) { return key_ + "/digest/" + std::to_string(rank); };
  const auto digest =
      digest_of(program_, {{"scale_grads", options_.scale_grads ? "true" : "false"},
                           {"output_metas", options_.output_metas ? "given" : "learned"}});
  const comms::StorePtr& store = world_.store();
  store->set(key(static_cast<size_t>(rank_)), to_string(digest));
  std::vector<std::vector<DigestPart>> digests;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    try {
      store->wait({key(rank)}, timeout_);
    } catch (const std::exception& error) {
      throw std::runtime_error("rank " + std::to_string(rank) +
                               " of the program did not make its executor within " +
                               std::to_string(timeout_.count()) + " ms: " + error.what());
    }
    digests.push_back(parse_digest(store->get_to_str(key(rank))));
    // Compared with rank 0's everywhere, so that all ranks give the same error.
    const std::string found = difference(digests[0], 0, digests[rank], static_cast<int>(rank));
    if (!found.empty()) throw std::invalid_argument("the ranks do not agree: " + found);
  }
}

StepResult Executor::step(const Batch& batch, bool return_outputs) {
  return step(split(batch), return_outputs);
}

StepResult Executor::step(Microbatches microbatches, bool return_outputs) {
  return run(row_, has_backward_, return_outputs, std::move(microbatches));
}

StepResult Executor::eval(const Batch& batch) { return eval(split(batch)); }

StepResult Executor::eval(Microbatches microbatches) {
  return run(eval_row(), false, true, std::move(microbatches));
}

void Executor::set_function(ir::ActionKind kind, ActionFunction function) {
  runner_->set_function(kind, std::move(function));
}

void Executor::forget_shapes() {
  if (transfers_) transfers_->forget_shapes();
}

Microbatches Executor::split(const Batch& batch) const {
  const int count = program_.num_microbatches;
  const auto split_tensors = [&](const Tensors& tensors, const SplitDims& dims, const char* what) {
    return tensors.empty() ? std::vector<Tensors>() : split_batch(tensors, count, dims, what);
  };
  return {split_tensors(batch.inputs, options_.input_dims, "input"),
          split_tensors(batch.extra, options_.extra_dims, "extra input"),
          split_tensors(batch.targets, options_.target_dims, "target")};
}

void Executor::check_counts(const Microbatches& microbatches) const {
  const auto wanted = static_cast<size_t>(program_.num_microbatches);
  const auto check_count = [&](const std::vector<Tensors>& list, const char* what) {
    if (list.empty() || list.size() == wanted) return;
    throw std::invalid_argument(std::string(what) + " of " + std::to_string(list.size()) +
                                " microbatches are given: wanted " + std::to_string(wanted));
  };
  check_count(microbatches.inputs, "inputs");
  check_count(microbatches.extra, "extra inputs");
  check_count(microbatches.targets, "targets");
  if (microbatches.inputs.empty() && program_.placement.rank_of(0) == rank_)
    throw std::invalid_argument("rank " + std::to_string(rank_) +
                                " holds the first stage, and is given no inputs");
}

const RowPlan& Executor::eval_row() {
  if (eval_row_) return *eval_row_;
  if (!has_backward_) return row_;
  ir::Lowering policies = program_.lowering;
  policies.forward_only = true;
  policies.merge_backward = policies.split_backward = std::nullopt;
  ir::Diagnostics diagnostics;
  const std::optional<ir::Program> program =
      schedule::lower(compute_order(program_), policies, &diagnostics);
  if (!program || !check(*program, false, &diagnostics)) {
    throw std::invalid_argument("the program's forwards alone are not valid:\n" +
                                text_of(diagnostics));
  }
  return eval_row_.emplace(plan_row(program->rows.at(static_cast<size_t>(rank_))));
}

StepResult Executor::run(const RowPlan& row, bool with_backward, bool return_outputs,
                         Microbatches microbatches) {
  if (!failure_.empty()) throw StepError("no step can run after a failure: " + failure_);
  check_counts(microbatches);
  const c10::AutoGradMode grad_mode(with_backward);
  StepResult result;
  const PlannedAction* current = nullptr;
  try {
    runner_->begin(row, with_backward, return_outputs, std::move(microbatches));
    for (const PlannedAction& planned : row.actions) {
      current = &planned;
      runner_->run(planned);
    }
    current = nullptr;
    ActionRunner::Results results = runner_->finish();
    result.losses = std::move(results.losses);
    if (!results.outputs.empty())
      result.outputs = merge_batch(results.outputs, options_.output_dims, "output");
  } catch (const std::exception& error) {
    std::string place = "rank " + std::to_string(rank_) + ", step " + std::to_string(step_);
    if (current) {
      place +=
          ", action " + std::to_string(current->step) + " `" + ir::to_string(current->action) + "`";
    } else {
      place += ", at its end";
    }
    fail(place + ": " + error.what());
  }
  ++step_;
  return result;
}

// Tells the other ranks, ends what they wait for from here, and throws the first failure of all.
void Executor::fail(const std::string& message) {
  ir::Diagnostics diagnostics;
  std::string explained = message;
  if (options_.allow_unverified && !check(program_, false, &diagnostics))
    explained += "\nthe program was not verified, and is not valid:\n" + text_of(diagnostics);
  std::string first;
  const auto end_communication = [this] {
    if (transfers_) transfers_->clear();
    if (channels_) channels_->abort();
  };
  try {
    const comms::StorePtr& store = world_.store();
    first = store->compareSet(key_ + "/failure", "", explained);
    end_communication();
    // Who serves the store stays until the others have read it, if they are still there.
    store->add(key_ + "/failed", 1);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (world_.rank() == 0 && std::chrono::steady_clock::now() < deadline &&
           store->add(key_ + "/failed", 0) < static_cast<int64_t>(ranks_.size()))
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } catch (const std::exception&) {
    // The store's host is gone: what happened here is all that is known.
    end_communication();
  }
  runner_->clear();
  const bool elsewhere = !first.empty() && first != explained;
  failure_ = elsewhere ? first + "\n  and then " + message : explained;
  throw StepError(failure_);
}

}  // namespace pipewright::executor
