// Fuzz target for one parser: on any bytes it either returns a schedule that round-trips through
// the printer, or reports errors with valid places. Built once per format, which PW_FUZZ_FORMAT
// names.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "pipewright/ir/text/csv.h"
#include "pipewright/ir/text/read.h"
#include "pipewright/ir/text/render.h"

namespace {

using namespace pipewright::ir;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Format& format = *find_format(PW_FUZZ_FORMAT);
  const Source source{"fuzz", std::string(reinterpret_cast<const char*>(data), size)};
  Diagnostics diagnostics;
  const auto parsed = format.parse(source, &diagnostics);
  require(parsed.has_value() != diagnostics.has_errors(), "either a schedule or errors");
  for (const Diagnostic& diagnostic : diagnostics.kept()) {
    if (!diagnostic.place.offset) continue;
    require(*diagnostic.place.offset <= size, "a place is inside the text");
  }
  require(render(diagnostics, &source, {}).size() >= diagnostics.kept().size(),
          "every error is shown");
  require(!diagnostics_json(diagnostics).empty(), "errors are JSON");
  if (format.name == "csv") {
    Diagnostics of_two;
    const auto two = parse_csv(source, &of_two, {.replicas = 2});
    require(two.has_value() != of_two.has_errors(), "either two replicas or errors");
  }
  if (!parsed) return 0;

  std::ostringstream printed;
  format.print(parsed->schedule, printed);
  const Source again_source{"again", printed.str()};
  Diagnostics none;
  const auto again = format.parse(again_source, &none);
  require(again.has_value(), "the printed schedule is valid");
  require(level_of(again->schedule) == level_of(parsed->schedule), "the level round-trips");
  require(schedule_of(again->schedule) == schedule_of(parsed->schedule),
          "the schedule round-trips");
  return 0;
}
