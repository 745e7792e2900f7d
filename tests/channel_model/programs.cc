#include "tests/channel_model/programs.h"

#include <gtest/gtest.h>

#include <sstream>

#include "pipewright/ir/text/action_text.h"
#include "pipewright/schedule/lowering/add_send_recv.h"
#include "pipewright/schedule/verify/verify.h"
#include "pipewright/schedules/registry.h"

namespace pipewright::channel_model {

ir::Program program_of(const ir::Placement& placement, int microbatches,
                       const std::vector<std::string>& rows) {
  ir::Program program;
  program.placement = placement;
  program.num_microbatches = microbatches;
  for (const std::string& text : rows) {
    ir::Row& row = program.rows.emplace_back();
    std::stringstream stream(text);
    for (std::string word; stream >> word;) {
      ir::Action action;
      EXPECT_FALSE(ir::parse_action(word, &action)) << word;
      row.push_back(action);
    }
  }
  return program;
}

// Stages 0 and 1 are on ranks 0 and 1 unless stated otherwise. The comment above each case is the
// argument for its verdicts.
const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      // 0SEND_F1 is posted after 2F0, which waits for 1SEND_F0, which is posted after 1F1, which
      // waits for 0SEND_F1. The cycle involves no queue, so no model and no capacity helps.
      {"the example of the design",
       ir::Placement::custom(2, {0, 1, 0}),
       {"0F0 0SEND_F0 0F1 2RECV_F0 2F0 0SEND_F1 2RECV_F1 2F1",
        "1RECV_F0 1F0 1RECV_F1 1F1 1SEND_F0 1SEND_F1"},
       "DDD",
       "DDD",
       "DDD",
       false},
      // The same with the second SEND before 2F0: both ends post two transfers one way, then two
      // the other way.
      {"the example, fixed",
       ir::Placement::custom(2, {0, 1, 0}),
       {"0F0 0SEND_F0 0F1 0SEND_F1 2RECV_F0 2F0 2RECV_F1 2F1",
        "1RECV_F0 1F0 1RECV_F1 1F1 1SEND_F0 1SEND_F1"},
       "...",
       "...",
       "...",
       false},
      // Fixed on one side only: 1SEND_F0 is ahead of 1RECV_F1, and 0SEND_F1 ahead of 2RECV_F0, in
      // the one queue between the ranks. Both pass if a SEND may finish before its RECV, or
      // with one queue per direction.
      {"the example, half fixed",
       ir::Placement::custom(2, {0, 1, 0}),
       {"0F0 0SEND_F0 0F1 0SEND_F1 2RECV_F0 2F0 2RECV_F1 2F1",
        "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1"},
       "D..",
       "D..",
       "...",
       false},
      // Each SEND is ahead of the RECV that the other needs in the one queue between the two ranks.
      // With one queue per direction, or capacity 1, nothing blocks.
      {"SENDs head to head",
       ir::Placement::loop(2, 2),
       {"0F1 0SEND_F1 0RECV_B0", "1B0 1SEND_B0 1RECV_F1"},
       "D..",
       "D..",
       "...",
       false},
      // There and back, one after the other.
      {"there and back",
       ir::Placement::loop(2, 2),
       {"0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"},
       "...",
       "...",
       "...",
       false},
      // Each RECV is ahead of the SEND that the other needs. A SEND that is not at the head does
      // not finish at any capacity.
      {"RECVs head to head",
       ir::Placement::loop(2, 2),
       {"0RECV_B0 0SEND_F0", "1RECV_F0 1SEND_B0"},
       "DDD",
       "DDD",
       "...",
       false},
      // With capacity 1 the first SENDs finish and the second ones block; with room for both, none
      // blocks.
      {"two SENDs head to head",
       ir::Placement::loop(2, 2),
       {"0SEND_F0 0SEND_F1 0RECV_B0 0RECV_B1", "1SEND_B0 1SEND_B1 1RECV_F0 1RECV_F1"},
       "DD.",
       "DD.",
       "...",
       false},
      // 1RECV_B1 waits for rank 2, which waits for 1SEND_F0. That is queued after 1RECV_B1 in the
      // rank's queue and in the queue of peer 2, but in another queue with directed edges. Capacity
      // lets no RECV pass.
      {"an early RECV",
       ir::Placement::loop(3, 3),
       {"0F0 0SEND_F0", "1RECV_B1 1RECV_F0 1F0 1SEND_F0", "2RECV_F0 2F0 2B1 2SEND_B1"},
       "DDD",
       "DDD",
       "...",
       false},
      // A ring of three: each rank first sends to one neighbour, then receives from the other. With
      // one queue per rank all three wait; otherwise the two peers of a rank share no queue.
      {"a ring of ranks",
       ir::Placement::loop(3, 6),
       {"0SEND_F0 3RECV_F1", "1SEND_F2 1RECV_F0", "2SEND_F1 2RECV_F2"},
       "D..",
       "...",
       "...",
       false},
      // The first SEND meets the first RECV, whatever their names: nothing blocks, and the tensors
      // are swapped.
      {"a swap",
       ir::Placement::loop(2, 2),
       {"0SEND_F0 0SEND_F1", "1RECV_F1 1RECV_F0"},
       "...",
       "...",
       "...",
       true},
      // Two ranks with two stages each: outputs and gradients share an edge, and meet in the wrong
      // order.
      {"a swap of an output and a gradient",
       ir::Placement::loop(2, 4),
       {"0SEND_F0 2SEND_B0", "1RECV_B0 1RECV_F0"},
       "...",
       "...",
       "...",
       true},
      // 0SEND_F1 is posted after 0B0, which needs 1SEND_B0, which is posted after 1F1, which needs
      // 0SEND_F1.
      {"a SEND posted too late",
       ir::Placement::loop(2, 2),
       {"0RECV_B0 0B0 0SEND_F1", "1RECV_F1 1F1 1B0 1SEND_B0"},
       "DDD",
       "DDD",
       "DDD",
       false},
      // The same with 1SEND_B0 first.
      {"a SEND posted in time",
       ir::Placement::loop(2, 2),
       {"0RECV_B0 0B0 0SEND_F1", "1B0 1SEND_B0 1RECV_F1 1F1"},
       "...",
       "...",
       "...",
       false},
  };
  return kCases;
}

namespace {

// A WAIT_SEND for each SEND, anywhere after it.
void add_random_waits(std::mt19937& random, ir::Program* program) {
  for (ir::Row& row : program->rows) {
    for (size_t step = row.size(); step-- > 0;) {
      if (!ir::is_send(row[step].kind())) continue;
      const ir::ActionPart send = row[step].parts()[0];
      const auto later = 1 + random() % (row.size() - step);
      row.insert(row.begin() + static_cast<std::ptrdiff_t>(step + later),
                 {send.kind() == ir::ActionKind::kSendF ? ir::ActionKind::kWaitSendF
                                                        : ir::ActionKind::kWaitSendB,
                  send.stage(), send.microbatch()});
    }
  }
}

}  // namespace

ir::Program random_program(std::mt19937& random) {
  const auto below = [&](int limit) {
    return static_cast<int>(random() % static_cast<unsigned>(limit));
  };
  const char* names[] = {"GPipe",         "1F1B",    "Interleaved1F1B", "LoopedBFS",
                         "ZBVZeroBubble", "Seq1F1B", "Seq1F1B-I",       "Chimera"};
  const std::string name = names[below(8)];
  const schedules::ScheduleSpec& spec = *schedules::find_schedule(name);
  const bool has_replicas = spec.pattern == schedules::Pattern::kBothWays;
  const int ranks = has_replicas ? 2 : 2 + below(2);
  const int units = (1 + below(ranks == 2 ? 2 : 1)) * (has_replicas ? 2 : 1);
  const bool has_slices = name.starts_with("Seq");
  const schedules::Shape shape{.ranks = ranks,
                               .stages = schedules::default_stages(spec, ranks),
                               .microbatches = has_slices ? 1 : units,
                               .slices = has_slices ? units : 1};
  ir::Program program = *schedule::add_send_recv({schedules::make_order(spec, shape)});
  for (int move = below(40); move > 0; --move) {
    ir::Row& row = program.rows[static_cast<size_t>(below(ranks))];
    const auto at = static_cast<size_t>(below(static_cast<int>(row.size()) - 1));
    std::swap(row[at], row[at + 1]);
    ir::Diagnostics diagnostics;
    schedule::verify(program, {}, &diagnostics);
    for (const ir::Diagnostic& diagnostic : diagnostics.kept()) {
      if (diagnostic.rule == ir::Rule::kSwap || diagnostic.rule == ir::Rule::kDeadlock) continue;
      std::swap(row[at], row[at + 1]);
      break;
    }
  }
  if (below(2) == 0) add_random_waits(random, &program);
  return program;
}

}  // namespace pipewright::channel_model
