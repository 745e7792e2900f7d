#ifndef PIPEWRIGHT_COMMS_LIFELINE_H_
#define PIPEWRIGHT_COMMS_LIFELINE_H_

#include <chrono>
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
// host that vanishes closes none; TCP's keepalive notices it within about 15 s.
//
// For one thread at a time.
class Lifeline {
 public:
  // Collective over all ranks: rank 0 listens on a free port, and tells the others in `store`.
  // `store_host` is a name or address that all ranks can reach, and need not be rank 0's. Throws
  // std::runtime_error if rank 0 cannot be found or reached within `timeout`.
  Lifeline(int rank, c10d::Store& store, const std::string& store_host,
           std::chrono::milliseconds timeout);
  // A clean end, which rank 0 does not report.
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  // Rank 0: the ranks whose connections have closed since the last call, except after a clean end.
  // Other ranks: none. Does not wait.
  std::vector<int> broken();

 private:
  struct Connection {
    int socket;
    std::string received;  // a rank in four bytes, and after a clean end one byte more
  };
  void listen(c10d::Store& store, const std::string& store_host);
  void connect(int rank, c10d::Store& store, std::chrono::milliseconds timeout);

  int listener_ = -1;                    // of rank 0
  std::vector<Connection> connections_;  // likewise
  int own_ = -1;                         // of other ranks: to rank 0
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_LIFELINE_H_
