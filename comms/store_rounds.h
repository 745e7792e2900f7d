#ifndef PIPEWRIGHT_COMMS_STORE_ROUNDS_H_
#define PIPEWRIGHT_COMMS_STORE_ROUNDS_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/comms/world.h"

namespace pipewright::comms {

// Votes of a fixed set of ranks through the store, one after the other: each rank brings a problem
// or none, and all leave with the same one. No tensor and no device is involved, so a vote may come
// before the first message of a step. For one thread at a time.
//
//   Vote vote(world, "executor.0.1", 2);
//   const std::string problem = vote.agree(wrong_batch ? "input 0: ..." : "", timeout);
class Vote {
 public:
  // `world` must outlive the object. `name` is a prefix in the store that only these `size` ranks
  // use, for this purpose.
  Vote(World& world, std::string name, int size);

  // Collective. Returns the problem of the first rank that brought one, or an empty string. Throws
  // std::runtime_error if the world fails, or if not all ranks vote within `timeout`. Either all
  // ranks return, or none does. After a failure ranks count their votes from the beginning.
  std::string agree(const std::string& problem, std::chrono::milliseconds timeout);

 private:
  std::string wait_for_result(const std::string& result, const std::string& voters, int64_t number,
                              std::chrono::milliseconds timeout);

  World& world_;
  const std::string name_;
  const int size_;
  int generation_ = 0;
  int64_t number_ = 0;    // of votes in this generation
  int64_t problems_ = 0;  // of these, that ended with a problem
};

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

#endif  // PIPEWRIGHT_COMMS_STORE_ROUNDS_H_
