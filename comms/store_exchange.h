#ifndef PIPEWRIGHT_COMMS_STORE_EXCHANGE_H_
#define PIPEWRIGHT_COMMS_STORE_EXCHANGE_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/comms/world.h"

namespace pipewright::comms {

// An all-gather of texts over all ranks of a world, through the store: no tensor, no device and no
// process group is involved. Also a barrier.
//
//   StoreExchange exchange(world, "checkpoint");
//   const std::vector<std::string> names = exchange(my_name);  // by rank
//
// For one thread at a time, which may be another one than that of the world: an exchange has its
// own connection to the store.
class StoreExchange {
 public:
  // A text that a TCPStore carries.
  static constexpr size_t kMaxText = 8'000'000;

  // `world` must outlive the object. Ranks create their exchanges of one name in the same order.
  // The timeout, by default the world's, is that of the wait for each other rank.
  StoreExchange(World& world, const std::string& name,
                std::optional<std::chrono::milliseconds> timeout = {});

  // Collective. Throws std::runtime_error if the world fails, or if a rank does not take part in
  // time; std::invalid_argument if `mine` is longer than kMaxText. Once it has returned on a rank,
  // it returns on all, even if the world fails then.
  std::vector<std::string> operator()(const std::string& mine);

 private:
  std::string key(int64_t number, int rank) const;
  std::string receive(int64_t number, int rank);

  World& world_;
  // A wait occupies its connection, and steps of the executor wait through the world's.
  const StorePtr store_;
  const std::string name_;
  const std::chrono::milliseconds timeout_;
  int generation_ = 0;  // of the world: ranks count again after a reset
  int64_t number_ = 0;  // of exchanges in this generation
};

}  // namespace pipewright::comms

#endif  // PIPEWRIGHT_COMMS_STORE_EXCHANGE_H_
