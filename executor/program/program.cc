#include "pipewright/executor/program/program.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "pipewright/ir/action_kind.h"
#include "pipewright/ir/dependencies.h"
#include "pipewright/ir/diagnostic.h"
#include "pipewright/ir/text/render.h"
#include "pipewright/ir/text/shape.h"
#include "pipewright/schedule/lowering/lower.h"
#include "pipewright/schedule/problem/costs.h"
#include "pipewright/schedule/simulate/memory_model.h"
#include "pipewright/schedule/verify/verify.h"

namespace pipewright::executor {

using ir::ActionKind;

RowPlan plan_row(const ir::Row& row) {
  RowPlan plan;
  plan.has_backward = ir::has_backward(row);
  for (size_t step = 0; step < row.size(); ++step) {
    if (row[step].is_idle()) continue;
    plan.actions.push_back({row[step], static_cast<int>(step), false});
    for (const ir::ActionPart part : row[step].parts()) {
      plan.has_residency = plan.has_residency || part.kind() == ActionKind::kUnshard ||
                           part.kind() == ActionKind::kReshard;
    }
  }
  std::set<int> open;  // stages with a later REDUCE_GRAD and no B or W before it yet
  for (auto planned = plan.actions.rbegin(); planned != plan.actions.rend(); ++planned) {
    for (const ir::ActionPart part : planned->action.parts()) {
      if (part.kind() == ActionKind::kReduceGrad) open.insert(part.stage());
      if (ir::completes_backward(part.kind()))
        planned->last_backward = open.erase(part.stage()) > 0;
    }
  }
  return plan;
}

void plan_streams(RowPlan* plan) {
  std::set<std::pair<int, int>> on_side;  // stages and microbatches
  for (PlannedAction& planned : plan->actions) {
    const std::span<const ir::ActionPart> parts = planned.action.parts();
    const auto is_on_side = [&](ir::ActionPart part) {
      return ir::is_compute(part.kind()) && on_side.contains({part.stage(), part.microbatch()});
    };
    if (planned.action.is_compound()) {
      const bool forward_is_first = parts[0].kind() == ActionKind::kForward;
      const ir::ActionPart forward = parts[forward_is_first ? 0 : 1];
      const ir::ActionPart backward = parts[forward_is_first ? 1 : 0];
      if (!is_on_side(backward)) on_side.emplace(forward.stage(), forward.microbatch());
    }
    for (size_t k = 0; k < parts.size(); ++k) planned.on_side[k] = is_on_side(parts[k]);
  }
  for (PlannedCopy& copy : plan->copies)
    copy.on_side = on_side.contains({copy.stage, copy.microbatch});
}

std::vector<PlannedCopy> plan_copies(const ir::Program& program, int rank) {
  if (program.offload.empty()) return {};
  const int num_stages = program.placement.num_stages();
  const schedule::Costs costs = schedule::offloading(
      {.offload = 1, .reload = 1, .offload_bytes = 1}, program.offload, num_stages);
  const schedule::CopyPlan plan(program, costs);
  std::vector<PlannedCopy> copies;
  for (const schedule::Copy& copy : plan.of(static_cast<size_t>(rank)).copies)
    copies.push_back(
        {copy.is_reload, copy.stage, copy.microbatch, static_cast<int>(copy.posted_before)});
  return copies;
}

std::vector<std::pair<int, int>> edges_of(const ir::Program& program) {
  std::set<std::pair<int, int>> edges;
  for (const ir::Row& row : program.rows) {
    for (const ir::Action& action : row) {
      if (!ir::is_transfer(action.kind())) continue;
      if (const auto transfer = ir::partner_of(action.parts()[0], program.placement))
        edges.insert({transfer->from, transfer->to});
    }
  }
  return {edges.begin(), edges.end()};
}

namespace {

std::string text_of(const ir::Diagnostics& diagnostics) {
  return ir::render(diagnostics, nullptr, {});
}

}  // namespace

std::string problems_of(const ir::Program& program, Check check) {
  ir::Diagnostics diagnostics;
  const bool valid =
      ir::check_declared_shape(program, ir::Level::kComputeComms, ir::CellIndex(), {},
                               &diagnostics) &&
      (check == Check::kShape ||
       schedule::verify(program, schedule::options_of(program.lowering), &diagnostics));
  return valid ? "" : text_of(diagnostics);
}

ir::Program forward_only(const ir::Program& program) {
  ir::Lowering policies = program.lowering;
  policies.forward_only = true;
  policies.merge_backward = policies.split_backward = std::nullopt;
  ir::Diagnostics diagnostics;
  std::optional<ir::Program> forwards =
      schedule::lower(schedule::compute_order(program), policies, &diagnostics);
  const std::string problems =
      forwards ? problems_of(*forwards, Check::kVerify) : text_of(diagnostics);
  if (!forwards || !problems.empty())
    throw std::invalid_argument("the program's forwards alone are not valid:\n" + problems);
  return *std::move(forwards);
}

namespace {

// 64-bit FNV-1a: protects against mistakes, not against attackers.
class Hash {
 public:
  void add(uint64_t word) {
    for (int byte = 0; byte < 8; ++byte) {
      hash_ = (hash_ ^ (word >> 8 * byte & 0xff)) * 0x100000001b3u;
    }
  }
  std::string to_string() const {
    std::ostringstream text;
    text << std::hex << hash_;
    return text.str();
  }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

std::string hash_of(const ir::Rows& rows) {
  Hash hash;
  for (const ir::Row& row : rows) {
    hash.add(row.size());
    for (const ir::Action& action : row) {
      hash.add(action.parts().size());
      for (const ir::ActionPart part : action.parts()) {
        hash.add(static_cast<uint64_t>(part.kind()));
        hash.add(static_cast<uint64_t>(part.stage()));
        hash.add(static_cast<uint64_t>(part.microbatch()));
      }
    }
  }
  return hash.to_string();
}

std::string text_of(const ir::Placement& placement) {
  std::string text = placement.replica(0).to_string();
  if (placement.num_replicas() > 1) text += " and " + placement.replica(1).to_string();
  return text;
}

}  // namespace

std::vector<DigestPart> digest_of(const ir::Program& program, std::vector<DigestPart> options) {
  const schedule::VerifyOptions channels = schedule::options_of(program.lowering);
  std::vector<DigestPart> digest = {
      {"program", hash_of(program.rows)},
      {"placement", text_of(program.placement)},
      {"microbatches", std::to_string(program.num_microbatches)},
      {"slices", std::to_string(program.slices)},
      {"channels",
       std::string(ir::name(channels.channels)) + " " + ir::to_string_capacity(channels.capacity)},
  };
  for (DigestPart& option : options) digest.push_back(std::move(option));
  return digest;
}

std::string to_string(const std::vector<DigestPart>& digest) {
  std::string text;
  for (const DigestPart& part : digest) text += part.name + '=' + part.value + ';';
  return text;
}

std::vector<DigestPart> parse_digest(const std::string& text) {
  std::vector<DigestPart> digest;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ';');) {
    const size_t equals = std::min(part.find('='), part.size());
    digest.push_back({part.substr(0, equals), part.substr(std::min(equals + 1, part.size()))});
  }
  return digest;
}

std::string difference(const std::vector<DigestPart>& left, int left_rank,
                       const std::vector<DigestPart>& right, int right_rank) {
  for (size_t i = 0; i < std::max(left.size(), right.size()); ++i) {
    const DigestPart one = i < left.size() ? left[i] : DigestPart{right[i].name, "missing"};
    const DigestPart other = i < right.size() ? right[i] : DigestPart{one.name, "missing"};
    if (one.value == other.value) continue;
    return one.name + " is " + one.value + " on rank " + std::to_string(left_rank) + " and " +
           other.value + " on rank " + std::to_string(right_rank);
  }
  return "";
}

}  // namespace pipewright::executor
