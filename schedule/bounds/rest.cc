#include "pipewright/schedule/bounds/rest.h"

namespace pipewright::schedule {
namespace {

std::vector<MemoryItem> weighed(const std::vector<UnfinishedItem>& items, Ticks share) {
  std::vector<MemoryItem> all;
  all.reserve(items.size());
  for (const UnfinishedItem& item : items)
    all.push_back({item.size, share * item.inputs + kWholeShare * item.weights, item.count});
  return all;
}

}  // namespace

RestAtShare::RestAtShare(const std::vector<UnfinishedItem>& items, Memory largest, Ticks share)
    : share_(share), items_(weighed(items, share), largest) {}

Ticks RestAtShare::scaled(Ticks chain, Ticks inputs, Ticks weights, Memory capacity) const {
  return share_ * (chain - inputs) - kWholeShare * weights - items_.most_work(capacity);
}

Ticks unscaled(Ticks scaled) {
  return scaled > 0 ? (scaled + kWholeShare - 1) / kWholeShare : scaled / kWholeShare;
}

}  // namespace pipewright::schedule
