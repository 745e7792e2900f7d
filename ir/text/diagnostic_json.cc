#include "pipewright/ir/text/diagnostic_json.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "pipewright/ir/printable.h"

namespace pipewright::ir {
namespace {

using Json = nlohmann::ordered_json;

Json or_null(std::optional<int> number) { return number ? Json(*number) : Json(nullptr); }

void add_place(const Place& place, Json* json) {
  (*json)["rank"] = or_null(place.rank);
  (*json)["step"] = or_null(place.step);
  (*json)["line"] = place.offset ? Json(place.line) : Json(nullptr);
  (*json)["column"] = place.offset ? Json(place.column) : Json(nullptr);
}

}  // namespace

std::string quoted_json(std::string_view text) { return Json(printable(text)).dump(); }

std::string diagnostics_json(const Diagnostics& diagnostics, int indent) {
  Json list = Json::array();
  for (const Diagnostic& diagnostic : diagnostics.kept()) {
    Json one;
    one["code"] = code(diagnostic.rule);
    one["severity"] = name(diagnostic.severity);
    one["message"] = printable(diagnostic.message);
    add_place(diagnostic.place, &one);
    one["notes"] = Json::array();
    for (const Note& note : diagnostic.notes) {
      Json noted;
      noted["message"] = printable(note.message);
      add_place(note.place, &noted);
      one["notes"].push_back(std::move(noted));
    }
    one["help"] = diagnostic.help.empty() ? Json(nullptr) : Json(printable(diagnostic.help));
    list.push_back(std::move(one));
  }
  const std::string text = list.dump(2);
  std::string indented;
  for (const char letter : text) {
    indented += letter;
    if (letter == '\n') indented.append(static_cast<size_t>(indent), ' ');
  }
  return indented;
}

}  // namespace pipewright::ir
