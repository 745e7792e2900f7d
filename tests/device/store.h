#ifndef PIPEWRIGHT_TESTS_DEVICE_STORE_H_
#define PIPEWRIGHT_TESTS_DEVICE_STORE_H_

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

namespace pipewright::testdevice {

// The store of ranks that are threads. The device knows which of them wait for a key, so its order
// of execution does not depend on how long threads take (scheduler.h).
class DeviceStore final : public c10d::PrefixStore {
 public:
  explicit DeviceStore(
      c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>());

  c10::intrusive_ptr<Store> clone() override;

  using Store::compareSet;
  using Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& value) override;
  int64_t add(const std::string& key, int64_t value) override;

  std::vector<uint8_t> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  // A rank that polls for a key waits for it a little.
  bool check(const std::vector<std::string>& keys) override;

 private:
  bool wait_until(const std::vector<std::string>& keys,
                  std::chrono::steady_clock::time_point deadline);
};

}  // namespace pipewright::testdevice

#endif  // PIPEWRIGHT_TESTS_DEVICE_STORE_H_
