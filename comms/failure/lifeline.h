#ifndef PIPEWRIGHT_COMMS_FAILURE_LIFELINE_H_
#define PIPEWRIGHT_COMMS_FAILURE_LIFELINE_H_

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace pipewright::comms {

// Tells rank 0 when the process of another rank ends without saying so, for example because it was
// killed.
//
// Each process keeps a TCP connection to that of rank 0, which the kernel closes when the process
// ends. While all other ranks wait in the store, nothing else would show that: the store does not
// tell which of its clients are gone. A process that only stops or hangs keeps its connection. A
// host that vanishes closes none, which is noticed within 15 s (sockets.h). Children that the
// process forks do not keep it alive.
//
// Thread-safe, except that connect() is for one thread at a time.
class Lifeline {
 public:
  // The key by which rank 0 tells where it listens: HOST PORT.
  static constexpr const char* kKey = "lifeline";

  // Collective over all ranks: rank 0 listens on a free port, and tells the others in `store`,
  // which connect. `store_host` is a name or address that all ranks can reach, and need not be rank
  // 0's. Throws std::runtime_error if rank 0 cannot be found or reached within `timeout`.
  Lifeline(int rank, c10d::Store& store, const std::string& store_host,
           std::chrono::milliseconds timeout);
  // A clean end, which rank 0 does not report.
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  // Ranks other than 0: replaces the connection, which may have broken; often only one end knows.
  // Rank 0 tells connections apart by `attempt`; that of the first one is 0. Throws
  // std::runtime_error if rank 0 cannot be reached within `timeout`.
  void connect(int attempt, std::chrono::milliseconds timeout);
  // Rank 0: whether the connection that `rank` made in that attempt has arrived. Earlier ones no
  // longer count then. Does not wait.
  bool has_connected(int rank, int attempt);
  // Rank 0: the ranks whose connections have closed, in this order, except after a clean end and
  // except those that have connected again. Other ranks: none. Does not wait.
  std::vector<int> broken();

 private:
  // Owns a file descriptor.
  class Socket {
   public:
    Socket() = default;
    explicit Socket(int descriptor);
    ~Socket();
    Socket(Socket&& other) noexcept;
    Socket& operator=(Socket&& other) noexcept;
    int get() const { return descriptor_; }
    bool is_open() const { return descriptor_ >= 0; }

   private:
    int descriptor_ = -1;
  };
  // One that rank 0 has accepted.
  struct Connection {
    Socket socket;
    std::string received;  // a Hello, and after a clean end one byte more

    void read();
  };
  static Socket listen_on_free_port();
  void end();
  void read_connections();

  const int rank_;
  std::string host_, port_;  // of rank 0
  Socket own_;               // of other ranks: to rank 0
  std::mutex mutex_;         // guards all below, which rank 0 has
  Socket listener_;
  std::vector<Connection> strangers_;      // have not sent their Hello yet
  std::map<int, Connection> connections_;  // the latest of each rank, open or closed
  std::vector<int> broken_;
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_FAILURE_LIFELINE_H_
