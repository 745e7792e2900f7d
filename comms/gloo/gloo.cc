#include "pipewright/comms/gloo/gloo.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <c10/core/GradMode.h>

#include <csignal>
#include <cstdlib>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/gloo/kept_memory.h"
#include "pipewright/comms/gloo/send_queue.h"
#include "pipewright/comms/process/addresses.h"
#include "pipewright/comms/process/environment.h"
#include "pipewright/comms/torch_gaps/abortable_gloo.h"
#include "pipewright/comms/torch_gaps/batch_threads.h"

namespace pipewright::comms {
namespace {

void expect_interface(const std::string& name) {
  std::set<std::string> names;
  for (const Interface& one : interfaces()) names.insert(one.name);
  if (names.contains(name)) return;
  std::string all;
  for (const std::string& one : names) all += (all.empty() ? "" : ", ") + one;
  throw std::invalid_argument(
      "environment variable GLOO_SOCKET_IFNAME is invalid: expected a "
      "network interface of host " +
      host_name() + " (" + all + "), got `" + name + "`");
}

std::shared_ptr<::gloo::transport::Device> make_device(const Environment& environment) {
  using c10d::ProcessGroupGloo;
  const BatchThreads for_the_device;
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface && *interface) {
    expect_interface(interface);
    return ProcessGroupGloo::createDeviceForInterface(interface);
  }
  if (environment.master_addr == "127.0.0.1" || environment.master_addr == "localhost")
    return ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  return ProcessGroupGloo::createDefaultDevice();
}

void ignore_sigpipe() {
  struct sigaction current;
  sigaction(SIGPIPE, nullptr, &current);
  if (current.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

// A reduction whose ranks send each other what they are to reduce: wait() reduces what has been
// received, a row from each rank. `borrowed` is given back to `memory` then.
class ReductionOfReceived final : public c10d::Work {
 public:
  ReductionOfReceived(c10d::OpType type, c10::intrusive_ptr<c10d::Work> exchange,
                      at::Tensor received, std::vector<at::Tensor> outputs, int rank,
                      c10d::ReduceOp::RedOpType op, std::vector<at::Tensor> borrowed,
                      std::shared_ptr<KeptMemory> memory)
      : Work(rank, type),
        exchange_(std::move(exchange)),
        received_(std::move(received)),
        outputs_(std::move(outputs)),
        op_(op),
        borrowed_(std::move(borrowed)),
        memory_(std::move(memory)) {}

  // True only after wait(), as for Gloo's own Work: the outputs are written there.
  bool isCompleted() override { return is_written(); }
  bool isSuccess() const override { return is_written(); }
  std::exception_ptr exception() const override { return exchange_->exception(); }
  void synchronize() override { wait(kNoTimeout); }

  bool wait(std::chrono::milliseconds timeout) override {
    const bool done = exchange_->wait(timeout);
    reduce();
    return done;
  }

  // For torch's DistributedDataParallel. Its callback reduces, unless somebody has waited before.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const auto future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    const auto self = c10::intrusive_ptr<ReductionOfReceived>::unsafe_reclaim_from_nonowning(this);
    exchange_->getFuture()->addCallback([self, future](c10::ivalue::Future& exchange) {
      if (exchange.hasError()) return future->setError(exchange.exception_ptr());
      self->reduce();
      future->markCompleted(self->outputs_);
    });
    return future;
  }

 private:
  void reduce() {
    const std::lock_guard lock(written_mutex_);
    if (written_) return;
    const c10::NoGradGuard no_grad;
    int64_t offset = 0;
    for (const at::Tensor& output : outputs_) {
      at::Tensor reduced = output.view({-1});
      const at::Tensor rows = received_.narrow(1, offset, output.numel());
      if (op_ == c10d::ReduceOp::MAX)
        at::amax_out(reduced, rows, 0);
      else
        at::sum_out(reduced, rows, 0, /*keepdim=*/false, output.scalar_type());
      if (op_ == c10d::ReduceOp::AVG) output.div_(received_.size(0));
      offset += output.numel();
    }
    written_ = true;
    received_.reset();
    for (at::Tensor& borrowed : borrowed_) memory_->give_back(std::move(borrowed));
    borrowed_.clear();
  }

  bool is_written() const {
    const std::lock_guard lock(written_mutex_);
    return written_;
  }

  const c10::intrusive_ptr<c10d::Work> exchange_;
  mutable std::mutex written_mutex_;
  bool written_ = false;
  at::Tensor received_;
  const std::vector<at::Tensor> outputs_;
  const c10d::ReduceOp::RedOpType op_;
  std::vector<at::Tensor> borrowed_;
  const std::shared_ptr<KeptMemory> memory_;
};

// Gloo with what it lacks: SENDs that are freed when they have been sent, sizes in tags, and
// reductions in one exchange. torch makes a reduce-scatter an all-reduce, which sends twice as
// much, and passes every all-reduce around a ring twice, of which a small one is mostly waiting.
//
// A message that is longer than its receive makes Gloo throw on its own thread, which ends the
// process. Messages match by tag, and torch's tags count collectives. Here they also tell how much
// is sent, so ranks that pass different sizes wait for each other instead, until the watcher finds
// the difference (group.h).
class Gloo final : public AbortableGloo {
 public:
  using AbortableGloo::AbortableGloo;

  ~Gloo() override {
    if (!sends_.empty()) abort();  // nobody waits for them any more
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    let_device_run();
    return sends_.add(AbortableGloo::send(tensors, to, tag), tensors[0].nbytes());
  }

  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    let_device_run();
    return AbortableGloo::recv(tensors, from, tag);
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    set_tag(tensors);
    return AbortableGloo::broadcast(tensors, options);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    if (is_small(tensors, options)) return small_allreduce_of(tensors, options);
    set_tag(tensors);
    return AbortableGloo::allreduce(tensors, options);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override {
    set_tag(tensors);
    return AbortableGloo::allreduce_coalesced(tensors, options);
  }
  WorkPtr allgather(Lists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    set_tag(inputs);
    return AbortableGloo::allgather(outputs, inputs, options);
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    set_tag({input});
    return AbortableGloo::_allgather_base(output, input, options);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override {
    set_tag(inputs);
    return AbortableGloo::allgather_into_tensor_coalesced(outputs, inputs, options);
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    Tensors outputs = {output}, inputs = {input};
    if (can_exchange(outputs, inputs, options)) return reduce_scatter_of(outputs, inputs, options);
    return ProcessGroupGloo::_reduce_scatter_base(output, input, options);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    if (can_exchange(outputs, inputs, options)) return reduce_scatter_of(outputs, inputs, options);
    return ProcessGroupGloo::reduce_scatter_tensor_coalesced(outputs, inputs, options);
  }

 private:
  // A thread that has used its time slice loses the processor when it wakes another one that must
  // share it, as in a write of Gloo's, under the lock of the connection (batch_threads.h). So the
  // device and whoever else waits for the processor have it before.
  static void let_device_run() { std::this_thread::yield(); }

  // Other arguments are left to torch, whose errors they get if they are wrong.
  bool can_exchange(const Tensors& outputs, const Tensors& inputs,
                    const c10d::ReduceScatterOptions& options) const {
    const bool average = options.reduceOp == c10d::ReduceOp::AVG;
    bool can = !inputs.empty() && inputs.size() == outputs.size() &&
               (average ? inputs[0].is_floating_point() : options.reduceOp == c10d::ReduceOp::SUM);
    int64_t numel = 0;
    for (size_t i = 0; can && i < inputs.size(); ++i) {
      const auto fits = [&](const at::Tensor& tensor) {
        return tensor.scalar_type() == inputs[0].scalar_type() && tensor.is_cpu() &&
               tensor.is_contiguous();
      };
      can = fits(inputs[i]) && fits(outputs[i]) &&
            inputs[i].numel() == outputs[i].numel() * getSize();
      numel += inputs[i].numel();
    }
    return can && numel > 0;
  }

  WorkPtr reduce_scatter_of(const Tensors& outputs, const Tensors& inputs,
                            const c10d::ReduceScatterOptions& options) {
    const c10::NoGradGuard no_grad;
    Tensors parts;  // a row for each rank
    for (const at::Tensor& input : inputs)
      parts.push_back(input.view({getSize(), input.numel() / getSize()}));
    Tensors borrowed;
    at::Tensor sent = parts[0];
    if (parts.size() > 1) {
      int64_t numel = 0;
      for (const at::Tensor& part : parts) numel += part.size(1);
      sent = borrow({getSize(), numel}, inputs[0].scalar_type(), borrowed);
      at::cat_out(sent, parts, 1);
    }
    set_tag(inputs);
    return exchange(c10d::OpType::REDUCE_SCATTER, sent, outputs, options.reduceOp,
                    std::move(borrowed), options.timeout);
  }

  // A rank receives no more than kSmall bytes. Others, and other arguments, are left to torch.
  bool is_small(const Tensors& tensors, const c10d::AllreduceOptions& options) const {
    constexpr size_t kSmall = 1 << 20;
    const bool can_reduce =
        options.reduceOp == c10d::ReduceOp::SUM || options.reduceOp == c10d::ReduceOp::MAX;
    return can_reduce && tensors.size() == 1 && getSize() > 1 &&
           tensors[0].layout() == at::kStrided && tensors[0].numel() > 0 && tensors[0].is_cpu() &&
           tensors[0].is_contiguous() && tensors[0].scalar_type() != at::kBool &&
           tensors[0].nbytes() * static_cast<size_t>(getSize()) <= kSmall;
  }

  WorkPtr small_allreduce_of(const Tensors& tensors, const c10d::AllreduceOptions& options) {
    const c10::NoGradGuard no_grad;
    Tensors borrowed;
    at::Tensor sent = borrow({getSize(), tensors[0].numel()}, tensors[0].scalar_type(), borrowed);
    sent.copy_(tensors[0].view({1, -1}).expand_as(sent));
    set_tag(tensors);
    return exchange(c10d::OpType::ALLREDUCE, sent, tensors, options.reduceOp, std::move(borrowed),
                    options.timeout);
  }

  at::Tensor borrow(at::IntArrayRef sizes, at::ScalarType dtype, Tensors& borrowed) {
    const int64_t bytes =
        c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(dtype));
    borrowed.push_back(memory_->take(bytes));
    return borrowed.back().narrow(0, 0, bytes).view(dtype).view(sizes);
  }

  // Sends row r of `sent` to rank r, and reduces the rows received into `outputs`.
  WorkPtr exchange(c10d::OpType type, at::Tensor& sent, const Tensors& outputs,
                   c10d::ReduceOp::RedOpType op, Tensors borrowed,
                   std::chrono::milliseconds timeout) {
    at::Tensor received = borrow(sent.sizes(), sent.scalar_type(), borrowed);
    std::vector<int64_t> equal;  // parts for all ranks
    c10d::AllToAllOptions options;
    options.timeout = timeout;
    return c10::make_intrusive<ReductionOfReceived>(
        type, alltoall_base(received, sent, equal, equal, options), received, outputs, getRank(),
        op, std::move(borrowed), memory_);
  }

  // Of the next collective: 16 bits of its number, and 16 of a hash of its dtype and size. Those
  // that set no tag have that of the last plus 1.
  void set_tag(const Tensors& tensors) {
    uint64_t size = 0;
    for (const at::Tensor& tensor : tensors)
      size = 64 * (64 * size + static_cast<uint64_t>(tensor.numel())) +
             static_cast<uint64_t>(tensor.scalar_type());
    constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;  // multiplicative hashing: Knuth, 6.4
    collectiveCounter_ = ++number_ << 16 | static_cast<uint32_t>(size * kGoldenRatio >> 48);
  }

  SendQueue sends_;
  uint32_t number_ = 0;
  const std::shared_ptr<KeptMemory> memory_ = std::make_shared<KeptMemory>();
};

// The keys of one group. While its members connect, they wait for each other's addresses in the
// store: a failure of the world ends that.
class GroupStore final : public c10d::PrefixStore {
 public:
  GroupStore(const std::string& group, const StorePtr& store, std::weak_ptr<FailureDomain> failures)
      : PrefixStore(group, store), failures_(std::move(failures)) {}

  void wait(const std::vector<std::string>& keys) override { wait(keys, getTimeout()); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    const auto failures = failures_.lock();
    if (!failures || failures->failed()) return PrefixStore::wait(keys, timeout);
    for (const std::string& key : keys) {
      failures->wait_for(joinKey(key), timeout,
                         "group `" + prefix_ + "`: not all of its ranks connected within " +
                             std::to_string(timeout.count()) + " ms");
    }
  }

 private:
  const std::weak_ptr<FailureDomain> failures_;
};

}  // namespace

World gloo_world(const Environment& environment, std::chrono::milliseconds timeout) {
  ignore_sigpipe();
  // torch's flight recorder is shared by the whole process and modifies a map without a lock when
  // several groups are active at once.
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
  const StorePtr store = connect_store(environment, timeout);
  struct OfWorld {
    std::weak_ptr<FailureDomain> failures;
    // One device for all groups: each device runs its own thread.
    std::shared_ptr<::gloo::transport::Device> device;
  };
  const auto of_world = std::make_shared<OfWorld>();  // the one below
  const MakeBackend make = [=](const std::string& name, int rank, int size) -> BackendPtr {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(of_world->device);
    // With more threads, as by default, two collectives of a group that end at once crash the
    // process: each thread then writes the name of its collective to one string, without a lock
    // (ProcessGroupGloo::runLoop in torch 2.11).
    options->threads = 1;
    return c10::make_intrusive<Gloo>(
        c10::make_intrusive<GroupStore>(name, store, of_world->failures), rank, size, options);
  };
  World world(environment.rank, environment.world_size, store, make, timeout);
  of_world->failures = world.failures().weak_from_this();
  world.failures().connect([&] { of_world->device = make_device(environment); });
  return world;
}

}  // namespace pipewright::comms
