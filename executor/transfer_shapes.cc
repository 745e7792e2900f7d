#include "pipewright/executor/transfer_shapes.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "pipewright/comms/process/sockets.h"
#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/text/action_text.h"

namespace pipewright::executor {

namespace {

// For a gradient, requires_grad says whether it exists.
TensorMetas sent_metas(ir::ActionPart receive, const Tensors& tensors) {
  TensorMetas metas = metas_of(tensors);
  if (receive.kind() == ir::ActionKind::kRecvB) {
    for (size_t i = 0; i < metas.size(); ++i) metas[i].requires_grad = tensors[i].defined();
  }
  return metas;
}

// Whether `tensor` can be sent where this metadata is expected. A gradient need not require one,
// and nor need an output whose stage is frozen now.
bool fits(const at::Tensor& tensor, const TensorMeta& meta, bool is_gradient) {
  if (!tensor.defined()) return meta.dtype == at::ScalarType::Undefined;
  return tensor.scalar_type() == meta.dtype && tensor.sizes() == meta.sizes &&
         (is_gradient || !tensor.requires_grad() || meta.requires_grad);
}

bool is_differentiable(const TensorMeta& meta) {
  return at::isFloatingType(meta.dtype) || at::isComplexType(meta.dtype);
}

// The first word of a header: the number of words that follow, in it or in a second message.
constexpr int64_t kAsBefore = 0;

}  // namespace

TransferShapes::TransferShapes(comms::StorePtr store, std::string key, at::Device device,
                               OutputMetas output_metas, bool dynamic)
    : store_(std::move(store)),
      key_(std::move(key)),
      device_(device),
      output_metas_(std::move(output_metas)),
      dynamic_(dynamic) {}

void TransferShapes::begin_step(bool with_backward) {
  with_backward_ = with_backward;
  ++step_;
}

void TransferShapes::forget(bool with_backward) { learned_[with_backward].clear(); }

void TransferShapes::reset() {
  ++generation_;
  step_ = 0;
  for (auto& learned : learned_) learned.clear();
}

bool TransferShapes::misses(ir::ActionPart receive, const TensorMetas& metas) const {
  if (receive.kind() == ir::ActionKind::kRecvF) {
    return std::ranges::any_of(
        metas, [](const TensorMeta& meta) { return meta.dtype == at::ScalarType::Undefined; });
  }
  // The gradients of what the next stage has received.
  const auto outputs = learned_[with_backward_].find(
      {ir::ActionKind::kRecvF, receive.stage() + 1, receive.microbatch()});
  if (outputs == learned_[with_backward_].end()) return false;
  for (size_t i = 0; i < metas.size() && i < outputs->second.metas.size(); ++i) {
    if (outputs->second.metas[i].requires_grad && !metas[i].requires_grad) return true;
  }
  return false;
}

const TensorMetas* TransferShapes::current(ir::ActionPart receive) const {
  const auto known = learned_[with_backward_].find(receive);
  if (known == learned_[with_backward_].end()) return nullptr;
  const auto& [metas, step, has_missed] = known->second;
  if (step == step_ || dynamic_ || output_metas_ || !with_backward_) return &metas;
  const bool may_be_trained = receive.kind() == ir::ActionKind::kRecvF &&
                              std::ranges::none_of(metas, &TensorMeta::requires_grad) &&
                              std::ranges::any_of(metas, is_differentiable);
  return has_missed || may_be_trained || misses(receive, metas) ? nullptr : &metas;
}

void TransferShapes::know(ir::ActionPart receive, TensorMetas metas) {
  Known& known = learned_[with_backward_][receive];
  known.has_missed = known.has_missed || misses(receive, metas);
  known.metas = std::move(metas);
  known.step = step_;
}

const TensorMetas* TransferShapes::find(ir::ActionPart receive) {
  const TensorMetas* known = current(receive);
  if (known || dynamic_) return known;
  if (output_metas_) {
    // A RECV_F receives outputs of the previous stage, a RECV_B gradients of this stage's outputs.
    const bool forward = receive.kind() == ir::ActionKind::kRecvF;
    const int stage = forward ? receive.stage() - 1 : receive.stage();
    TensorMetas metas = output_metas_(stage, receive.microbatch());
    for (TensorMeta& meta : metas) meta.requires_grad = meta.requires_grad && with_backward_;
    know(receive, std::move(metas));
  } else {
    const std::string key = key_of(receive);
    if (!store_->check({key})) return nullptr;
    const std::vector<uint8_t> value = store_->get(key);
    learn(receive, {value.begin(), value.end()});
  }
  return current(receive);
}

void TransferShapes::wait(ir::ActionPart receive, std::chrono::milliseconds slice) const {
  constexpr int kPatience = 1;
  comms::poll(slice, kPatience, [&] { return store_->check({key_of(receive)}); });
}

void TransferShapes::conform(ir::ActionPart send, ir::ActionPart receive, Tensors& tensors) {
  const bool forward = send.kind() == ir::ActionKind::kSendF;
  if (!output_metas_ && !current(receive)) {
    TensorMetas found = sent_metas(receive, tensors);
    store_->set(key_of(receive), encode(found));
    know(receive, std::move(found));
    return;
  }
  const TensorMetas& expected = *this->find(receive);
  const auto refuse = [&](const std::string& what) {
    throw std::runtime_error(
        "`" + ir::to_string(ir::Action(send)) + "`: expected " + what +
        (output_metas_ ? ""
                       : "; before a step with others, call forget_shapes() on all ranks, or set "
                         "dynamic_shapes"));
  };
  const std::string what = forward ? "output" : "gradient";
  if (tensors.size() != expected.size()) {
    refuse(std::to_string(expected.size()) + " " + what + "s, got " +
           std::to_string(tensors.size()));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorMeta& meta = expected[i];
    const bool absent = !forward && !meta.requires_grad;
    if (!forward && !tensors[i].defined()) {
      if (!absent)
        tensors[i] = at::zeros(meta.sizes, at::TensorOptions(meta.dtype).device(device_));
    } else if (absent || !fits(tensors[i], meta, /*is_gradient=*/!forward)) {
      refuse(what + " " + std::to_string(i) + " to be " + (absent ? "undefined" : to_string(meta)) +
             (output_metas_ ? " as in output_metas" : " as in the first step") + ", got " +
             to_string(sent_metas(receive, tensors)[i]));
    }
  }
}

Tensors TransferShapes::header(ir::ActionPart receive, const Tensors& tensors) {
  TensorMetas metas = sent_metas(receive, tensors);
  const TensorMetas* known = current(receive);
  at::Tensor header = at::zeros({kHeaderWords}, at::kLong);
  Tensors messages = {header};
  int64_t* words = header.data_ptr<int64_t>();
  if (known && *known == metas) {
    words[0] = kAsBefore;
  } else {
    const std::vector<uint8_t> bytes = encode(metas);
    const auto count = static_cast<int64_t>(bytes.size() / sizeof(int64_t));
    words[0] = count;
    int64_t* to = words + 1;
    if (count >= kHeaderWords)
      to = messages.emplace_back(at::empty({count}, at::kLong)).data_ptr<int64_t>();
    std::memcpy(to, bytes.data(), bytes.size());
    know(receive, std::move(metas));
  }
  // Without waiting for the device: memory that is not page-locked has been read on return.
  for (at::Tensor& message : messages) message = message.to(device_, /*non_blocking=*/true);
  return messages;
}

int64_t TransferShapes::read_header(ir::ActionPart receive, const at::Tensor& header) {
  const int64_t count = header.data_ptr<int64_t>()[0];
  if (count >= kHeaderWords) return count;
  if (count != kAsBefore) learn_words(receive, header.narrow(0, 1, count));
  return 0;
}

void TransferShapes::read_rest(ir::ActionPart receive, const at::Tensor& rest) {
  learn_words(receive, rest);
}

void TransferShapes::learn(ir::ActionPart receive, const std::string& value) {
  const bool is_again = learned_[with_backward_].contains(receive);
  know(receive, decode({reinterpret_cast<const uint8_t*>(value.data()), value.size()}));
  // No other rank reads it, and what is learned in every step would pile up.
  if (is_again) store_->deleteKey(key_of(receive));
}

void TransferShapes::learn_words(ir::ActionPart receive, const at::Tensor& words) {
  const auto* bytes = static_cast<const uint8_t*>(words.data_ptr());
  know(receive, decode({bytes, words.nbytes()}));
}

std::string TransferShapes::key_of(ir::ActionPart receive) const {
  return key_ + "/shapes/" + std::to_string(generation_) + "/" + std::to_string(step_) + "/" +
         ir::to_string(ir::Action(receive));
}

}  // namespace pipewright::executor
