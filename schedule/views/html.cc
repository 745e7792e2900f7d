// The data of the page, as JSON that viewer/model.js decodes:
//
//   {"kinds": {LETTER: {"token", "lane", "legend", "colors", "compound"}},
//    "runs": [{"title", "unit", "measured", "program", "slices", "rendezvous", "end", "per_unit",
//              "stages": [[...]], "stops": [[action, tick, [text of a wait, ...]], ...], "ranks":
//              [{...}]}]}
//
// `stops` has an entry per rank if the schedule cannot run to its end, null for a rank that does;
// otherwise it is empty. An action that never runs is an idle slot.
//
// Times are whole ticks, `per_unit` of them per unit of the costs, so that they are short and
// exact. A rank's cells are columns: `kinds` has a letter for each, a dot for an idle slot; the
// others have an entry per action (the slacks of a measured run mean nothing):
//
//   stages, microbatches   of a compound: of its first part; microbatch -1: none
//   starts                 after the end of the compute or WAIT before it in the row
//   durations, slacks
//   dependencies           distances back to the actions that it waits for, each list ended by 0,
//                          without the compute or WAIT before it in the row (JavaScript adds it)
//   compounds              three entries per compound: the letters of its parts, stage and
//                          microbatch of the second
//   activations, bytes     changes over time: ticks since the last change, amount
#include "pipewright/schedule/views/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pipewright/ir/check.h"
#include "pipewright/ir/text/render.h"
#include "pipewright/schedule/simulate/memory_model.h"
#include "pipewright/schedule/simulate/simulate.h"
#include "pipewright/schedule/views/table.h"

namespace pipewright::schedule {

namespace {

using ir::Action;
using ir::ActionKind;
using ir::ActionPart;

// The letter of a kind in the data: its place in the table of kinds.
char letter_of(ActionKind kind) { return static_cast<char>('@' + static_cast<int>(kind)); }
static_assert(std::size(ir::kActionKinds) <= 26);

std::string_view lane_of(ActionKind kind) {
  if (ir::is_send(kind)) return "send";
  if (ir::is_receive(kind)) return "receive";
  return ir::is_compute(kind) || ir::is_wait(kind) ? "compute" : "data";
}

// JSON that may stand in a <script>: "</script>" would end it.
std::string json_string(std::string_view text) {
  std::string safe;
  for (const char c : ir::quoted_json(text)) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

void print_kinds(std::ostream& out) {
  out << "{";
  bool first = true;
  for (const ir::ActionKindInfo& info : ir::action_kinds()) {
    const Paint& paint = paint_of(info.kind);
    out << fmt::format(
        "{}\"{}\":{{\"token\":\"{}\",\"lane\":\"{}\",\"legend\":\"{}\",\"colors\":[\"{}\",\"{}\","
        "\"{}\"],\"compound\":{}}}",
        first ? "" : ",\n", letter_of(info.kind), info.token, lane_of(info.kind), paint.legend,
        paint.shades[0], paint.shades[1], paint.shades[2], info.kind == ActionKind::kOverlapFB);
    first = false;
  }
  out << "}";
}

// The fewest ticks per unit of time, a power of ten, of which all times are multiples; but no more
// than give the makespan nine digits.
double ticks_per_unit(const ir::Timeline& timeline, double end) {
  const int digits = end > 0 ? static_cast<int>(std::floor(std::log10(end))) + 1 : 1;
  for (int power = std::min(0, 9 - digits); power < 9 - digits; ++power) {
    const double per_unit = std::pow(10, power);
    const auto is_whole = [&](double time) {
      const double ticks = time * per_unit;
      return std::abs(ticks - std::round(ticks)) <=
             ir::kTimeTolerance * std::max(end * per_unit, 1.0);
    };
    bool all = true;
    for (size_t cell = 0; all && cell < timeline.size(); ++cell)
      all = is_whole(timeline[cell].start) && is_whole(timeline[cell].end);
    if (all) return per_unit;
  }
  return std::pow(10, 9 - digits);
}

// A JSON array, written as it grows.
class Column {
 public:
  void add(int64_t value) { fmt::format_to(std::back_inserter(text_), "{}{}", separator(), value); }
  void add(std::string_view text) {
    fmt::format_to(std::back_inserter(text_), "{}\"{}\"", separator(), text);
  }
  std::string text() const { return "[" + fmt::to_string(text_) + "]"; }

 private:
  std::string_view separator() const { return text_.size() == 0 ? "" : ","; }
  fmt::memory_buffer text_;
};

class RunWriter {
 public:
  RunWriter(const HtmlRun& run, std::ostream& out)
      : run_(run),
        rows_(run.schedule.rows),
        out_(out),
        end_(ir::span_of(rows_, run.timeline).end),
        per_unit_(ticks_per_unit(run.timeline, end_)),
        slacks_(run.is_measured ? std::vector<double>(run.timeline.size(), 1)
                                : slack_of(run.graph, run.schedule, run.costs, run.timeline)),
        memory_(run.schedule, run.costs, run.standstill) {}

  void print() {
    out_ << fmt::format(
        "{{\"title\":{},\"unit\":{},\"measured\":{},\"program\":{},\"slices\":{},\"rendezvous\":{},"
        "\"end\":{},"
        "\"per_unit\":{},\"stages\":[",
        json_string(run_.title), json_string(run_.costs.unit), run_.is_measured, has_operations(),
        run_.schedule.slices, run_.graph.is_rendezvous(), ticks(end_), per_unit_);
    for (size_t rank = 0; rank < rows_.size(); ++rank) {
      Column stages;
      for (const int stage : run_.schedule.placement.stages_of(static_cast<int>(rank)))
        stages.add(stage);
      out_ << (rank == 0 ? "" : ",") << stages.text();
    }
    out_ << "],\"stops\":[";
    if (run_.standstill != nullptr) print_stops();
    out_ << "],\"ranks\":[";
    for (size_t rank = 0; rank < rows_.size(); ++rank) {
      out_ << (rank == 0 ? "\n" : ",\n");
      print_rank(rank);
    }
    out_ << "]}";
  }

 private:
  bool never_runs(uint32_t action) const {
    return run_.standstill != nullptr && run_.standstill->blocked[action];
  }
  int64_t ticks(double time) const { return std::llround(time * per_unit_); }

  bool has_operations() const {
    for (uint32_t action = 0; action < run_.graph.size(); ++action) {
      const ChannelGraph::Node node = run_.graph.node(action);
      if (node != ChannelGraph::Node::kIdle && node != ChannelGraph::Node::kCompute) return true;
    }
    return false;
  }

  void print_stops() {
    std::string_view separator;
    for (const Stop& stop : stops_of(run_.schedule, run_.timeline, *run_.standstill)) {
      out_ << std::exchange(separator, ",\n");
      print_stop(stop);
    }
  }
  void print_stop(const Stop& stop) {
    if (stop.label.empty()) {
      out_ << "null";
      return;
    }
    out_ << fmt::format("[{},{},[", json_string(stop.label), ticks(stop.time));
    for (const std::string& wait : stop.waits)
      out_ << (&wait == stop.waits.data() ? "" : ",") << json_string(wait);
    out_ << "]]";
  }

  void print_rank(size_t rank) {
    std::string kinds;
    Column stages, microbatches, starts, durations, slacks, dependencies, compounds;
    int64_t compute_end = 0;
    for (size_t step = 0; step < rows_[rank].size(); ++step) {
      const Action& action = rows_[rank][step];
      const uint32_t number = run_.graph.number_of(rank, step);
      if (action.is_idle() || never_runs(number)) {
        kinds += '.';
        continue;
      }
      const auto parts = action.parts();
      const ActionPart first = parts.front();
      kinds += letter_of(action.kind());
      stages.add(first.stage());
      microbatches.add(ir::info(first.kind()).has_microbatch ? first.microbatch() : -1);
      if (parts.size() > 1) {
        compounds.add(std::string{letter_of(first.kind()), letter_of(parts[1].kind())});
        compounds.add(parts[1].stage());
        compounds.add(parts[1].microbatch());
      }
      const ir::Interval& interval = run_.timeline.at(rank, step);
      const int64_t start = ticks(interval.start), end = ticks(interval.end);
      starts.add(start - compute_end);
      durations.add(end - start);
      const double slack = slacks_[number];
      slacks.add(slack > 0 ? std::max<int64_t>(1, ticks(slack)) : 0);
      add_dependencies(number, &dependencies);
      if (lane_of(action.kind()) == "compute") compute_end = end;
    }
    out_ << fmt::format(
        "{{\"kinds\":\"{}\",\"stages\":{},\"microbatches\":{},\"starts\":{},\"durations\":{},"
        "\"slacks\":{},\"dependencies\":{},\"compounds\":{},",
        kinds, stages.text(), microbatches.text(), starts.text(), durations.text(), slacks.text(),
        dependencies.text(), compounds.text());
    print_memory(rank);
  }

  void add_dependencies(uint32_t number, Column* dependencies) const {
    const uint32_t poster = run_.graph.compute_before(number);
    run_.graph.any_dependency(number, [&](const Dependency& dependency) {
      if (dependency.action != poster)
        dependencies->add(static_cast<int64_t>(number) - static_cast<int64_t>(dependency.action));
      return false;
    });
    dependencies->add(0);
  }

  void print_memory(size_t rank) const {
    Column activations, bytes;
    int64_t activations_at = 0, bytes_at = 0, live = 0, held = 0;
    for (const MemorySample& sample : memory_.along(run_.timeline, rank)) {
      const int64_t at = ticks(sample.time), bytes_now = std::llround(sample.bytes);
      if (sample.activations != live) {
        activations.add(at - activations_at);
        activations.add(sample.activations - live);
        activations_at = at;
        live = sample.activations;
      }
      if (bytes_now != held) {
        bytes.add(at - bytes_at);
        bytes.add(bytes_now - held);
        bytes_at = at;
        held = bytes_now;
      }
    }
    out_ << fmt::format("\"activations\":{},\"bytes\":{}}}", activations.text(),
                        run_.costs.has_sizes() ? bytes.text() : "null");
  }

  const HtmlRun& run_;
  const ir::Rows& rows_;
  std::ostream& out_;
  const double end_, per_unit_;
  const std::vector<double> slacks_;  // by action
  const MemoryModel memory_;
};

}  // namespace

void print_html(std::span<const HtmlRun> runs, std::ostream& out) {
  constexpr std::string_view kPlace = "@DATA@";
  const std::string_view page = kViewerPage;
  const size_t place = page.find(kPlace);
  PW_CHECK(place != std::string_view::npos, "the viewer's page has no place for data");
  out << page.substr(0, place) << "{\"version\":1,\"kinds\":";
  print_kinds(out);
  out << ",\n\"runs\":[";
  for (const HtmlRun& run : runs) {
    if (&run != runs.data()) out << ",\n";
    RunWriter(run, out).print();
  }
  out << "]}" << page.substr(place + kPlace.size());
}

}  // namespace pipewright::schedule
