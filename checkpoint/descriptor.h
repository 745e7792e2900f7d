#ifndef PIPEWRIGHT_CHECKPOINT_DESCRIPTOR_H_
#define PIPEWRIGHT_CHECKPOINT_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace pipewright::checkpoint {

// Owns a file descriptor. Move-only; negative if it has none.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }
  // Returns false, with errno set, if written data could not be stored.
  bool close() { return ::close(std::exchange(number_, -1)) == 0; }

 private:
  int number_;
};

}  // namespace pipewright::checkpoint

#endif  // PIPEWRIGHT_CHECKPOINT_DESCRIPTOR_H_
