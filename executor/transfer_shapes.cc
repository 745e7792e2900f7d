#include "pipewright/executor/transfer_shapes.h"

#include <ATen/ops/zeros.h>

#include <stdexcept>
#include <utility>

#include "pipewright/comms/poll.h"
#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/text/action_text.h"

namespace pipewright::executor {

TransferShapes::TransferShapes(comms::StorePtr store, std::string key, at::Device device,
                               OutputMetas output_metas)
    : store_(std::move(store)),
      key_(std::move(key)),
      device_(device),
      output_metas_(std::move(output_metas)) {}

void TransferShapes::forget() {
  ++generation_;
  for (auto& learned : learned_) learned.clear();
}

const TensorMetas* TransferShapes::find(ir::ActionPart receive) {
  auto& learned = learned_[with_backward_];
  const auto known = learned.find(receive);
  if (known != learned.end()) return &known->second;
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
  TensorMetas found = metas_of(tensors);
  if (!forward) {
    for (size_t i = 0; i < found.size(); ++i) found[i].requires_grad = tensors[i].defined();
  }
  auto& learned = learned_[with_backward_];
  if (!learned.contains(receive) && !output_metas_) {
    store_->set(key_of(receive), encode(found));
    learned.emplace(receive, std::move(found));
    return;
  }
  const TensorMetas& expected = *this->find(receive);
  const std::string where = "`" + ir::to_string(ir::Action(send)) + "`: expected ";
  const std::string what = forward ? "output" : "gradient";
  if (found.size() != expected.size()) {
    throw std::runtime_error(where + std::to_string(expected.size()) + " " + what + "s, got " +
                             std::to_string(found.size()));
  }
  for (size_t i = 0; i < found.size(); ++i) {
    const bool absent = !forward && !expected[i].requires_grad;
    if (!forward && !tensors[i].defined()) {
      if (!absent) {
        tensors[i] =
            at::zeros(expected[i].sizes, at::TensorOptions(expected[i].dtype).device(device_));
      }
    } else if (absent || found[i] != expected[i]) {
      throw std::runtime_error(where + what + " " + std::to_string(i) + " to be " +
                               (absent ? "undefined" : to_string(expected[i])) +
                               (output_metas_ ? " as in output_metas" : " as in the first step") +
                               ", got " + to_string(found[i]));
    }
  }
}

std::string TransferShapes::key_of(ir::ActionPart receive) const {
  return key_ + "/shapes/" + std::to_string(generation_) + (with_backward_ ? "/" : "/forward/") +
         ir::to_string(ir::Action(receive));
}

}  // namespace pipewright::executor
