#include "pipewright/comms/store_exchange.h"

#include <stdexcept>

namespace pipewright::comms {

StoreExchange::StoreExchange(World& world, const std::string& name,
                             std::optional<std::chrono::milliseconds> timeout)
    : world_(world),
      store_(world.store()->clone()),
      name_(world.unique_name("exchange/" + name)),
      timeout_(timeout.value_or(world.timeout())),
      generation_(world.failures().generation()) {}

std::string StoreExchange::key(int64_t number, int rank) const {
  return name_ + "/" + std::to_string(generation_) + "/" + std::to_string(number) + "/" +
         std::to_string(rank);
}

std::string StoreExchange::receive(int64_t number, int rank) {
  const std::string sent = key(number, rank);
  std::string text;
  const auto is_there = [&] {
    if (!store_->check({sent})) return false;
    text = store_->get_to_str(sent);
    return text != FailureDomain::kReleased;
  };
  if (is_there()) return text;
  try {
    return world_.failures().wait_for(sent, timeout_,
                                      "rank " + std::to_string(rank) +
                                          " did not get here: timed out after " +
                                          std::to_string(timeout_.count()) + " ms",
                                      store_.get());
  } catch (const std::exception&) {
    // Another rank may have left this exchange, with all texts, and failed after it.
    if (world_.failures().failed() && is_there()) return text;
    throw;
  }
}

std::vector<std::string> StoreExchange::operator()(const std::string& mine) {
  if (mine.size() > kMaxText)
    throw std::invalid_argument("exchange of texts: expected at most " + std::to_string(kMaxText) +
                                " bytes, got " + std::to_string(mine.size()));
  if (const int now = world_.failures().generation(); now != generation_) {
    generation_ = now;
    number_ = 0;
  }
  const int64_t number = number_++;
  store_->set(key(number, world_.rank()), mine);
  std::vector<std::string> texts;
  for (int rank = 0; rank < world_.size(); ++rank)
    texts.push_back(rank == world_.rank() ? mine : receive(number, rank));
  // All ranks are in this exchange, so none reads the previous one any more.
  if (number > 0) store_->deleteKey(key(number - 1, world_.rank()));
  return texts;
}

}  // namespace pipewright::comms
