// In an order, a rank waits until the input of a compute has been made, and the compute that makes
// it wakes the rank.
//
// In a program, a rank waits until the input of a compute has been sent, or until the SEND of a
// WAIT has been received. A SEND or RECV is posted at the end of the compute or WAIT before it, and
// its times are known once the other end is posted: each transfer of a pair of ranks starts after
// the one before it. (If SENDs need no RECV, the times of a SEND are known at once.)
#include "pipewright/schedule/simulate/walks.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/tables.h"
#include "pipewright/ir/walk.h"
#include "pipewright/schedule/graph/edge_transfers.h"

namespace pipewright::schedule {
namespace {

using ir::ActionKind;
using ir::ActionPart;

// kLeads: whether some backward may start before its gradient arrives.
template <typename Instances, bool kLeads>
class OrderWalk {
 public:
  OrderWalk(const ir::ComputeOrder& order, const Instances& instances, const CostTable& table,
            std::span<const double> stretch)
      : instances_(instances),
        table_(table),
        stretch_(stretch),
        links_(order.placement),
        walk_(order.rows),
        arrivals_(order.placement, order.num_microbatches, {kNotMade, kNotMade}),
        computed_(order.rows.size()),
        timeline_(order.rows) {
    link_stages(order.placement);
  }

  std::optional<ir::Timeline> run() {
    const auto pass = [&](size_t rank, const ir::Action& action, uint32_t number) {
      return action.is_idle() || compute(rank, action, number);
    };
    if (!walk_.run(pass)) return std::nullopt;
    return std::move(timeline_);
  }

 private:
  static constexpr int kNone = -1;
  static constexpr double kNotMade = -1;

  // For a kind of compute at an instance of a stage: the stage of the result that it needs from
  // another one, and the rank that needs its own result.
  struct Links {
    int from = kNone, user = kNone;
    uint8_t is_gradient = 0;  // what it needs and makes: an output or a gradient
    double delay = 0;         // the transfer delay of its own result
  };

  void link_stages(const ir::Placement& placement) {
    const ir::StageDependencies dependencies(placement);
    for (int instance = 0; instance < placement.num_instances(); ++instance) {
      for (const ActionKind kind :
           {ActionKind::kForward, ActionKind::kBackward, ActionKind::kBackwardInput}) {
        const bool is_gradient = kind != ActionKind::kForward;
        const ActionPart part = ir::part_of(kind, instance, placement);
        Links& links = links_[part];
        links.is_gradient = is_gradient;
        for (const ir::StageDependencies::Need& need : dependencies.of(part)) {
          if (need.stage == part.stage()) continue;
          links.from = need.stage;
          const int from = instance + need.stage - part.stage();
          Links& maker = links_.at(kind, from);
          maker.user = placement.rank_of_instance(instance);
          maker.delay = is_gradient ? table_.gradient_transfer(from) : table_.output_transfer(from);
        }
      }
    }
  }

  // How long before its gradient arrives a part can start.
  double lead_of(ActionPart part, size_t rank, uint32_t number) const {
    return table_.lead(part, instances_.on(rank, part)) * (stretch_.empty() ? 1 : stretch_[number]);
  }
  const Links& links_of(ActionPart part, size_t rank) const {
    return links_.at(part.kind(), instances_.on(rank, part));
  }

  bool compute(size_t rank, const ir::Action& action, uint32_t number) {
    double start = computed_[rank];
    std::array<const Links*, 2> found{};  // of the parts
    size_t index = 0;
    for (const ActionPart part : action.parts()) {
      const Links& links = *(found[index++] = &links_of(part, rank));
      if (links.from == kNone) continue;
      double arrival = arrivals_.at(links.from, part.microbatch())[links.is_gradient];
      if (arrival == kNotMade) return false;
      if (kLeads) arrival -= lead_of(part, rank, number);
      start = std::max(start, arrival);
    }
    double duration =
        table_.duration_by(action, [&](ActionPart part) { return instances_.on(rank, part); });
    if (!stretch_.empty()) duration *= stretch_[number];
    const double end = computed_[rank] = start + duration;
    timeline_[number] = {start, end};
    index = 0;
    for (const ActionPart part : action.parts()) {
      const Links& links = *found[index++];
      if (links.user == kNone) continue;
      arrivals_.at(part.stage(), part.microbatch())[links.is_gradient] = end + links.delay;
      walk_.wake(static_cast<size_t>(links.user));
    }
    return true;
  }

  const Instances instances_;
  const CostTable& table_;
  const std::span<const double> stretch_;
  ir::StageKindTable<Links> links_;
  ir::Walk walk_;
  // By the stage and microbatch that make them: when an output and a gradient arrive.
  ir::StageMicrobatchTable<std::array<double, 2>> arrivals_;
  std::vector<double> computed_;  // by rank: the end of the last compute
  ir::Timeline timeline_;
};

template <typename Instances>
class ProgramWalk {
 public:
  ProgramWalk(const ir::Program& program, const Instances& instances, bool is_rendezvous,
              const CostTable& table, std::span<const double> stretch)
      : is_rendezvous_(is_rendezvous),
        instances_(instances),
        table_(table),
        stretch_(stretch),
        walk_(program.rows),
        transfers_(program),
        ranks_(program.rows.size()),
        pairs_(transfers_.num_pairs()),
        unsharded_(static_cast<size_t>(program.placement.num_instances())),
        reduced_(static_cast<size_t>(program.placement.num_instances())),
        timeline_(program.rows) {
    if ((ir::kinds_in(program.rows) & ir::kSendWaits) != 0)
      sends_.emplace(program.placement, program.num_microbatches,
                     NumbersOfSends{EdgeTransfers::kNone, EdgeTransfers::kNone});
  }

  std::optional<ir::Timeline> run() {
    const auto pass = [&](size_t rank, const ir::Action& action, uint32_t number) {
      return action.is_idle() || run(action, number, rank);
    };
    if (!walk_.run(pass) || !transfers_.all_matched()) return std::nullopt;
    return std::move(timeline_);
  }

 private:
  // When what a rank's next action waits for has ended.
  struct Rank {
    double compute = 0;        // the last compute or WAIT
    double data_parallel = 0;  // the last data-parallel action
  };
  // When the last SEND and the last RECV of a pair of ranks end.
  struct Pair {
    double send = 0, receive = 0;
  };

  // False if the action has to wait.
  bool run(const ir::Action& action, uint32_t number, size_t of_rank) {
    const ActionPart part = action.parts()[0];
    Rank* const rank = &ranks_[of_rank];
    double duration =
        table_.duration_by(action, [&](ActionPart one) { return instances_.on(of_rank, one); });
    if (!stretch_.empty()) duration *= stretch_[number];
    if (ir::is_compute(part.kind())) {
      if (awaits(part, of_rank)) return false;
      if (action.is_compound() && awaits(action.parts()[1], of_rank)) return false;
      const double stretch = stretch_.empty() ? 1 : stretch_[number];
      double ready = std::max(rank->compute, inputs_of(part, of_rank, stretch));
      if (action.is_compound())
        ready = std::max(ready, inputs_of(action.parts()[1], of_rank, stretch));
      rank->compute = ready + duration;
      timeline_[number] = {ready, rank->compute};
    } else if (ir::is_transfer(part.kind())) {
      post(end_of(part, of_rank), part, number, rank->compute, duration);
    } else if (ir::is_wait(part.kind())) {
      const ActionPart awaited = ir::awaited_by(part);
      if (is_rendezvous_ && ir::is_send(awaited.kind()) &&
          transfers_.is_pending(end_of(awaited, of_rank), awaited))
        return false;
      const double ready = std::max(rank->compute, time_of(awaited, of_rank));
      rank->compute = ready + duration;
      timeline_[number] = {ready, rank->compute};
    } else {
      const double start = std::max(rank->compute, rank->data_parallel);
      rank->data_parallel = start + duration;
      timeline_[number] = {start, rank->data_parallel};
      if (part.kind() == ActionKind::kUnshard)
        unsharded_[instance_on(of_rank, part)] = rank->data_parallel;
      if (part.kind() == ActionKind::kReduceGrad)
        reduced_[instance_on(of_rank, part)] = rank->data_parallel;
    }
    return true;
  }

  size_t instance_on(size_t rank, ActionPart part) const {
    return static_cast<size_t>(instances_.on(rank, part));
  }
  const EdgeTransfers::End& end_of(ActionPart part, size_t rank) const {
    return transfers_.end_of(part.kind(), instances_.on(rank, part));
  }

  bool awaits(ActionPart compute, size_t rank) const {
    return transfers_.awaits(end_of(compute, rank), compute);
  }
  // When the input and the parameters of a compute are there. The parameters stay.
  double inputs_of(ActionPart part, size_t rank, double stretch) {
    const double unsharded = std::exchange(unsharded_[instance_on(rank, part)], 0);
    const uint32_t receive = transfers_.receive_of(end_of(part, rank), part);
    if (receive == EdgeTransfers::kNone) return unsharded;
    double arrival = timeline_[receive].end;
    if (table_.has_leads()) [[unlikely]]
      arrival -= table_.lead(part, instances_.on(rank, part)) * stretch;
    return std::max(unsharded, arrival);
  }

  // When a SEND or the last REDUCE_GRAD of a stage ends; 0 if there is none before its WAIT.
  double time_of(ActionPart awaited, size_t rank) {
    if (!ir::is_send(awaited.kind())) return reduced_[instance_on(rank, awaited)];
    const uint32_t send = number_of(awaited);
    return send == EdgeTransfers::kNone ? 0 : timeline_[send].end;
  }
  uint32_t& number_of(ActionPart send) {
    return sends_->at(send.stage(), send.microbatch())[send.kind() == ActionKind::kSendB];
  }

  // Until its times are known, the interval of a SEND or RECV holds when it was posted, and its
  // duration.
  void post(const EdgeTransfers::End& end, ActionPart part, uint32_t number, double posted,
            double duration) {
    ir::Interval& own = timeline_[number];
    own = {posted, duration};
    const bool sends = ir::is_send(part.kind());
    if (sends && sends_) number_of(part) = number;
    const uint32_t partner = transfers_.post(end, part, number);
    if (end.pair == EdgeTransfers::kNone) return;
    Pair& pair = pairs_[end.pair];
    if (sends && !is_rendezvous_) start(&own, &pair, 0);
    if (partner == EdgeTransfers::kNone) return;
    ir::Interval& other = timeline_[partner];
    ir::Interval &send = sends ? own : other, &receive = sends ? other : own;
    const double receive_from = std::max(receive.start, pair.receive);
    if (is_rendezvous_) start(&send, &pair, receive_from);
    receive.start = std::max(receive_from, send.start);
    pair.receive = receive.end = std::max(send.end, receive.start + receive.end);
    if (sends || sends_) walk_.wake(end.peer);
  }
  static void start(ir::Interval* send, Pair* pair, double earliest) {
    send->start = std::max({send->start, pair->send, earliest});
    pair->send = send->end = send->start + send->end;
  }

  const bool is_rendezvous_;
  const Instances instances_;
  const CostTable& table_;
  const std::span<const double> stretch_;
  ir::Walk walk_;
  EdgeTransfers transfers_;
  std::vector<Rank> ranks_;
  std::vector<Pair> pairs_;
  // By instance: the end of an UNSHARD that no compute follows yet, and of the last REDUCE_GRAD.
  std::vector<double> unsharded_, reduced_;
  // The numbers of SEND_F and SEND_B, if any are awaited.
  using NumbersOfSends = std::array<uint32_t, 2>;
  std::optional<ir::StageMicrobatchTable<NumbersOfSends>> sends_;
  ir::Timeline timeline_;
};

}  // namespace

std::optional<ir::Timeline> simulate_order(const ir::ComputeOrder& order, const CostTable& table,
                                           std::span<const double> stretch) {
  if (!EdgeTransfers::fit(order)) return std::nullopt;
  return ir::with_instances(order.placement, [&]<typename Instances>(const Instances& instances) {
    return table.has_leads() ? OrderWalk<Instances, true>(order, instances, table, stretch).run()
                             : OrderWalk<Instances, false>(order, instances, table, stretch).run();
  });
}

std::optional<ir::Timeline> simulate_on_edges(const ir::Program& program,
                                              ir::ChannelCapacity capacity, const CostTable& table,
                                              std::span<const double> stretch) {
  const bool is_rendezvous = capacity == 0;
  if (!is_rendezvous && capacity != ir::kUnboundedCapacity) return std::nullopt;
  if (!EdgeTransfers::fit(program)) return std::nullopt;
  return ir::with_instances(program.placement, [&](const auto& instances) {
    return ProgramWalk(program, instances, is_rendezvous, table, stretch).run();
  });
}

}  // namespace pipewright::schedule
