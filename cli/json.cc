#include "pipewright/cli/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <string>

#include "pipewright/ir/text/render.h"

namespace pipewright::cli {
namespace {

// Lists whose items are the rows of a table, one line each.
constexpr std::string_view kTables[] = {
    "ranks",      "actions",     "critical_path", "groups", "largest_differences",
    "slow_links", "constraints", "options",       "mesh",   "files",
    "parts"};

bool is_table(std::string_view key, const Json& value) {
  return value.is_array() && !value.empty() && std::ranges::find(kTables, key) != std::end(kTables);
}

bool has_table(const Json& value) {
  if (!value.is_object()) return false;
  const auto& members = value.get_ref<const Json::object_t&>();
  return std::ranges::any_of(
      members, [](const auto& member) { return is_table(member.first, member.second); });
}

class Printer {
 public:
  explicit Printer(std::ostream& out) : out_(out) {}

  // `key` is that of the value, empty for the document. `has_lines`: each member or item is on a
  // line of its own, which is indented by two more than `indent` blanks.
  void print(std::string_view key, const Json& value, bool has_lines, size_t indent) {
    if (value.is_number_float()) {
      out_ << fmt::format("{}", value.get<double>());
    } else if (!value.is_structured() || value.empty()) {
      out_ << value.dump(-1, ' ', false, Json::error_handler_t::replace);
    } else if (value.is_object()) {
      out_ << '{';
      for (auto member = value.begin(); member != value.end(); ++member) {
        separate(member == value.begin(), has_lines, indent + 2);
        print("", Json(member.key()), false, 0);
        out_ << ": ";
        const bool has_objects = member->is_array() && !member->empty() && (*member)[0].is_object();
        print(member.key(), *member, has_lines && (has_objects || has_table(*member)), indent + 2);
      }
      if (has_lines) start_line(indent);
      out_ << '}';
    } else {
      const bool has_rows = is_table(key, value);
      out_ << '[';
      for (auto item = value.begin(); item != value.end(); ++item) {
        separate(item == value.begin(), has_lines, indent + 2);
        print("", *item, has_lines && (!has_rows || has_table(*item)), indent + 2);
      }
      if (has_lines) start_line(indent);
      out_ << ']';
    }
  }

 private:
  void separate(bool is_first, bool has_lines, size_t indent) {
    if (!is_first) out_ << (has_lines ? "," : ", ");
    if (has_lines) start_line(indent);
  }

  void start_line(size_t indent) { out_ << '\n' << std::string(indent, ' '); }

  std::ostream& out_;
};

}  // namespace

void print_json(const Json& document, std::ostream& out) {
  Printer(out).print("", document, true, 0);
  out << '\n';
}

Json capacity_json(ir::ChannelCapacity capacity) {
  return capacity == ir::kUnboundedCapacity ? Json("inf") : Json(capacity);
}

Json diagnostics_json(const ir::Diagnostics& diagnostics) {
  return Json::parse(ir::diagnostics_json(diagnostics));
}

Json receive_slots_json(const schedule::ReceiveSlots& slots) {
  return {
      {"pooled", slots.pooled},
      {"separate", slots.separate()},
      {"stages", list_json(slots.stages, [](const schedule::StageReceiveSlots& one) {
         return Json{{"stage", one.stage}, {"forward", one.forward}, {"backward", one.backward}};
       })}};
}

}  // namespace pipewright::cli
