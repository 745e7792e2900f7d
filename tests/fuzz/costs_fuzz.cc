// Fuzz target for costs files: on any bytes the parser either returns costs whose numbers are
// valid and that read back equal when they are written, or reports errors with places inside the
// text.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

#include "pipewright/ir/placement.h"
#include "pipewright/ir/text/render.h"
#include "pipewright/schedule/problem/costs_json.h"

namespace {

using namespace pipewright;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

void require_places(const ir::Diagnostics& diagnostics, const ir::Source& source) {
  for (const ir::Diagnostic& diagnostic : diagnostics.kept()) {
    require(diagnostic.place.offset.has_value(), "every error has a place");
    require(*diagnostic.place.offset <= source.text.size(), "a place is inside the text");
  }
  require(render(diagnostics, &source, {}).size() >= diagnostics.kept().size(),
          "every error is shown");
  require(!diagnostics_json(diagnostics).empty(), "errors are JSON");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ir::Source source{"fuzz", std::string(reinterpret_cast<const char*>(data), size)};
  ir::Diagnostics diagnostics;
  const auto parsed = schedule::parse_costs(source, &diagnostics);
  require(parsed.has_value() != diagnostics.has_errors(), "either costs or errors");
  require_places(diagnostics, source);
  if (!parsed) return 0;

  std::ostringstream printed;
  schedule::print_costs(parsed->costs, printed);
  const auto again = schedule::parse_costs({"printed", printed.str()}, &diagnostics);
  require(again && again->costs == parsed->costs, "what is written reads back");

  // Valid costs may fit no schedule of this shape, and their products may be too large or small.
  ir::Diagnostics misfits;
  const bool fits =
      check_costs(parsed->costs, parsed->places, ir::Placement::loop(2, 4), 3, &misfits);
  require_places(misfits, source);
  for (const ir::Diagnostic& misfit : misfits.kept())
    require(misfit.rule == ir::Rule::kCostsMismatch || misfit.rule == ir::Rule::kBadValue,
            "only lengths, ranks and products can be wrong");
  if (!fits) return 0;
  const schedule::CostTable table(parsed->costs, ir::Placement::loop(2, 4));
  for (int stage = 0; stage < 4; ++stage) {
    const double duration = table.duration(ir::Action(ir::ActionKind::kBackward, stage),
                                           static_cast<size_t>(stage) % 2);
    require(duration >= 0 && duration <= 2 * schedule::kMostCost, "a duration is finite");
  }
  return 0;
}
