// A c10d backend that forwards every call to another one.
//
// Idea: one macro defines each method that returns a Work. It packs the forwarded call, with copies
// of its arguments, into a closure; pass() records the call, asks the injector, and runs the
// closure now or later. A held call is forwarded right after the next call of the same backend, or
// as soon as its Work is used, whichever is first, so at most one call is held and none is lost.
//
// Invariant: every call that is not refused is forwarded exactly once. Complexity: constant per
// call, and one record of memory.
#include "tests/support/recording/recording_backend.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <thread>

#include "pipewright/comms/torch_gaps/forwarding_backend.h"

namespace pipewright::comms {
namespace {

using Clock = std::chrono::steady_clock;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensor = at::Tensor;
using Tensors = std::vector<Tensor>;
using Lists = std::vector<Tensors>;
using Sizes = std::vector<int64_t>;
using OptionsPtr = c10::intrusive_ptr<c10d::Backend::Options>;

int64_t bytes_of(const Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }
template <typename List>
int64_t bytes_of(const List& list) {
  int64_t sum = 0;
  for (const auto& element : list) sum += bytes_of(element);
  return sum;
}

// The Work of a call that is forwarded late, completes late, or fails.
class FaultyWork final : public c10d::Work {
 public:
  FaultyWork(std::function<WorkPtr()> forward, Clock::time_point earliest, std::exception_ptr error)
      : forward_(std::move(forward)), earliest_(earliest), error_(std::move(error)) {}

  void forward() {
    if (!inner_) inner_ = forward_();
  }

  bool wait(std::chrono::milliseconds timeout) override {
    forward();
    const bool done = inner_->wait(timeout);
    std::this_thread::sleep_until(earliest_);
    if (error_) std::rethrow_exception(error_);
    return done;
  }
  bool isCompleted() override {
    forward();
    return inner_->isCompleted() && Clock::now() >= earliest_;
  }
  bool isSuccess() const override { return !error_ && inner_ && inner_->isSuccess(); }
  std::exception_ptr exception() const override {
    return error_ || !inner_ ? error_ : inner_->exception();
  }
  std::vector<at::Tensor> result() override {
    forward();
    return inner_->result();
  }
  void synchronize() override {
    forward();
    inner_->synchronize();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    forward();
    return inner_->getFuture();
  }

 private:
  const std::function<WorkPtr()> forward_;
  const Clock::time_point earliest_;
  const std::exception_ptr error_;
  WorkPtr inner_;
};

class RecordingBackend final : public ForwardingBackend {
 public:
  RecordingBackend(BackendPtr inner, std::shared_ptr<CallLog> log, Injector injector)
      : ForwardingBackend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        log_(std::move(log)),
        injector_(std::move(injector)) {
    pg_uid_ = inner_->getGroupUid();
    pg_desc_ = inner_->getGroupDesc();
    bound_device_id_ = inner_->getBoundDeviceId();
  }

  // The operations. The arguments of the macro are the method, its parameters, its arguments, and
  // the remaining fields of the record. A call is forwarded with copies of its arguments because it
  // may be held.
#define PIPEWRIGHT_RECORD(op, parameters, arguments, ...)                       \
  WorkPtr op parameters override {                                              \
    return pass({rank_, #op, __VA_ARGS__},                                      \
                [=, inner = inner_]() mutable { return inner->op arguments; }); \
  }
#define PW_COLLECTIVE(op, parameters, arguments, input, output) \
  PIPEWRIGHT_RECORD(op, parameters, arguments, bytes_of(a))
#include "pipewright/comms/torch_gaps/collectives.def"
  PIPEWRIGHT_RECORD(send, (Tensors & a, int to, int tag), (a, to, tag), bytes_of(a), to, tag)
  PIPEWRIGHT_RECORD(recv, (Tensors & a, int from, int tag), (a, from, tag), bytes_of(a), from, tag)
  PIPEWRIGHT_RECORD(recvAnysource, (Tensors & a, int tag), (a, tag), bytes_of(a), -1, tag)
  PIPEWRIGHT_RECORD(barrier, (const c10d::BarrierOptions& o), (o), 0)
  PIPEWRIGHT_RECORD(endCoalescing, (), (), 0)
#undef PIPEWRIGHT_RECORD

  // A backend created from this one uses the same log.
  BackendPtr split(const StorePtr& store, const std::vector<int>& ranks,
                   const OptionsPtr& options) override {
    return wrap(inner_->split(store, ranks, options));
  }
  BackendPtr merge(const StorePtr& store, const OptionsPtr& options, const int& rank,
                   const int& size) override {
    return wrap(inner_->merge(store, options, rank, size));
  }
  BackendPtr shrink(const Sizes& without, int flags, const OptionsPtr& options) override {
    return wrap(inner_->shrink(without, flags, options));
  }
  void setGroupUid(const std::string& uid) override {
    c10d::Backend::setGroupUid(uid);
    inner_->setGroupUid(uid);
  }
  void abort() override { inner_->abort(); }
  void shutdown() override { inner_->shutdown(); }

 private:
  BackendPtr inner() const override { return inner_; }
  BackendPtr wrap(const BackendPtr& made) const {
    return made ? record(made, log_, injector_) : nullptr;
  }

  WorkPtr pass(CallRecord call, std::function<WorkPtr()> forward) {
    const Clock::time_point start = Clock::now();
    call = log_->add(std::move(call));
    const Fault fault = injector_ ? injector_(call) : Fault{};
    const std::runtime_error error("injected failure of rank " + std::to_string(rank_) + ", " +
                                   call.op + " " + std::to_string(call.number));
    std::this_thread::sleep_for(fault.delay);
    if (fault.refuse) throw error;
    c10::intrusive_ptr<FaultyWork> faulty;
    WorkPtr work;
    if (fault.hold || fault.fail_work || fault.work_delay.count() > 0) {
      faulty = c10::make_intrusive<FaultyWork>(
          std::move(forward), start + fault.work_delay,
          fault.fail_work ? std::make_exception_ptr(error) : nullptr);
      if (!fault.hold) faulty->forward();
      work = faulty;
    } else {
      work = forward();
    }
    if (held_) std::exchange(held_, nullptr)->forward();
    if (fault.hold) held_ = faulty;
    return work;
  }

  const BackendPtr inner_;
  const std::shared_ptr<CallLog> log_;
  const Injector injector_;
  c10::intrusive_ptr<FaultyWork> held_;  // forwarded after the next call
};

}  // namespace

CallRecord CallLog::add(CallRecord call) {
  const std::lock_guard lock(mutex_);
  call.number = ++numbers_[{call.rank, call.op}];
  return calls_.emplace_back(std::move(call));
}

std::vector<CallRecord> CallLog::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

int64_t CallLog::count(const std::string& op) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::count(calls_, op, &CallRecord::op);
}

int64_t CallLog::bytes(const std::string& op) const {
  const std::lock_guard lock(mutex_);
  int64_t sum = 0;
  for (const CallRecord& call : calls_) sum += call.op == op ? call.bytes : 0;
  return sum;
}

void CallLog::clear() {
  const std::lock_guard lock(mutex_);
  calls_.clear();
  numbers_.clear();
}

BackendPtr record(const BackendPtr& backend, std::shared_ptr<CallLog> log, Injector injector) {
  return c10::make_intrusive<RecordingBackend>(backend, std::move(log), std::move(injector));
}

}  // namespace pipewright::comms
