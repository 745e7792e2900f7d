#include "pipewright/executor/transfers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "pipewright/ir/errors.h"
#include "pipewright/ir/text/action_text.h"

namespace pipewright::executor {
namespace {

std::string quoted(ir::ActionPart action) { return "`" + ir::to_string(ir::Action(action)) + "`"; }

// The result that comes back for what a SEND_F sent: once it is here, that has gone.
ir::ActionPart answer_to(ir::ActionPart receive_b) {
  return {ir::ActionKind::kSendF, receive_b.stage(), receive_b.microbatch()};
}

}  // namespace

Transfers::Transfers(const ir::Placement& placement, comms::Channels& channels,
                     comms::StorePtr store, std::string key, Options options)
    : placement_(placement),
      channels_(channels),
      store_(std::move(store)),
      key_(std::move(key)),
      options_(std::move(options)) {}

void Transfers::begin_step(bool with_backward) { with_backward_ = with_backward; }

void Transfers::forget_shapes() {
  ++generation_;
  for (auto& learned : learned_) learned.clear();
}

void Transfers::post_send(ir::ActionPart send, Tensors tensors) {
  conform(send, tensors);
  enqueue(send, std::move(tensors));
}

void Transfers::post_receive(ir::ActionPart receive) { enqueue(receive, {}); }

Tensors Transfers::wait_receive(ir::ActionPart receive) {
  const Clock::time_point deadline = Clock::now() + options_.timeout;
  auto posted = receives_.find(receive);
  while (posted == receives_.end()) {
    if (num_pending_ == 0)
      throw ContractError("its input was not received: there is no " + quoted(receive) +
                          " before it");
    flush_all();
    posted = receives_.find(receive);
    if (posted == receives_.end()) pause(deadline, receive);
  }
  wait(posted->second, receive);
  Tensors tensors = std::move(posted->second.tensors);
  receives_.erase(posted);
  if (receive.kind() == ir::ActionKind::kRecvB) {
    const auto sent = sends_.find(answer_to(receive));
    if (sent != sends_.end()) {
      wait(sent->second, sent->first);
      sends_.erase(sent);
    }
  }
  return tensors;
}

void Transfers::finish() {
  const Clock::time_point deadline = Clock::now() + options_.timeout;
  while (num_pending_ > 0) {
    const ir::ActionPart action = [&] {
      for (const auto& [index, queue] : queues_) {
        if (!queue.empty()) return queue.front().action;
      }
      return ir::ActionPart();
    }();
    flush_all();
    if (num_pending_ > 0) pause(deadline, action);
  }
  for (auto& [action, posted] : receives_) wait(posted, action);
  for (auto& [action, posted] : sends_) wait(posted, action);
  receives_.clear();
  sends_.clear();
  sends_to_.clear();
}

void Transfers::clear() {
  queues_.clear();
  num_pending_ = 0;
  receives_.clear();
  sends_.clear();
  sends_to_.clear();
}

ir::Transfer Transfers::transfer_of(ir::ActionPart action) const {
  const std::optional<ir::Transfer> transfer = ir::partner_of(action, placement_);
  if (!transfer) throw ContractError(quoted(action) + " meets no stage");
  return *transfer;
}

void Transfers::enqueue(ir::ActionPart action, Tensors tensors) {
  const ir::Transfer transfer = transfer_of(action);
  const bool is_send = ir::is_send(action.kind());
  const int peer = is_send ? transfer.to : transfer.from;
  std::deque<Pending>& queue =
      queues_[ir::queue_index(options_.channels, static_cast<uint32_t>(peer), is_send)];
  queue.push_back({action, std::move(tensors)});
  ++num_pending_;
  flush_all();
}

void Transfers::flush_all() {
  if (num_pending_ == 0) return;
  for (auto& [index, queue] : queues_) flush(queue);
}

void Transfers::flush(std::deque<Pending>& queue) {
  while (!queue.empty() && post(queue.front())) {
    queue.pop_front();
    --num_pending_;
  }
}

// False for a RECV whose shapes are not known yet.
bool Transfers::post(Pending& pending) {
  if (ir::is_send(pending.action.kind())) {
    post(pending.action, std::move(pending.tensors));
    return true;
  }
  const ir::Transfer transfer = transfer_of(pending.action);
  const TensorMetas* expected = metas(pending.action);
  if (!expected) return false;
  const auto [place, is_new] = receives_.try_emplace(pending.action);
  if (!is_new) throw ContractError(quoted(pending.action) + " is posted a second time");
  Posted& posted = place->second;
  const bool forward = pending.action.kind() == ir::ActionKind::kRecvF;
  for (size_t i = 0; i < expected->size(); ++i) {
    const TensorMeta& meta = (*expected)[i];
    at::Tensor& tensor = posted.tensors.emplace_back();
    if (!forward && !meta.requires_grad) continue;
    tensor = at::empty(meta.sizes, at::TensorOptions(meta.dtype).device(options_.device));
    if (tensor.numel() > 0)
      posted.works.push_back(channels_.receive(tensor, transfer.from, tag(transfer.receive, i)));
    if (forward) tensor.set_requires_grad(meta.requires_grad);
  }
  return true;
}

void Transfers::post(ir::ActionPart send, Tensors tensors) {
  const ir::Transfer transfer = transfer_of(send);
  // Those that have gone need not be kept.
  std::deque<ir::ActionPart>& order = sends_to_[transfer.to];
  for (; !order.empty(); order.pop_front()) {
    const auto sent = sends_.find(order.front());
    if (sent == sends_.end()) continue;
    const auto has_ended = [](const auto& work) { return work->isCompleted(); };
    if (!std::ranges::all_of(sent->second.works, has_ended)) break;
    wait(sent->second, sent->first);  // it may have ended with an error
    sends_.erase(sent);
  }
  order.push_back(send);
  const auto [place, is_new] = sends_.try_emplace(send);
  if (!is_new) throw ContractError(quoted(send) + " is posted a second time");
  Posted& posted = place->second;
  posted.tensors = std::move(tensors);
  for (size_t i = 0; i < posted.tensors.size(); ++i) {
    at::Tensor& tensor = posted.tensors[i];
    if (!tensor.defined() || tensor.numel() == 0) continue;
    tensor = tensor.detach().contiguous();
    posted.works.push_back(channels_.send(tensor, transfer.to, tag(transfer.receive, i)));
  }
}

const TensorMetas* Transfers::metas(ir::ActionPart receive) {
  auto& learned = learned_[with_backward_];
  const auto known = learned.find(receive);
  if (known != learned.end()) return &known->second;
  if (options_.output_metas) {
    // What comes is the output of the stage before, or the gradient of this stage's own.
    const bool forward = receive.kind() == ir::ActionKind::kRecvF;
    const int stage = forward ? receive.stage() - 1 : receive.stage();
    TensorMetas metas = options_.output_metas(stage, receive.microbatch());
    for (TensorMeta& meta : metas) meta.requires_grad = meta.requires_grad && with_backward_;
    return &(learned[receive] = std::move(metas));
  }
  const std::string key = shape_key(receive);
  if (!store_->check({key})) return nullptr;
  return &(learned[receive] = decode(store_->get(key)));
}

std::string Transfers::shape_key(ir::ActionPart receive) const {
  return key_ + "/shapes/" + std::to_string(generation_) + (with_backward_ ? "/" : "/forward/") +
         ir::to_string(ir::Action(receive));
}

// Sees that they are what the receiver expects; the first time, it is told.
void Transfers::conform(ir::ActionPart send, Tensors& tensors) {
  const ir::ActionPart receive = transfer_of(send).receive;
  const bool forward = send.kind() == ir::ActionKind::kSendF;
  TensorMetas found = metas_of(tensors);
  if (!forward) {
    for (size_t i = 0; i < found.size(); ++i) found[i].requires_grad = tensors[i].defined();
  }
  auto& learned = learned_[with_backward_];
  if (!learned.contains(receive) && !options_.output_metas) {
    store_->set(shape_key(receive), encode(found));
    learned.emplace(receive, std::move(found));
    return;
  }
  const TensorMetas& wanted = *metas(receive);
  const std::string what = quoted(send) + (forward ? ": output" : ": gradient");
  if (found.size() != wanted.size()) {
    throw std::runtime_error(what + "s are " + std::to_string(found.size()) + ", wanted " +
                             std::to_string(wanted.size()));
  }
  for (size_t i = 0; i < found.size(); ++i) {
    if (!forward && !tensors[i].defined()) {
      if (wanted[i].requires_grad) {
        tensors[i] =
            at::zeros(wanted[i].sizes, at::TensorOptions(wanted[i].dtype).device(options_.device));
      }
    } else if (!forward && !wanted[i].requires_grad) {
      throw std::runtime_error(what + " " + std::to_string(i) +
                               " is there, and was not in the first step");
    } else if (found[i] != wanted[i]) {
      throw std::runtime_error(what + " " + std::to_string(i) + " is " + to_string(found[i]) +
                               ", wanted " + to_string(wanted[i]) +
                               (options_.output_metas ? ", as given" : ", as in the first step"));
    }
  }
}

void Transfers::wait(Posted& posted, ir::ActionPart action) const {
  const ir::Transfer transfer = transfer_of(action);
  const bool is_send = ir::is_send(action.kind());
  for (const auto& work : posted.works) {
    try {
      // On a device this orders the current stream behind it; with a time NCCL would block the
      // host.
      options_.device.is_cpu() ? work->wait(options_.timeout) : work->wait();
    } catch (const std::exception& error) {
      throw std::runtime_error(quoted(action) + " waits for " +
                               quoted(is_send ? transfer.receive : transfer.send) + " of rank " +
                               std::to_string(is_send ? transfer.to : transfer.from) + ": " +
                               error.what());
    }
  }
}

void Transfers::pause(Clock::time_point deadline, ir::ActionPart action) const {
  if (options_.check_peers) options_.check_peers();
  if (Clock::now() > deadline) {
    const ir::Transfer transfer = transfer_of(action);
    throw std::runtime_error(quoted(action) + " waits for " + quoted(transfer.send) + " of rank " +
                             std::to_string(transfer.from) + ", which was not posted within " +
                             std::to_string(options_.timeout.count()) + " ms");
  }
  std::this_thread::sleep_for(std::chrono::microseconds(200));
}

// Unique as far as an int reaches; equal tags would still meet in order.
int Transfers::tag(ir::ActionPart receive, size_t tensor) const {
  const auto stages = static_cast<uint64_t>(placement_.num_stages());
  uint64_t tag = static_cast<uint64_t>(receive.microbatch());
  tag = tag * stages + static_cast<uint64_t>(receive.stage());
  tag = tag * 2 + (receive.kind() == ir::ActionKind::kRecvB ? 1 : 0);
  tag = tag * 16 + std::min<size_t>(tensor, 15);
  return static_cast<int>(tag % (uint64_t{1} << 31));
}

}  // namespace pipewright::executor
