// Hangs made on purpose: on every rank that lives, the report names the rank and the action that
// cause it, whoever notices it first. Ranks are threads; kill_test stops processes.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <future>
#include <regex>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "pipewright/comms/failure/failure_domain.h"
#include "pipewright/comms/group.h"
#include "pipewright/comms/process/steady_seconds.h"
#include "pipewright/comms/threads/threads.h"
#include "pipewright/executor/executor.h"
#include "tests/executor/small_pipelines.h"
#include "tests/executor/trainer.h"
#include "tests/support/ranks/ranks.h"

namespace pipewright::executor {
namespace {

using ir::ActionKind;
using std::chrono::milliseconds;

constexpr milliseconds kTimeout{2000};
constexpr int64_t kStep = 1;  // the step that hangs

// Does not return before the hang has been noticed.
void sleep_forever(comms::World& world) {
  while (!world.failures().failed()) std::this_thread::sleep_for(milliseconds(10));
  throw std::runtime_error("woken by the end of the test");
}

struct Rank {
  int rank;
  comms::World& world;
  Trainer& trainer;
};

using Parts = std::vector<std::string>;
const Parts kUnverified = {"the program, which was not verified and is not valid"};

struct Hang {
  std::string name;
  ir::Program program;
  int copies = 1;
  Parallel parallel = Parallel::kNone;
  // Trains step `step` on one rank.
  std::function<void(const Rank&, int64_t step)> train;
  std::vector<Parts> culprits;  // of each line that names them; there are no others
  bool is_unverified = false;
  std::function<comms::World(const comms::World&)> wrap = nullptr;
  comms::StorePtr store = nullptr;
  // Of one rank, if it differs.
  std::function<ir::Program(int rank)> program_of = nullptr;
};

// In step kStep, `function` runs instead of the actions of this kind on this rank.
std::function<void(const Rank&, int64_t)> at(
    int rank, ActionKind kind, std::function<void(const ActionContext&, comms::World&)> function) {
  return [=](const Rank& own, int64_t step) {
    if (own.rank == rank && step == kStep) {
      own.trainer.executor->set_function(
          kind, [=](const ActionContext& context) { function(context, own.world); });
    }
    own.trainer.train(step);
  };
}

Hang sleeping(ActionKind kind, const char* schedule, int rank, Parallel parallel,
              const std::string& action) {
  return {.name = "sleeps in " + action,
          .program = named(schedule, 2, 4),
          .copies = parallel == Parallel::kNone ? 1 : 2,
          .parallel = parallel,
          .train = at(rank, kind,
                      [](const ActionContext&, comms::World& world) { sleep_forever(world); }),
          .culprits = {{"rank " + std::to_string(rank) + " (", "`" + action + "` has not ended"}}};
}

// Sends nothing.
class NeverSent final : public c10d::Work {
 public:
  bool isCompleted() override { return false; }
  bool wait(std::chrono::milliseconds) override { return true; }
};

class DeadLink final : public c10d::Backend {
 public:
  explicit DeadLink(comms::BackendPtr inner)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}
  const std::string getBackendName() const override { return "dead"; }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    if (++num_sent_ <= kSent) return inner_->send(tensors, to, tag);
    return c10::make_intrusive<NeverSent>();
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from,
                                      int tag) override {
    return inner_->recv(tensors, from, tag);
  }
  void abort() override { inner_->abort(); }

 private:
  static constexpr int kSent = 7;  // the one that connects, 4 of step 0, 2 of step 1
  const comms::BackendPtr inner_;
  int num_sent_ = 0;
};

// Every rank reads rank 0's digest as everyone's, so that different programs are not noticed.
class BypassedDigest final : public c10d::HashStore {
 public:
  std::vector<uint8_t> get(const std::string& key) override {
    const size_t digest = key.find("/digest/");
    const bool is_read = digest == std::string::npos || key.ends_with("read");
    return HashStore::get(is_read ? key : key.substr(0, digest) + "/digest/0");
  }
};

void move_before(ir::Row* row, const ir::Action& action, const ir::Action& other) {
  std::erase(*row, action);
  row->insert(std::ranges::find(*row, other), action);
}

std::vector<Hang> hangs() {
  std::vector<Hang> hangs = {
      sleeping(ActionKind::kForward, "1F1B", 0, Parallel::kNone, "0F0"),
      sleeping(ActionKind::kForward, "1F1B", 3, Parallel::kReplicate, "1F0"),
      sleeping(ActionKind::kBackward, "1F1B", 2, Parallel::kReplicate, "1B0"),
      sleeping(ActionKind::kBackwardInput, "InterleavedZeroBubble", 1, Parallel::kNone, "3I0"),
      sleeping(ActionKind::kBackwardWeight, "InterleavedZeroBubble", 0, Parallel::kNone, "2W0"),
      sleeping(ActionKind::kSendF, "1F1B", 0, Parallel::kNone, "0SEND_F0"),
      sleeping(ActionKind::kRecvF, "1F1B", 1, Parallel::kNone, "1RECV_F0"),
      sleeping(ActionKind::kSendB, "1F1B", 1, Parallel::kNone, "1SEND_B0"),
      sleeping(ActionKind::kRecvB, "1F1B", 0, Parallel::kNone, "0RECV_B0"),
      sleeping(ActionKind::kUnshard, "1F1B", 1, Parallel::kShard, "0UNSHARD"),
      sleeping(ActionKind::kReshard, "Interleaved1F1B", 2, Parallel::kShard, "3RESHARD"),
      sleeping(ActionKind::kReduceGrad, "1F1B", 1, Parallel::kReplicate, "0REDUCE_GRAD"),
  };
  hangs.push_back({.name = "a hook that hangs after its action",
                   .program = named("1F1B", 3, 4),
                   .train = at(1, ActionKind::kForward,
                               [](const ActionContext& context, comms::World& world) {
                                 context.run_default();
                                 if (context.action() == ir::Action(ActionKind::kForward, 1, 2))
                                   sleep_forever(world);
                               }),
                   .culprits = {{"rank 1 (", "`1F2` has not ended"}}});
  hangs.push_back(
      {.name = "two ranks at once",
       .program = named("GPipe", 4, 2),
       .train =
           [](const Rank& own, int64_t step) {
             // Rank 3 has what it needs for its first microbatch, and no more.
             const int microbatch = own.rank == 1 ? 1 : 0;
             at(own.rank == 1 ? 1 : 3, ActionKind::kForward,
                [=](const ActionContext& context, comms::World& world) {
                  context.run_default();
                  if (context.action().parts()[0].microbatch() == microbatch) sleep_forever(world);
                })(own, step);
           },
       .culprits = {{"rank 1 (", "`1F1` has not ended"}, {"rank 3 (", "`3F0` has not ended"}}});
  hangs.push_back(
      {.name = "a SEND that is left out",
       .program = named("1F1B", 2, 4),
       .train = at(0, ActionKind::kSendF,
                   [](const ActionContext& context, comms::World&) {
                     if (context.action().parts()[0].microbatch() != 3) context.run_default();
                   }),
       .culprits = {{"rank 0 (", "`0SEND_F3` was left out", "waits for it in `1RECV_F3`"}}});
  hangs.push_back({.name = "a collective that one rank skips",
                   .program = named("1F1B", 2, 2),
                   .copies = 2,
                   .parallel = Parallel::kReplicate,
                   .train =
                       [](const Rank& own, int64_t step) {
                         own.trainer.executor->set_function(
                             ActionKind::kForward, [&own, step](const ActionContext& context) {
                               const comms::BackendPtr group = own.trainer.mesh.group({"dp"});
                               std::vector<at::Tensor> sum = {at::zeros({1})};
                               if (own.rank != 1 || step != kStep) group->allreduce(sum)->wait();
                               context.run_default();
                             });
                         own.trainer.train(step);
                       },
                   .culprits = {{"rank 1 (", "left out allreduce",
                                 "rank 0 waits for at step 1, action", "`0F0`"}}});
  const ir::Program whole = named("1F1B", 2, 2);
  const auto train = [](const Rank& own, int64_t step) { own.trainer.train(step); };
  ir::Program changed = whole;
  std::erase(changed.rows[0], ir::Action(ActionKind::kSendF, 0, 1));
  hangs.push_back(
      {.name = "a RECV without SEND",
       .program = changed,
       .train = train,
       .culprits = {{"rank 1 (",
                     "`1RECV_F1` waits for `0SEND_F1`, which the program of rank 0 does "
                     "not have"},
                    kUnverified},
       .is_unverified = true});
  changed = whole;
  std::erase(changed.rows[0], ir::Action(ActionKind::kRecvB, 0, 1));
  std::erase(changed.rows[0], ir::Action(ActionKind::kBackward, 0, 1));
  hangs.push_back(
      {.name = "a SEND without RECV",
       .program = changed,
       .train = train,
       .culprits = {{"rank 1 (",
                     "`1SEND_B1` waits for `0RECV_B1`, which the program of rank 0 does "
                     "not have"},
                    kUnverified},
       .is_unverified = true});
  changed = whole;
  move_before(&changed.rows[0], ir::Action(ActionKind::kRecvB, 0, 0),
              ir::Action(ActionKind::kSendF, 0, 0));
  move_before(&changed.rows[0], ir::Action(ActionKind::kBackward, 0, 0),
              ir::Action(ActionKind::kSendF, 0, 0));
  hangs.push_back(
      {.name = "a deadlock of the program",
       .program = changed,
       .train = train,
       .culprits = {{"rank 0 (", "rank 1 (", "wait for each other: deadlock"}, kUnverified},
       .is_unverified = true});
  hangs.push_back(
      {.name = "different programs behind a digest that is bypassed",
       .program = named("1F1B", 2, 4),
       .train = train,
       .culprits = {{"rank 0 (", "rank 1 (", "run different programs"}},
       .store = c10::make_intrusive<BypassedDigest>(),
       .program_of = [](int rank) { return named(rank == 0 ? "1F1B" : "GPipe", 2, 4); }});
  hangs.push_back(
      {.name = "a link that is dead",
       .program = named("1F1B", 2, 4),
       .train = train,
       .culprits = {{"rank 0 (", "rank 1 (",
                     "`0SEND_F2` and `1RECV_F2` of step 1, but the transfer does not end"}},
       .wrap = [](const comms::World& world) {
         return world.wrapped([](const comms::BackendPtr& backend) -> comms::BackendPtr {
           if (backend->getRank() != 0) return backend;
           return c10::make_intrusive<DeadLink>(backend);
         });
       }});
  hangs.push_back({.name = "a rank that does not begin the step",
                   .program = named("1F1B", 2, 4),
                   .copies = 2,
                   .parallel = Parallel::kReplicate,
                   .train =
                       [](const Rank& own, int64_t step) {
                         if (own.rank == 2 && step == kStep) sleep_forever(own.world);
                         own.trainer.train(step);
                       },
                   .culprits = {{"rank 2 (", "is between two steps, and has not begun step 1"}}});
  hangs.push_back({.name = "a rank that evaluates",
                   .program = named("1F1B", 2, 4),
                   .train =
                       [](const Rank& own, int64_t step) {
                         if (own.rank != 1 || step != kStep) return own.trainer.train(step);
                         own.trainer.executor->eval(own.trainer.batch(step));
                         own.trainer.executor->confirm();
                       },
                   .culprits = {{"rank 1 (", "evaluates, while rank 0 runs a step"}}});
  hangs.push_back({.name = "a collective between two steps that one rank does not call",
                   .program = named("1F1B", 1, 2),
                   .copies = 2,
                   .parallel = Parallel::kReplicate,
                   .train =
                       [](const Rank& own, int64_t step) {
                         own.trainer.train(step);
                         if (step != kStep) return;
                         if (own.rank == 1) sleep_forever(own.world);
                         const comms::BackendPtr group = own.trainer.mesh.group({"dp"});
                         std::vector<at::Tensor> sum = {at::zeros({1})};
                         try {
                           group->allreduce(sum)->wait();
                         } catch (const std::exception& error) {
                           EXPECT_TRUE(own.world.failures().hung());
                           throw std::runtime_error(own.world.failures().explain(error.what()));
                         }
                       },
                   .culprits = {{"rank 1 (", "is between two steps, and has not begun step 2"}}});
  hangs.push_back({.name = "a rank that does not confirm its step",
                   .program = named("1F1B", 3, 4),
                   .train =
                       [](const Rank& own, int64_t step) {
                         own.trainer.executor->step(own.trainer.batch(step));
                         if (own.rank != 1 || step != kStep) own.trainer.executor->confirm();
                       },
                   .culprits = {{"rank 1 (", "has not joined what rank",
                                 "waits for all ranks to begin step 2"}}});
  return hangs;
}

// What a rank throws, and how long after the last rank has come to the last step.
struct Outcome {
  std::string error;
  double seconds;
};

std::vector<Outcome> run(const Hang& hang) {
  const int ranks = hang.program.placement.num_ranks() * hang.copies;
  std::vector<double> came(static_cast<size_t>(ranks)), threw(static_cast<size_t>(ranks));
  std::vector<comms::World> worlds =
      comms::thread_worlds(ranks, {.timeout = kTimeout, .store = hang.store});
  const std::vector<std::string> errors = tests::errors_of_ranks(ranks, [&](int rank) {
    const comms::World& bare = worlds[static_cast<size_t>(rank)];
    comms::World world = hang.wrap ? hang.wrap(bare) : bare;
    Trainer trainer(hang.program_of ? hang.program_of(rank) : hang.program, hang.parallel,
                    hang.copies, world, nullptr, {.allow_unverified = hang.is_unverified});
    try {
      for (int64_t step = 0; step < 3; ++step) {
        came[static_cast<size_t>(rank)] = comms::steady_seconds();
        hang.train({rank, world, trainer}, step);
      }
    } catch (const std::exception&) {
      threw[static_cast<size_t>(rank)] = comms::steady_seconds();
      throw;
    }
  });
  std::vector<Outcome> outcomes;
  const double last = *std::ranges::max_element(came);
  for (size_t rank = 0; rank < errors.size(); ++rank)
    outcomes.push_back({errors[rank], threw[rank] - last});
  return outcomes;
}

// For how long something has not ended, as a report says: "... has not ended for 2.0 s".
double reported_seconds(const std::string& report) {
  const std::regex pattern("has not ended for ([0-9.]+) s");
  std::smatch found;
  return std::regex_search(report, found, pattern) ? std::stod(found[1]) : -1;
}

// The lines of a report that name culprits.
std::vector<std::string> culprits_in(const std::string& report) {
  std::vector<std::string> found;
  std::istringstream lines(report);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  culprit: ")) found.push_back(line);
  }
  return found;
}

bool has(const std::string& line, const Parts& parts) {
  return std::ranges::all_of(
      parts, [&](const std::string& part) { return line.find(part) != std::string::npos; });
}

// All at once: they spend their time waiting.
TEST(Hang, TheReportNamesTheCulprit) {
  at::set_num_threads(1);
  const std::vector<Hang> all = hangs();
  EXPECT_GE(all.size(), 20u);
  constexpr double kLimit = 2 + 5;  // kTimeout, and 5 s
  std::vector<std::future<std::vector<Outcome>>> runs;
  for (const Hang& hang : all)
    runs.push_back(std::async(std::launch::async, [&hang] { return run(hang); }));
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(all[i].name);
    for (const auto& [error, seconds] : runs[i].get()) {
      EXPECT_LE(seconds, kLimit) << error;
      if (error == "woken by the end of the test") continue;  // of a rank outside of a step
      const std::vector<std::string> found = culprits_in(error);
      EXPECT_EQ(found.size(), all[i].culprits.size()) << error;
      for (const Parts& parts : all[i].culprits) {
        EXPECT_TRUE(std::ranges::any_of(found, [&](const auto& line) { return has(line, parts); }))
            << "expected a culprit with " << testing::PrintToString(parts) << " in " << error;
      }
      // Nobody is accused before the time limit is over.
      for (const std::string& line : found) {
        if (line.find("has not ended") == std::string::npos) continue;
        EXPECT_GE(reported_seconds(line), 0.9 * std::chrono::duration<double>(kTimeout).count())
            << error;
      }
    }
  }
}

// The first step, and the first after reset(), have their own limit.
TEST(Hang, TheFirstStepMayTakeLonger) {
  constexpr milliseconds kShort{1000}, kLong{60000};
  std::vector<comms::World> worlds = comms::thread_worlds(2, {.timeout = kLong});
  const std::string errors = tests::run_ranks(2, [&](int rank) {
    comms::World& world = worlds[static_cast<size_t>(rank)];
    Trainer trainer(named("1F1B", 2, 2), Parallel::kNone, 1, world, nullptr,
                    {.timeout = kShort, .first_timeout = kLong});
    const auto train_with = [&](int64_t step, const ActionFunction& forward) {
      if (rank == 0) trainer.executor->set_function(ActionKind::kForward, forward);
      trainer.train(step);
    };
    // Longer than the limit of later steps, and than what the watchdog grants beyond it.
    const auto train_slowly = [&](int64_t step) {
      train_with(step, [&](const ActionContext& context) {
        if (context.action() == ir::Action(ActionKind::kForward, 0, 0))
          std::this_thread::sleep_for(kShort * 5 / 2);
        context.run_default();
      });
      if (rank == 0) trainer.executor->set_function(ActionKind::kForward, {});
    };
    train_slowly(0);
    // The same at the end of a first step.
    Trainer ends_late(named("1F1B", 2, 2), Parallel::kNone, 1, world, nullptr,
                      {.timeout = kShort, .first_timeout = kLong});
    ends_late.executor->step(ends_late.batch(0));
    if (rank == 0) std::this_thread::sleep_for(kShort * 5 / 2);
    ends_late.executor->confirm();
    for (int64_t step = 1; step < 3; ++step) {
      std::string report;
      try {
        train_with(step, [&](const ActionContext&) { sleep_forever(world); });
      } catch (const HangError& error) {
        report = error.what();
      }
      const std::vector<std::string> culprits = culprits_in(report);
      ASSERT_EQ(culprits.size(), 1u) << report;
      EXPECT_TRUE(has(culprits[0], {"rank 0 (", "`0F0` has not ended"})) << report;
      EXPECT_NE(report.find("1000 ms"), std::string::npos) << report;
      const int64_t next = trainer.executor->reset();
      train_slowly(next);
    }
  });
  EXPECT_EQ(errors, "");
}

}  // namespace
}  // namespace pipewright::executor
