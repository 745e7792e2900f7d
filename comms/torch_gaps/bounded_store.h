#ifndef PIPEWRIGHT_COMMS_TORCH_GAPS_BOUNDED_STORE_H_
#define PIPEWRIGHT_COMMS_TORCH_GAPS_BOUNDED_STORE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "pipewright/comms/process/private_sockets.h"

namespace pipewright::comms {

// A connection to a TCPStore whose requests always end. torch's own waits for an answer without a
// limit, so a server whose process has stopped, or whose host has vanished, blocks every rank.
//
// A request that is not answered within a limit, by default the timeout of the options, throws
// std::runtime_error, as does one whose connection breaks; if the server's host vanishes, it breaks
// within 15 s (sockets.h). The connection is then closed, because a late answer would be taken
// for that of the next request, and all later requests throw at once.
// wait() and get() have their own timeout, and throw torch's c10::DistStoreError when it is over.
// A child that the server's process forks does not keep the server's sockets open.
// Thread-safe; requests of several threads run one after the other.
class BoundedStore final : public c10d::PrefixStore {
 public:
  // Connects, or throws std::runtime_error. Keys are prefixed by `prefix`. `owner` is whose process
  // hosts the server, for errors: "rank 0". That process connects over loopback, whatever `host`
  // is. Calls `meanwhile` once a second until it is connected, and throws what that throws.
  BoundedStore(const std::string& prefix, const std::string& host, const std::string& owner,
               const c10d::TCPStoreOptions& options,
               const std::function<void()>& meanwhile = nullptr);

  // The server's, as they were given to the constructor.
  const std::string& host() const { return host_; }
  const std::string& owner() const { return owner_; }
  // Whether this process hosts it.
  bool is_server() const { return options_.isServer; }

  // Replaces the limit of later requests, of this store and of its clones.
  void limit_requests(std::chrono::milliseconds limit) { *limit_ms_ = limit.count(); }

  // Ends the request that another thread waits for, and all later ones.
  void close();

  // Another connection to the same server.
  c10::intrusive_ptr<Store> clone() override;

  using Store::compareSet;
  using Store::set;
  using Bytes = std::vector<uint8_t>;
  using Keys = std::vector<std::string>;
  void set(const std::string& key, const Bytes& value) override;
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& value) override;
  Bytes get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const Keys& keys) override;
  int64_t getNumKeys() override;
  void wait(const Keys& keys) override;
  void wait(const Keys& keys, const std::chrono::milliseconds& timeout) override;

 private:
  struct Connection {
    c10::intrusive_ptr<c10d::TCPStore> store;
    std::vector<int> sockets;
  };
  using Limit = std::shared_ptr<std::atomic<int64_t>>;
  BoundedStore(const std::string& prefix, const std::string& host, const std::string& owner,
               const c10d::TCPStoreOptions& options, Connection connection, Limit limit_ms);
  static Connection connect(const std::string& host, bool over_loopback,
                            const c10d::TCPStoreOptions& options,
                            const std::function<void()>& meanwhile = nullptr);
  template <typename Request>
  auto bounded(const Request& request);

  const std::string host_, owner_;
  const c10d::TCPStoreOptions options_;
  const std::vector<int> sockets_;            // owned by the TCPStore, and open as long as it lives
  std::optional<PrivateServer> server_;       // of the store that started it, not of its clones
  const Limit limit_ms_;                      // shared with clones
  std::atomic<int64_t> socket_limit_ms_ = 0;  // what the sockets have; 0: none
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_TORCH_GAPS_BOUNDED_STORE_H_
