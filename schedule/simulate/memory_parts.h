#ifndef PIPEWRIGHT_SCHEDULE_SIMULATE_MEMORY_PARTS_H_
#define PIPEWRIGHT_SCHEDULE_SIMULATE_MEMORY_PARTS_H_

#include <array>
#include <cstddef>
#include <iterator>
#include <string_view>

// What the memory of a rank is used for. A plain value.
//
//   MemoryParts parts;
//   parts[MemoryUse::kReceive] += 8388608;
//   parts.sum()  8388608

namespace pipewright::schedule {

// memory_model.h says from when to when each is in use.
enum class MemoryUse { kParameters, kUnsharded, kGradients, kOptimizer, kReceive, kActivations };
// Their names, in reports.
inline constexpr std::string_view kMemoryUses[] = {"parameters", "unsharded", "gradients",
                                                   "optimizer",  "receive",   "activations"};

// Bytes by use.
struct MemoryParts {
  std::array<double, std::size(kMemoryUses)> bytes = {};

  double& operator[](MemoryUse use) { return bytes[static_cast<size_t>(use)]; }
  double operator[](MemoryUse use) const { return bytes[static_cast<size_t>(use)]; }

  MemoryParts& operator+=(const MemoryParts& other) {
    for (size_t use = 0; use < bytes.size(); ++use) bytes[use] += other.bytes[use];
    return *this;
  }

  double sum() const {
    double sum = 0;
    for (const double part : bytes) sum += part;
    return sum;
  }

  friend bool operator==(const MemoryParts&, const MemoryParts&) = default;
};

}  // namespace pipewright::schedule

#endif  // PIPEWRIGHT_SCHEDULE_SIMULATE_MEMORY_PARTS_H_
