#include "pipewright/tp/rank_generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>

namespace pipewright::tp {
namespace {

// The engine behind a generator mixes the bits of its seed, so seeds may be close.
uint64_t seed_of(const c10d::Backend& group) {
  at::Generator generator = autograd::cpu_generator();
  const std::lock_guard lock(generator.mutex());
  auto* const same = at::check_generator<at::CPUGeneratorImpl>(generator);
  return same->random64() + static_cast<uint64_t>(group.getRank());
}

}  // namespace

RankGenerator::RankGenerator(const c10d::Backend& group) : scope_(seed_of(group)) {}

}  // namespace pipewright::tp
