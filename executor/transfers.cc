// Idea: each SEND and RECV enters its queue of the channel model (ir::queue_index). Flushing a
// queue posts the operation at its head to its channel, as long as that operation can be posted. A
// SEND can always be posted, a RECV once its shapes are known. A queue is flushed when an operation
// enters it as its head; all are flushed in a wait. Posting never blocks the host.
//
// Invariant: the operations of a queue reach the backend in program order. NCCL has no tags, so
// only this order ensures that the k-th SEND of an ordered pair of ranks meets its k-th RECV. Once
// all shapes are known, after the first step, every queue is empty again after each post.
//
// Complexity: O(log n) per operation with n in flight. While shapes are missing, a wait blocks in
// the store until those that it needs are there. So a transfer costs a handful of requests, however
// long it takes. Only in the models in which a SEND may be behind a RECV, it polls instead, at
// intervals that double, and looks at the heads of the other queues every 2 to 250 ms.
#include "pipewright/executor/transfers.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "pipewright/ir/errors.h"
#include "pipewright/ir/text/action_text.h"

namespace pipewright::executor {
namespace {

std::string quoted(ir::ActionPart action) { return "`" + ir::to_string(ir::Action(action)) + "`"; }

constexpr size_t kHeaderTag = 15;
constexpr std::chrono::milliseconds kFirstSlice{2}, kSlice{250};

// What a backend can send, which reads the tensor's memory as it is.
at::Tensor plain(const at::Tensor& tensor, at::MemoryFormat format) {
  at::Tensor result = tensor.requires_grad() ? tensor.detach() : tensor;
  if (result.is_conj()) result = result.resolve_conj();
  if (result.is_neg()) result = result.resolve_neg();
  return result.contiguous(format);
}

// The memory of a tensor in this format, as a contiguous tensor.
at::Tensor memory_of(const at::Tensor& tensor, at::MemoryFormat format) {
  if (format == at::MemoryFormat::ChannelsLast) return tensor.permute({0, 2, 3, 1});
  if (format == at::MemoryFormat::ChannelsLast3d) return tensor.permute({0, 2, 3, 4, 1});
  return tensor;
}

// Returns the SEND_F of the output whose gradient `receive_b` receives. Once the gradient has
// arrived, that SEND is done.
ir::ActionPart answered_by(ir::ActionPart receive_b) {
  return {ir::ActionKind::kSendF, receive_b.stage(), receive_b.microbatch()};
}

}  // namespace

Transfers::Transfers(const ir::Placement& placement, comms::Channels& channels,
                     comms::StorePtr store, std::string key, Options options)
    : placement_(placement),
      channels_(channels),
      options_(std::move(options)),
      shapes_(std::move(store), std::move(key), options_.device, options_.output_metas,
              options_.dynamic_shapes) {}

template <typename Body>
auto Transfers::naming_peer(ir::ActionPart action, const Body& body) const {
  try {
    return body();
  } catch (const std::exception& error) {
    throw std::runtime_error(waiting(action) + ": " + error.what());
  }
}

void Transfers::post_send(ir::ActionPart send, Tensors tensors) {
  if (!shapes_.dynamic()) shapes_.conform(send, transfer_of(send).receive, tensors);
  enqueue(send, std::move(tensors));
}

void Transfers::post_receive(ir::ActionPart receive) { enqueue(receive, {}); }

Tensors Transfers::wait_receive(ir::ActionPart receive) {
  began_to_wait(receive);
  const Clock::time_point deadline = Clock::now() + options_.timeout;
  std::chrono::milliseconds slice = kFirstSlice;
  auto posted = receives_.find(receive);
  while (posted == receives_.end()) {
    if (num_pending_ == 0)
      throw ContractError("its input was not received, expected " + quoted(receive) + " before it");
    if (shapes_.dynamic()) {
      std::deque<Pending>& queue = queue_of(receive);
      if (!queue.empty()) wait_header(queue.front());
    }
    flush_all();
    posted = receives_.find(receive);
    if (posted == receives_.end()) pause(deadline, receive, &slice);
  }
  wait(posted->second, receive);
  if (options_.on_received) options_.on_received(receive);
  Tensors tensors = std::move(posted->second.tensors);
  receives_.erase(posted);
  if (receive.kind() == ir::ActionKind::kRecvB) {
    const auto sent = sends_.find(answered_by(receive));
    if (sent != sends_.end()) {
      wait(sent->second, sent->first);
      sends_.erase(sent);
    }
  }
  return tensors;
}

void Transfers::wait_send(ir::ActionPart send) {
  const Clock::time_point deadline = Clock::now() + options_.timeout;
  std::chrono::milliseconds slice = kFirstSlice;
  // It may be behind RECVs whose shapes are not known yet.
  const std::deque<Pending>& queue = queue_of(send);
  while (std::ranges::find(queue, send, &Pending::action) != queue.end()) {
    began_to_wait(queue.front().action);
    flush_all();
    if (!queue.empty()) pause(deadline, queue.front().action, &slice);
  }
  // It has finished already if its answer has arrived, or a later SEND to the same rank found it
  // so.
  const auto sent = sends_.find(send);
  if (sent == sends_.end()) return;
  wait(sent->second, send);
  sends_.erase(sent);
}

void Transfers::finish() {
  const Clock::time_point deadline = Clock::now() + options_.timeout;
  std::chrono::milliseconds slice = kFirstSlice;
  while (num_pending_ > 0) {
    const auto waiting =
        std::ranges::find_if(queues_, [](const auto& indexed) { return !indexed.second.empty(); });
    Pending& head = waiting->second.front();
    const ir::ActionPart action = head.action;
    began_to_wait(action);
    if (shapes_.dynamic()) wait_header(head);
    flush_all();
    if (num_pending_ > 0) pause(deadline, action, &slice);
  }
  for (auto& [action, posted] : receives_) {
    wait(posted, action);
    if (options_.on_received) options_.on_received(action);
  }
  for (auto& [action, posted] : sends_) wait(posted, action);
  receives_.clear();
  sends_.clear();
  sends_to_.clear();
}

void Transfers::clear() {
  running_ = {};
  // An aborted RECV may still be writing, and the allocator does not know of it (channels.h).
  if (!options_.device.is_cpu()) {
    const auto order = [](const WorkPtr& work) {
      try {
        if (work) work->synchronize();
      } catch (const std::exception&) {  // a consequence of the failure
      }
    };
    for (const auto& [action, posted] : receives_) std::ranges::for_each(posted.works, order);
    for (const auto& [index, queue] : queues_)
      for (const Pending& pending : queue) order(pending.header_work);
  }
  queues_.clear();
  num_pending_ = 0;
  receives_.clear();
  sends_.clear();
  sends_to_.clear();
}

ir::Transfer Transfers::transfer_of(ir::ActionPart action) const {
  const std::optional<ir::Transfer> transfer = ir::partner_of(action, placement_);
  if (!transfer) throw ContractError(quoted(action) + " has no partner on another rank");
  return *transfer;
}

std::deque<Transfers::Pending>& Transfers::queue_of(ir::ActionPart action) {
  const ir::Transfer transfer = transfer_of(action);
  const bool is_send = ir::is_send(action.kind());
  const int peer = is_send ? transfer.to : transfer.from;
  return queues_[ir::queue_index(options_.channels, static_cast<uint32_t>(peer), is_send)];
}

void Transfers::enqueue(ir::ActionPart action, Tensors tensors) {
  std::deque<Pending>& queue = queue_of(action);
  queue.push_back({action, std::move(tensors)});
  ++num_pending_;
  running_ = action;
  if (options_.watchdog) options_.watchdog->transfer(action, Progress::Transfer::kQueued);
  if (queue.size() == 1) flush(queue);
  running_ = {};
}

void Transfers::flush_all() {
  if (num_pending_ == 0) return;
  for (auto& [index, queue] : queues_) flush(queue);
}

void Transfers::flush(std::deque<Pending>& queue) {
  while (!queue.empty() && post(queue.front())) {
    if (options_.watchdog)
      options_.watchdog->transfer(queue.front().action, Progress::Transfer::kPosted);
    queue.pop_front();
    --num_pending_;
  }
}

// Returns false for a RECV whose shapes are not known yet.
bool Transfers::post(Pending& pending) {
  if (ir::is_send(pending.action.kind())) {
    post_now(pending.action, std::move(pending.tensors));
    return true;
  }
  const ir::Transfer transfer = transfer_of(pending.action);
  if (shapes_.dynamic()) {
    post_header(pending);
    if (!pending.is_read && !pending.header_work->isCompleted()) return false;
    wait_header(pending);
  }
  const TensorMetas* expected = shapes_.find(pending.action);
  if (!expected) return false;
  const auto [place, is_new] = receives_.try_emplace(pending.action);
  if (!is_new) throw ContractError(quoted(pending.action) + " is already posted in this step");
  Posted& posted = place->second;
  const bool forward = pending.action.kind() == ir::ActionKind::kRecvF;
  std::vector<comms::Channels::Message> messages;
  for (size_t i = 0; i < expected->size(); ++i) {
    const TensorMeta& meta = (*expected)[i];
    at::Tensor& tensor = posted.tensors.emplace_back();
    if ((!forward && !meta.requires_grad) || meta.dtype == at::ScalarType::Undefined) continue;
    tensor = at::empty(meta.sizes, at::TensorOptions(meta.dtype).device(options_.device),
                       meta.memory_format);
    if (tensor.numel() > 0)
      messages.push_back({memory_of(tensor, meta.memory_format), tag(transfer.receive, i)});
  }
  posted.works =
      naming_peer(pending.action, [&] { return channels_.receive(messages, transfer.from); });
  for (size_t i = 0; forward && i < expected->size(); ++i) {
    if (posted.tensors[i].defined())
      posted.tensors[i].set_requires_grad((*expected)[i].requires_grad);
  }
  return true;
}

void Transfers::post_header(Pending& pending) {
  if (pending.header.defined()) return;
  const ir::Transfer transfer = transfer_of(pending.action);
  pending.header = at::empty({TransferShapes::kHeaderWords},
                             at::TensorOptions(at::kLong).device(options_.device));
  pending.header_work = naming_peer(pending.action, [&] {
    return channels_.receive(pending.header, transfer.from, tag(transfer.receive, kHeaderTag));
  });
}

// Waits for the header of the head of a queue, so that its RECV can be posted.
void Transfers::wait_header(Pending& pending) {
  if (pending.is_read || ir::is_send(pending.action.kind())) return;
  post_header(pending);
  const ir::Transfer transfer = transfer_of(pending.action);
  wait_for(pending.header_work, pending.action);
  const int64_t words = shapes_.read_header(pending.action, on_host(pending.header));
  if (words > 0) {
    const at::Tensor rest =
        at::empty({words}, at::TensorOptions(at::kLong).device(options_.device));
    wait_for(channels_.receive(rest, transfer.from, tag(transfer.receive, kHeaderTag)),
             pending.action);
    shapes_.read_rest(pending.action, on_host(rest));
  }
  pending.is_read = true;
}

// What is aborted on a device ends as well, and leaves anything in the message. But groups are
// aborted after the failure is known, so it is looked at after the copy.
at::Tensor Transfers::on_host(const at::Tensor& message) const {
  unlock();
  at::Tensor copy = message.cpu();
  options_.failures->throw_if_failed();
  return copy;
}

void Transfers::post_now(ir::ActionPart send, Tensors tensors) {
  const ir::Transfer transfer = transfer_of(send);
  release_sent(transfer.to);
  sends_to_[transfer.to].push_back(send);
  const auto [place, is_new] = sends_.try_emplace(send);
  if (!is_new) throw ContractError(quoted(send) + " is already posted in this step");
  Posted& posted = place->second;
  posted.tensors = std::move(tensors);
  Tensors headers;
  if (shapes_.dynamic()) headers = post_headers(send, posted);
  std::vector<comms::Channels::Message> messages;
  const TensorMetas& metas = *shapes_.find(transfer.receive);
  for (size_t i = 0; i < posted.tensors.size(); ++i) {
    at::Tensor& tensor = posted.tensors[i];
    if (!tensor.defined() || tensor.numel() == 0) continue;
    tensor = plain(tensor, metas[i].memory_format);
    messages.push_back({memory_of(tensor, metas[i].memory_format), tag(transfer.receive, i)});
  }
  Works works = naming_peer(send, [&] { return channels_.send(messages, transfer.to); });
  std::ranges::move(works, std::back_inserter(posted.works));
  std::ranges::move(headers, std::back_inserter(posted.tensors));
  // On a CPU the backend keeps what it sends, and frees it as soon as it is sent.
  if (options_.device.is_cpu()) posted.tensors.clear();
}

Tensors Transfers::post_headers(ir::ActionPart send, Posted& posted) {
  const ir::Transfer transfer = transfer_of(send);
  Tensors headers = shapes_.header(transfer.receive, posted.tensors);
  for (const at::Tensor& header : headers) {
    posted.works.push_back(naming_peer(send, [&] {
      return channels_.send(header, transfer.to, tag(transfer.receive, kHeaderTag));
    }));
  }
  return headers;
}

// Releases the tensors of SENDs to this peer that are done, oldest first. A rank that is faster
// than its peer, in an evaluation, say, would keep the tensors of all SENDs, so it waits for the
// oldest: on a device its current stream does.
void Transfers::release_sent(int peer) {
  constexpr size_t kMostUnsent = 16;
  std::deque<ir::ActionPart>& order = sends_to_[peer];
  for (; !order.empty(); order.pop_front()) {
    const auto sent = sends_.find(order.front());
    if (sent == sends_.end()) continue;
    const auto is_done = [](const auto& work) { return work->isCompleted(); };
    const bool waits = options_.is_proved && order.size() >= kMostUnsent;
    if (!waits && !std::ranges::all_of(sent->second.works, is_done)) break;
    wait(sent->second, sent->first);  // throws if it ended with an error
    sends_.erase(sent);
  }
}

// After an error the report still says what this rank waited for.
void Transfers::wait(Posted& posted, ir::ActionPart action) {
  began_to_wait(action);
  for (const WorkPtr& work : posted.works) wait_for(work, action);
  if (options_.watchdog) options_.watchdog->done(action);
}

void Transfers::began_to_wait(ir::ActionPart action) const {
  if (options_.watchdog) options_.watchdog->wait_for(action);
}

void Transfers::wait_for(const WorkPtr& work, ir::ActionPart action) const {
  if (options_.device.is_cpu() && !work->isCompleted()) unlock();
  naming_peer(action, [&] {
    // On a device this makes the current stream wait; given a timeout, NCCL would block the host.
    return options_.device.is_cpu() ? work->wait(options_.timeout) : work->wait();
  });
}

std::string Transfers::waiting(ir::ActionPart action) const {
  const ir::Transfer transfer = transfer_of(action);
  const bool is_send = ir::is_send(action.kind());
  return (action == running_ ? "" : quoted(action) + " ") + "waits for " +
         quoted(is_send ? transfer.receive : transfer.send) + " of rank " +
         std::to_string(world_rank(is_send ? transfer.to : transfer.from));
}

// Waits until the shapes of the head of this action's queue are known, or for a while: another
// queue may have become able to go on.
void Transfers::pause(Clock::time_point deadline, ir::ActionPart action,
                      std::chrono::milliseconds* slice) {
  unlock();
  options_.failures->throw_if_failed();
  if (Clock::now() > deadline) throw std::runtime_error(not_posted(action));
  const std::deque<Pending>& queue = queue_of(action);
  if (shapes_.dynamic() || queue.empty()) return;
  const ir::ActionPart head = queue.front().action;
  // In the edge model no SEND waits behind a RECV, so the other queues can wait as well.
  if (options_.channels == ir::ChannelModel::kEdge) {
    // Rounded up: no wait ends before its limit.
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    const std::string key = shapes_.key_of(head);
    shapes_.learn(head, options_.failures->wait_for(key, left, not_posted(head)));
    return;
  }
  shapes_.wait(head, *slice);
  *slice = std::min(2 * *slice, kSlice);
}

std::string Transfers::not_posted(ir::ActionPart receive) const {
  return waiting(receive) + ", which was not posted within " +
         std::to_string(options_.timeout.count()) + " ms";
}

int Transfers::world_rank(int rank) const { return options_.ranks[static_cast<size_t>(rank)]; }

// Unique unless it exceeds the range of int; operations with equal tags still meet in posting
// order.
int Transfers::tag(ir::ActionPart receive, size_t tensor) const {
  const auto stages = static_cast<uint64_t>(placement_.num_stages());
  uint64_t tag = static_cast<uint64_t>(receive.microbatch());
  tag = tag * stages + static_cast<uint64_t>(receive.stage());
  tag = tag * 2 + (receive.kind() == ir::ActionKind::kRecvB ? 1 : 0);
  tag = tag * 16 + std::min<size_t>(tensor, 15);
  return static_cast<int>(tag % (uint64_t{1} << 31));
}

}  // namespace pipewright::executor
