#include "pipewright/checkpoint/async_saver.h"

#include <utility>

namespace pipewright::checkpoint {

AsyncSaver::AsyncSaver(SaverOptions options, Exchange exchange)
    : saver_(std::move(options), std::move(exchange)) {}

void AsyncSaver::start(std::shared_ptr<const Snapshot> snapshot) {
  wait();
  saving_ = std::async(std::launch::async, [this, snapshot = std::move(snapshot)]() mutable {
    const std::shared_ptr<const Snapshot> saved = std::move(snapshot);
    return saver_.save(*saved);
  });
}

std::filesystem::path AsyncSaver::wait() {
  return saving_.valid() ? saving_.get() : std::filesystem::path();
}

}  // namespace pipewright::checkpoint
