#include "pipewright/ir/text/json_scanner.h"

#include <cstddef>
#include <nlohmann/json.hpp>

namespace pipewright::ir {
namespace {

using Json = nlohmann::json;

// Forwards the callbacks of nlohmann's parser, except those inside a skipped value.
class Forwarder : public nlohmann::json_sax<Json> {
 public:
  Forwarder(JsonCursor* cursor, JsonEvents* events, Diagnostics* diagnostics)
      : cursor_(*cursor), events_(*events), diagnostics_(diagnostics) {}

  bool null() override { return scalar(JsonKind::kNull, "null"); }
  bool boolean(bool value) override { return scalar(JsonKind::kBoolean, value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override {
    return scalar(JsonKind::kNumber, std::to_string(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return scalar(JsonKind::kNumber, std::to_string(value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return scalar(JsonKind::kNumber, text);
  }
  bool string(string_t& value) override { return scalar(JsonKind::kString, value); }
  bool binary(binary_t&) override { return false; }  // does not occur in JSON text
  bool start_object(std::size_t) override { return enter(JsonKind::kObject); }
  bool start_array(std::size_t) override { return enter(JsonKind::kArray); }
  bool end_object() override { return leave(JsonKind::kObject); }
  bool end_array() override { return leave(JsonKind::kArray); }
  bool key(string_t& value) override { return skipped_ > 0 || events_.key(value); }
  bool parse_error(std::size_t read, const std::string&, const Json::exception& error) override {
    cursor_.report(read, error, diagnostics_);
    return false;
  }

 private:
  bool scalar(JsonKind kind, const std::string& text) {
    return skipped_ > 0 || events_.scalar(kind, text);
  }
  bool enter(JsonKind kind) {
    if (skipped_ > 0 || !events_.enter(kind)) ++skipped_;
    return true;
  }
  bool leave(JsonKind kind) {
    if (skipped_ > 0) {
      --skipped_;
    } else {
      events_.leave(kind);
    }
    return true;
  }

  JsonCursor& cursor_;
  JsonEvents& events_;
  Diagnostics* diagnostics_;
  int skipped_ = 0;  // depth inside a skipped value
};

}  // namespace

std::string_view name(JsonKind kind) {
  constexpr std::string_view kNames[] = {"null",     "true or false", "a number",
                                         "a string", "an array",      "an object"};
  return kNames[static_cast<size_t>(kind)];
}

bool scan_json(JsonCursor* cursor, JsonEvents* events, Diagnostics* diagnostics) {
  Forwarder forwarder(cursor, events, diagnostics);
  return cursor->parse(&forwarder);
}

}  // namespace pipewright::ir
