// A rank goes on until a compute awaits an input that has not been sent. A SEND or RECV is posted
// at the end of the compute before it, and its times are known once the other end is posted: each
// transfer of a pair of ranks starts after the one before it.
#include "pipewright/schedule/simulate/simulate_on_edges.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "pipewright/schedule/edge_transfers.h"
#include "pipewright/schedule/turns.h"

namespace pipewright::schedule {
namespace {

// The rest of a rank's row, and when what its next action waits for has ended.
struct Rest : RestOfRow {
  double compute = 0;        // the last compute
  double data_parallel = 0;  // the last data-parallel action
};

// When the last SEND and the last RECV of a pair of ranks end.
struct Pair {
  double send = 0, receive = 0;
};

class Walk {
 public:
  Walk(const ir::Program& program, bool is_rendezvous, const CostTable& table,
       std::span<const double> stretch)
      : is_rendezvous_(is_rendezvous),
        table_(table),
        stretch_(stretch),
        transfers_(program),
        turns_(program.rows.size()),
        pairs_(transfers_.num_pairs()),
        unsharded_(static_cast<size_t>(program.placement.num_stages())),
        timeline_(ir::Timeline::unwritten(program.rows)) {
    for (const RestOfRow& row : whole_rows(program.rows)) rest_.push_back({row});
  }

  std::optional<ir::Timeline> run() {
    const bool at_end = turns_.run([&](size_t rank) { return go_on(&rest_[rank]); });
    if (!at_end || !transfers_.all_matched()) return std::nullopt;
    return std::move(timeline_);
  }

 private:
  Turns::Stop go_on(Rest* rest) {
    Rest row = *rest;
    const ir::Action* const end = row.end_of_turn();
    for (; row.next != end; ++row.next, ++row.number) {
      const ir::Action& action = *row.next;
      if (action.is_idle()) {
        timeline_[row.number] = {};
        continue;
      }
      const ir::ActionPart part = action.parts()[0];
      double duration = table_.duration(action);
      if (!stretch_.empty()) duration *= stretch_[row.number];
      if (ir::is_compute(part.kind())) {
        if (transfers_.awaits(action)) break;
        double ready = std::max(row.compute, inputs_of(part));
        if (action.is_compound()) ready = std::max(ready, inputs_of(action.parts()[1]));
        row.compute = ready + duration;
        timeline_[row.number] = {ready, row.compute};
      } else if (ir::is_transfer(part.kind())) {
        post(part, row.number, row.compute, duration);
      } else {
        const double start = std::max(row.compute, row.data_parallel);
        row.data_parallel = start + duration;
        timeline_[row.number] = {start, row.data_parallel};
        if (part.kind() == ir::ActionKind::kUnshard)
          unsharded_[static_cast<size_t>(part.stage())] = row.data_parallel;
      }
    }
    *rest = row;
    const Turns::Stop stop = Turns::stop_of(row, end);
    if (stop != Turns::kAtEnd) {
      fetch_ahead(row.next);
      fetch_ahead(&timeline_[row.number]);
    }
    return stop;
  }

  // When the input and the parameters of a compute are there. The parameters stay.
  double inputs_of(ir::ActionPart part) {
    const double unsharded = std::exchange(unsharded_[static_cast<size_t>(part.stage())], 0);
    const uint32_t receive = transfers_.receive_of(part);
    if (receive == EdgeTransfers::kNone) return unsharded;
    return std::max(unsharded, timeline_[receive].end);
  }

  // Until the other end is posted, the interval holds when this one was, and its duration.
  void post(ir::ActionPart part, uint32_t number, double posted, double duration) {
    ir::Interval& own = timeline_[number];
    own = {posted, duration};
    const uint32_t partner = transfers_.post(part, number);
    if (partner == EdgeTransfers::kNone) return;
    const bool sends = ir::is_send(part.kind());
    ir::Interval& other = timeline_[partner];
    ir::Interval &send = sends ? own : other, &receive = sends ? other : own;
    Pair& pair = pairs_[transfers_.pair_of(part)];
    const double receive_from = std::max(receive.start, pair.receive);
    send.start = std::max(send.start, pair.send);
    if (is_rendezvous_) send.start = std::max(send.start, receive_from);
    pair.send = send.end = send.start + send.end;
    receive.start = std::max(receive_from, send.start);
    pair.receive = receive.end = std::max(send.end, receive.start + receive.end);
    if (sends) turns_.wake(transfers_.peer_of(part));
  }

  const bool is_rendezvous_;
  const CostTable& table_;
  const std::span<const double> stretch_;
  EdgeTransfers transfers_;
  Turns turns_;
  std::vector<Pair> pairs_;
  std::vector<double> unsharded_;  // by stage: the end of an UNSHARD that no compute follows yet
  ir::Timeline timeline_;
  std::vector<Rest> rest_;  // by rank
};

}  // namespace

std::optional<ir::Timeline> simulate_on_edges(const ir::Program& program,
                                              ir::ChannelCapacity capacity, const CostTable& table,
                                              std::span<const double> stretch) {
  const bool is_rendezvous = capacity == 0;
  if (!is_rendezvous && capacity != ir::kUnboundedCapacity) return std::nullopt;
  if (!EdgeTransfers::fit(program)) return std::nullopt;
  return Walk(program, is_rendezvous, table, stretch).run();
}

}  // namespace pipewright::schedule
