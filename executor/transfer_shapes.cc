#include "pipewright/executor/transfer_shapes.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <stdexcept>
#include <utility>

#include "pipewright/comms/poll.h"
#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/text/action_text.h"

namespace pipewright::executor {

namespace {

// Of a gradient, requires_grad says whether it exists.
TensorMetas sent_metas(ir::ActionPart receive, const Tensors& tensors) {
  TensorMetas metas = metas_of(tensors);
  if (receive.kind() == ir::ActionKind::kRecvB) {
    for (size_t i = 0; i < metas.size(); ++i) metas[i].requires_grad = tensors[i].defined();
  }
  return metas;
}

// Whether `tensor` has this metadata; what is a gradient need not require one.
bool fits(const at::Tensor& tensor, const TensorMeta& meta, bool is_gradient) {
  return tensor.defined() && tensor.scalar_type() == meta.dtype && tensor.sizes() == meta.sizes &&
         (is_gradient || tensor.requires_grad() == meta.requires_grad);
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

void TransferShapes::forget() {
  ++generation_;
  for (auto& learned : learned_) learned.clear();
}

const TensorMetas* TransferShapes::find(ir::ActionPart receive) {
  auto& learned = learned_[with_backward_];
  const auto known = learned.find(receive);
  if (known != learned.end()) return &known->second;
  if (dynamic_) return nullptr;
  if (output_metas_) {
    // A RECV_F receives outputs of the previous stage, a RECV_B gradients of this stage's outputs.
    const bool forward = receive.kind() == ir::ActionKind::kRecvF;
    const int stage = forward ? receive.stage() - 1 : receive.stage();
    TensorMetas metas = output_metas_(stage, receive.microbatch());
    for (TensorMeta& meta : metas) meta.requires_grad = meta.requires_grad && with_backward_;
    return &(learned[receive] = std::move(metas));
  }
  const std::string key = key_of(receive);
  if (!store_->check({key})) return nullptr;
  return &(learned[receive] = decode(store_->get(key)));
}

void TransferShapes::wait(ir::ActionPart receive, std::chrono::milliseconds slice) const {
  constexpr int kPatience = 1;
  comms::poll(slice, kPatience, [&] { return store_->check({key_of(receive)}); });
}

void TransferShapes::conform(ir::ActionPart send, ir::ActionPart receive, Tensors& tensors) {
  const bool forward = send.kind() == ir::ActionKind::kSendF;
  auto& learned = learned_[with_backward_];
  if (!output_metas_ && !learned.contains(receive)) {
    TensorMetas found = sent_metas(receive, tensors);
    store_->set(key_of(receive), encode(found));
    learned.emplace(receive, std::move(found));
    return;
  }
  const TensorMetas& expected = *this->find(receive);
  const auto refuse = [&](const std::string& what) {
    throw std::runtime_error("`" + ir::to_string(ir::Action(send)) + "`: expected " + what);
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
  auto& learned = learned_[with_backward_];
  const auto [known, is_new] = learned.try_emplace(receive);
  at::Tensor header = at::zeros({kHeaderWords}, at::kLong);
  Tensors messages = {header};
  int64_t* words = header.data_ptr<int64_t>();
  if (!is_new && known->second == metas) {
    words[0] = kAsBefore;
  } else {
    const std::vector<uint8_t> bytes = encode(metas);
    const auto count = static_cast<int64_t>(bytes.size() / sizeof(int64_t));
    words[0] = count;
    int64_t* to = words + 1;
    if (count >= kHeaderWords)
      to = messages.emplace_back(at::empty({count}, at::kLong)).data_ptr<int64_t>();
    std::memcpy(to, bytes.data(), bytes.size());
    known->second = std::move(metas);
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
  learned_[with_backward_][receive] =
      decode({reinterpret_cast<const uint8_t*>(value.data()), value.size()});
}

void TransferShapes::learn_words(ir::ActionPart receive, const at::Tensor& words) {
  const auto* bytes = static_cast<const uint8_t*>(words.data_ptr());
  learned_[with_backward_][receive] = decode({bytes, words.nbytes()});
}

std::string TransferShapes::key_of(ir::ActionPart receive) const {
  return key_ + "/shapes/" + std::to_string(generation_) + (with_backward_ ? "/" : "/forward/") +
         ir::to_string(ir::Action(receive));
}

}  // namespace pipewright::executor
