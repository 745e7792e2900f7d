// A rank goes on until a compute awaits an input that has not been sent, or a WAIT a SEND that has
// not been received. A SEND or RECV is posted at the end of the compute or WAIT before it, and its
// times are known once the other end is posted: each transfer of a pair of ranks starts after the
// one before it. (If SENDs need no RECV, the times of a SEND are known at once.)
#include "pipewright/schedule/simulate/simulate_on_edges.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "pipewright/ir/stage_microbatch_table.h"
#include "pipewright/schedule/graph/edge_transfers.h"
#include "pipewright/schedule/graph/turns.h"

namespace pipewright::schedule {
namespace {

// The rest of a rank's row, and when what its next action waits for has ended.
struct Rest : RestOfRow {
  double compute = 0;        // the last compute or WAIT
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
        reduced_(static_cast<size_t>(program.placement.num_stages())),
        timeline_(ir::Timeline::unwritten(program.rows)) {
    for (const RestOfRow& row : whole_rows(program.rows)) rest_.push_back({row});
    if ((ir::kinds_in(program.rows) & ir::kSendWaits) != 0)
      sends_.emplace(program.placement, program.num_microbatches,
                     NumbersOfSends{EdgeTransfers::kNone, EdgeTransfers::kNone});
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
      } else if (ir::is_wait(part.kind())) {
        const ir::ActionPart awaited = ir::awaited_by(part);
        if (is_rendezvous_ && ir::is_send(awaited.kind()) && transfers_.is_pending(awaited)) break;
        const double ready = std::max(row.compute, end_of(awaited));
        row.compute = ready + duration;
        timeline_[row.number] = {ready, row.compute};
      } else {
        const double start = std::max(row.compute, row.data_parallel);
        row.data_parallel = start + duration;
        timeline_[row.number] = {start, row.data_parallel};
        if (part.kind() == ir::ActionKind::kUnshard)
          unsharded_[static_cast<size_t>(part.stage())] = row.data_parallel;
        if (part.kind() == ir::ActionKind::kReduceGrad)
          reduced_[static_cast<size_t>(part.stage())] = row.data_parallel;
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

  // When a SEND or the last REDUCE_GRAD of a stage ends; 0 if there is none before its WAIT.
  double end_of(ir::ActionPart awaited) {
    if (!ir::is_send(awaited.kind())) return reduced_[static_cast<size_t>(awaited.stage())];
    const uint32_t send = number_of(awaited);
    return send == EdgeTransfers::kNone ? 0 : timeline_[send].end;
  }
  uint32_t& number_of(ir::ActionPart send) {
    return sends_->at(send.stage(), send.microbatch())[send.kind() == ir::ActionKind::kSendB];
  }

  // Until its times are known, the interval of a SEND or RECV holds when it was posted, and its
  // duration.
  void post(ir::ActionPart part, uint32_t number, double posted, double duration) {
    ir::Interval& own = timeline_[number];
    own = {posted, duration};
    const bool sends = ir::is_send(part.kind());
    if (sends && sends_) number_of(part) = number;
    const uint32_t partner = transfers_.post(part, number), index = transfers_.pair_of(part);
    if (index == EdgeTransfers::kNone) return;
    Pair& pair = pairs_[index];
    if (sends && !is_rendezvous_) start(&own, &pair, 0);
    if (partner == EdgeTransfers::kNone) return;
    ir::Interval& other = timeline_[partner];
    ir::Interval &send = sends ? own : other, &receive = sends ? other : own;
    const double receive_from = std::max(receive.start, pair.receive);
    if (is_rendezvous_) start(&send, &pair, receive_from);
    receive.start = std::max(receive_from, send.start);
    pair.receive = receive.end = std::max(send.end, receive.start + receive.end);
    if (sends || sends_) turns_.wake(transfers_.peer_of(part));
  }
  static void start(ir::Interval* send, Pair* pair, double earliest) {
    send->start = std::max({send->start, pair->send, earliest});
    pair->send = send->end = send->start + send->end;
  }

  const bool is_rendezvous_;
  const CostTable& table_;
  const std::span<const double> stretch_;
  EdgeTransfers transfers_;
  Turns turns_;
  std::vector<Pair> pairs_;
  std::vector<double> unsharded_;  // by stage: the end of an UNSHARD that no compute follows yet
  std::vector<double> reduced_;    // by stage: the end of the last REDUCE_GRAD
  // The numbers of SEND_F and SEND_B, if any are awaited.
  using NumbersOfSends = std::array<uint32_t, 2>;
  std::optional<ir::StageMicrobatchTable<NumbersOfSends>> sends_;
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
