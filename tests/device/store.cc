#include "tests/device/store.h"

#include <c10/util/Exception.h>

#include "tests/device/device.h"
#include "tests/device/scheduler.h"

namespace pipewright::testdevice {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll{5};

void announce_change() {
  const Lock lock(machine().mutex);
  announce();
}

}  // namespace

DeviceStore::DeviceStore(c10::intrusive_ptr<c10d::Store> store)
    : PrefixStore("", std::move(store)) {}

c10::intrusive_ptr<c10d::Store> DeviceStore::clone() {
  return c10::make_intrusive<DeviceStore>(store_);
}

void DeviceStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  PrefixStore::set(key, value);
  announce_change();
}

std::vector<uint8_t> DeviceStore::compareSet(const std::string& key,
                                             const std::vector<uint8_t>& expected,
                                             const std::vector<uint8_t>& value) {
  const std::vector<uint8_t> found = PrefixStore::compareSet(key, expected, value);
  announce_change();
  return found;
}

int64_t DeviceStore::add(const std::string& key, int64_t value) {
  const int64_t sum = PrefixStore::add(key, value);
  announce_change();
  return sum;
}

std::vector<uint8_t> DeviceStore::get(const std::string& key) {
  wait({key});
  return PrefixStore::get(key);
}

void DeviceStore::wait(const std::vector<std::string>& keys) { wait(keys, getTimeout()); }

void DeviceStore::wait(const std::vector<std::string>& keys,
                       const std::chrono::milliseconds& timeout) {
  if (!RankScope::is_entered()) return PrefixStore::wait(keys, timeout);
  if (wait_until(keys, steady_clock::now() + timeout)) return;
  C10_THROW_ERROR(DistStoreError, c10::str("wait timeout after ", timeout.count(),
                                           " ms, keys: ", c10::Join(", ", keys)));
}

bool DeviceStore::check(const std::vector<std::string>& keys) {
  if (!RankScope::is_entered()) return PrefixStore::check(keys);
  return wait_until(keys, steady_clock::now() + kPoll);
}

bool DeviceStore::wait_until(const std::vector<std::string>& keys,
                             steady_clock::time_point deadline) {
  Lock lock(machine().mutex);
  return wait_elsewhere(
      lock, [&] { return PrefixStore::check(keys); }, deadline);
}

}  // namespace pipewright::testdevice
