#include "pipewright/tp/rank_generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>

#include <functional>
#include <mutex>
#include <string_view>

namespace pipewright::tp {
namespace {

uint64_t draw_on_cpu() {
  at::Generator generator = autograd::cpu_generator();
  const std::lock_guard lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

// A generator's state is in the memory of the host.
uint64_t hash(const at::Tensor& state) {
  return std::hash<std::string_view>()(
      {static_cast<const char*>(state.const_data_ptr()), state.nbytes()});
}

}  // namespace

// The engines behind the generators mix the bits of their seeds, so seeds may be close.
RankGenerator::RankGenerator(const c10d::Backend& group, at::Device device) {
  const auto rank = static_cast<uint64_t>(group.getRank());
  if (device.is_cpu()) {
    scope_.emplace(draw_on_cpu() + rank);
    return;
  }
  generator_ = at::globalContext().defaultGenerator(device);
  const uint64_t seed = hash(state_of(generator_)) + rank;
  // Without this number, two objects in a row would have the same seed.
  at::empty({1}, at::TensorOptions(device).dtype(at::kFloat)).uniform_();
  state_ = state_of(generator_);
  const std::lock_guard lock(generator_.mutex());
  generator_.set_current_seed(seed);
}

RankGenerator::~RankGenerator() {
  if (!generator_.defined()) return;
  const std::lock_guard lock(generator_.mutex());
  generator_.set_state(state_);
}

}  // namespace pipewright::tp
