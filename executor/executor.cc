#include "pipewright/executor/executor.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <thread>

#include "pipewright/executor/digest.h"
#include "pipewright/ir/text/action_text.h"
#include "pipewright/ir/text/render.h"
#include "pipewright/ir/text/shape.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/verify/verify.h"

namespace pipewright::executor {
namespace {

constexpr std::chrono::milliseconds kLinger{3000};
// In place of a digest.
const std::string kError = "error:";

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
      timeout_(options_.timeout.value_or(world.timeout())) {
  std::string error;
  try {
    verify();
    has_backward_ = ir::has_backward(program_);
    row_ = plan_row(program_.rows[static_cast<size_t>(rank_)]);
    check_stages(stages);
  } catch (const std::invalid_argument& caught) {
    error = caught.what();
  }
  compare_digests(error);
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

void Executor::verify() const {
  ir::Diagnostics diagnostics;
  if (check(program_, options_.allow_unverified, &diagnostics)) return;
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

void Executor::compare_digests(const std::string& error) const {
  const auto key = [&](size_t rank) { return key_ + "/digest/" + std::to_string(rank); };
  std::string mine = kError + error;
  if (error.empty()) {
    std::vector<DigestPart> options;
    const auto flag = [&](const char* name, bool value) {
      options.push_back({name, value ? "true" : "false"});
    };
    const auto dims = [&](const char* name, const SplitDims& value) {
      options.push_back({name, to_string(value)});
    };
    flag("scale_grads", options_.scale_grads);
    flag("allow_unverified", options_.allow_unverified);
    flag("weight_free_w", program_.lowering.weight_free_w.value_or(false));
    flag("output_metas given", options_.output_metas != nullptr);
    dims("input_dims", options_.input_dims);
    dims("extra_dims", options_.extra_dims);
    dims("target_dims", options_.target_dims);
    dims("output_dims", options_.output_dims);
    mine = to_string(digest_of(program_, std::move(options)));
  }
  const comms::StorePtr& store = world_.store();
  store->set(key(static_cast<size_t>(rank_)), mine);
  std::vector<DigestPart> first;
  std::string trouble = error;
  for (size_t rank = 0; rank < ranks_.size() && trouble.empty(); ++rank) {
    const std::string who = "rank " + std::to_string(rank) + " of the program";
    try {
      store->wait({key(rank)}, timeout_);
    } catch (const std::exception& caught) {
      throw std::runtime_error(who + " did not make its executor within " +
                               std::to_string(timeout_.count()) + " ms: " + caught.what());
    }
    const std::string theirs = store->get_to_str(key(rank));
    if (theirs.starts_with(kError)) {
      trouble = who + ": " + theirs.substr(kError.size());
      continue;
    }
    const std::vector<DigestPart> digest = parse_digest(theirs);
    if (rank == 0) first = digest;
    // Compared with rank 0's everywhere, so that all ranks give the same error.
    const std::string found = difference(first, 0, digest, static_cast<int>(rank));
    if (!found.empty()) trouble = "the ranks do not agree: " + found;
  }
  if (trouble.empty()) return;
  linger("/digest/read");
  throw std::invalid_argument(trouble);
}

// Who serves the store stays until the others have read why, if they still come.
void Executor::linger(const std::string& counter) const {
  const comms::StorePtr& store = world_.store();
  store->add(key_ + counter, 1);
  const auto deadline = std::chrono::steady_clock::now() + std::min(timeout_, kLinger);
  while (world_.rank() == 0 && std::chrono::steady_clock::now() < deadline &&
         store->add(key_ + counter, 0) < static_cast<int64_t>(ranks_.size()))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

StepResult Executor::step(const Batch& batch, bool return_outputs) {
  return run(false, return_outputs, [&] { return split(batch); });
}

StepResult Executor::step(Microbatches microbatches, bool return_outputs) {
  return run(false, return_outputs, [&] { return std::move(microbatches); });
}

StepResult Executor::eval(const Batch& batch, bool return_outputs) {
  return run(true, return_outputs, [&] { return split(batch); });
}

StepResult Executor::eval(Microbatches microbatches, bool return_outputs) {
  return run(true, return_outputs, [&] { return std::move(microbatches); });
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
  ir::Row row = program->rows[static_cast<size_t>(rank_)];
  // Lowering adds them, and a program without them has its stages unsharded all the time.
  if (!row_.has_residency) {
    std::erase_if(row, [](const ir::Action& action) {
      return action.kind() == ir::ActionKind::kUnshard || action.kind() == ir::ActionKind::kReshard;
    });
  }
  return eval_row_.emplace(plan_row(row));
}

StepResult Executor::run(bool evaluates, bool return_outputs,
                         const std::function<Microbatches()>& prepare) {
  if (!failure_.empty()) throw StepError("no step can run after a failure: " + failure_);
  const bool with_backward = has_backward_ && !evaluates;
  const c10::AutoGradMode grad_mode(with_backward);
  ActionRunner::Results results;
  const PlannedAction* current = nullptr;
  const auto place = [&] {
    const std::string step = "rank " + std::to_string(rank_) + ", step " + std::to_string(step_);
    if (!current) return step + ": ";
    return step + ", action " + std::to_string(current->step) + " `" +
           ir::to_string(current->action) + "`: ";
  };
  try {
    const RowPlan& row = evaluates ? eval_row() : row_;
    Microbatches microbatches = prepare();
    check_counts(microbatches);
    runner_->begin(row, with_backward, return_outputs, std::move(microbatches));
    for (const PlannedAction& planned : row.actions) {
      current = &planned;
      runner_->run(planned);
    }
    current = nullptr;
    results = runner_->finish();
  } catch (const std::exception& error) {
    fail(place() + error.what());
  } catch (...) {
    fail(place() + "something was thrown that is no std::exception");
  }
  ++step_;
  StepResult result{std::move(results.losses), {}};
  // All ranks have done their part: what cannot be put together is this caller's own affair.
  if (!results.outputs.empty())
    result.outputs = merge_batch(results.outputs, options_.output_dims, "output");
  return result;
}

// Tells the other ranks, ends what they wait for from here, and throws the first failure of all.
void Executor::fail(const std::string& message) {
  failure_ = message;
  std::string explained = message;
  ir::Diagnostics diagnostics;
  if (options_.allow_unverified && !check(program_, false, &diagnostics))
    explained += "\nthe program was not verified, and is not valid:\n" + text_of(diagnostics);
  std::string first;
  try {
    first = world_.store()->compareSet(key_ + "/failure", "", explained);
  } catch (const std::exception&) {
    // The store's host is gone: what happened here is all that is known.
  }
  const bool elsewhere = !first.empty() && first != explained;
  failure_ = elsewhere ? first + "\n  and then " + message : explained;
  if (transfers_) transfers_->clear();
  if (channels_) channels_->abort();
  try {
    runner_->clear();
    linger("/failed");
  } catch (const std::exception&) {
    // What is told is what went wrong first.
  }
  throw StepError(failure_);
}

}  // namespace pipewright::executor
