#ifndef PIPEWRIGHT_COMMS_STORE_ADDRESS_H_
#define PIPEWRIGHT_COMMS_STORE_ADDRESS_H_

#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "pipewright/comms/process/environment.h"

namespace pipewright::comms {

// The address at which all ranks look for the store that rank 0 hosts. If it is not rank 0's, the
// others would try to connect until the time limit.
class StoreAddress {
 public:
  // `options` are those of this rank's connection.
  StoreAddress(const Environment& environment, const c10d::TCPStoreOptions& options);

  // What keys in the store begin with, so that a restarted job does not read old ones.
  std::string prefix() const;

  // Rank 0, with the store that it hosts: throws std::invalid_argument that names the variable,
  // what it means and what this host is, after telling those who can be told: ranks that reach the
  // store all the same, and those on this host.
  void check(const c10::intrusive_ptr<c10d::Store>& store) const;

  // Other ranks, while they cannot connect: throws std::runtime_error if rank 0, on the same host,
  // has found that the address is wrong.
  void throw_if_wrong();

 private:
  std::string difference(c10d::Store& store) const;
  std::string key() const;

  const Environment environment_;
  c10d::TCPStoreOptions options_;
  bool may_listen_here_;
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_STORE_ADDRESS_H_
