#include "pipewright/checkpoint/async_saver.h"

#include <exception>
#include <utility>

namespace pipewright::checkpoint {

AsyncSaver::AsyncSaver(SaverOptions options, Exchange exchange)
    : saver_(std::move(options), std::move(exchange)) {}

void AsyncSaver::start(std::shared_ptr<const Snapshot> snapshot, std::function<void()> copy) {
  wait();
  std::promise<void> copied;
  copied_ = copied.get_future();
  saving_ =
      std::async(std::launch::async, [this, snapshot = std::move(snapshot), copy = std::move(copy),
                                      copied = std::move(copied)]() mutable {
        const std::shared_ptr<const Snapshot> saved = std::move(snapshot);
        std::exception_ptr error;
        try {
          if (copy) copy();
        } catch (...) {
          error = std::current_exception();
        }
        copied.set_value();
        copy = nullptr;  // it may own memory
        return saver_.save(*saved, error);
      });
}

void AsyncSaver::wait_copied() {
  if (copied_.valid()) copied_.get();
}

std::filesystem::path AsyncSaver::wait() {
  return saving_.valid() ? saving_.get() : std::filesystem::path();
}

}  // namespace pipewright::checkpoint
