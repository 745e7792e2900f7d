// TreeBuilder parses the text into a tree of values, each with its place; CostsReader then reads
// the tree key by key. The reader continues after an error, so that all errors are reported; a
// syntax error or too deep nesting ends the parse.
#include "pipewright/schedule/problem/costs_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pipewright/ir/text/json_scanner.h"
#include "pipewright/ir/text/spelling.h"

namespace pipewright::schedule {
namespace {

using Json = nlohmann::json;

enum class Kind { kNull, kBoolean, kNumber, kString, kArray, kObject };

struct Member;

struct Value {
  Kind kind = Kind::kNull;
  double number = 0;            // kNumber
  std::string text;             // kString
  std::vector<Value> items;     // kArray
  std::vector<Member> members;  // kObject
  ir::Place place;
};

struct Member {
  std::string key;
  ir::Place key_place;
  Value value;
};

// Builds the tree from the parser's events.
class TreeBuilder : public nlohmann::json_sax<Json> {
 public:
  TreeBuilder(const ir::Source& source, ir::Diagnostics* diagnostics)
      : text_(source.text), cursor_(source), diagnostics_(*diagnostics) {}

  // Returns nullopt if the text is not JSON, or nested deeper than kDeepest.
  std::optional<Value> build() {
    if (!cursor_.parse(this)) return std::nullopt;
    return std::move(root_);
  }

  bool null() override { return word(Kind::kNull, 0); }
  bool boolean(bool) override { return word(Kind::kBoolean, 0); }
  bool number_integer(number_integer_t number) override {
    return word(Kind::kNumber, static_cast<double>(number));
  }
  bool number_unsigned(number_unsigned_t number) override {
    return word(Kind::kNumber, static_cast<double>(number));
  }
  bool number_float(number_float_t number, const string_t&) override {
    return word(Kind::kNumber, number);
  }
  bool string(string_t& text) override {
    Value& value = add(Kind::kString);
    value.place = cursor_.string();
    value.text = text;
    return true;
  }
  bool binary(binary_t&) override { return false; }  // JSON text has none
  bool start_object(std::size_t) override { return open(Kind::kObject); }
  bool start_array(std::size_t) override { return open(Kind::kArray); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& key) override {
    open_.back()->members.push_back({key, cursor_.string(), {}});
    return true;
  }
  bool parse_error(std::size_t read, const std::string&, const Json::exception& error) override {
    cursor_.report(read, error, &diagnostics_);
    return false;
  }

 private:
  static constexpr size_t kDeepest = 4;

  // Adds the value that an event starts: the root, an item of an array, or the value of the last
  // key.
  Value& add(Kind kind) {
    Value& value = open_.empty()                        ? root_
                   : open_.back()->kind == Kind::kArray ? open_.back()->items.emplace_back()
                                                        : open_.back()->members.back().value;
    value.kind = kind;
    return value;
  }

  bool word(Kind kind, double number) {
    Value& value = add(kind);
    value.place = cursor_.word();
    value.number = number;
    return true;
  }

  bool open(Kind kind) {
    Value& value = add(kind);
    value.place = cursor_.token(1);
    open_.push_back(&value);
    if (open_.size() <= kDeepest) return true;
    diagnostics_.error(ir::Rule::kJsonType,
                       fmt::format("expected values nested at most {} deep, got more", kDeepest),
                       value.place);
    return false;
  }

  // The place of an array or object spans all of it if it is on one line, else its first character.
  bool close() {
    ir::Place& place = open_.back()->place;
    const size_t length = cursor_.token_end() - *place.offset;
    if (text_.substr(*place.offset, length).find('\n') == std::string_view::npos)
      place.length = length;
    open_.pop_back();
    return true;
  }

  std::string_view text_;
  ir::JsonCursor cursor_;
  ir::Diagnostics& diagnostics_;
  Value root_;
  std::vector<Value*> open_;  // the open arrays and objects, outermost first. The pointers stay
                              // valid: the array or object that contains one of them does not grow
};

// Reads the tree. Its functions return a default value after reporting an error.
class CostsReader {
 public:
  CostsReader(const ir::Source& source, ir::Diagnostics* diagnostics)
      : text_(source.text), diagnostics_(*diagnostics) {}

  ParsedCosts read(const Value& root) {
    if (root.kind != Kind::kObject) {
      wrong(ir::Rule::kJsonType, "a costs file", "an object", root);
      return {};
    }
    std::vector<std::string_view> known = {
        "version",           "unit",    "overlap",   "rank_scale",
        "microbatch_scale",  "latency", "bandwidth", "links",
        "rank_memory_bytes", "layers",  "cut",       "microbatch_size",
        "slice_scale"};
    for (const StageCost& field : stage_costs()) known.push_back(field.name);
    check_keys(root, known, "");
    if (const Value* version = find(root, "version")) {
      if (version->kind != Kind::kNumber || version->number != 1)
        wrong(ir::Rule::kVersion, "`version`", "1", *version);
    } else {
      ir::Place place = root.place;
      place.length = 1;
      diagnostics_.error(ir::Rule::kMissingKey, "a costs file has a `version`, got none", place)
          .help = "write it as `\"version\": 1`";
    }
    for (const StageCost& field : stage_costs()) {
      if (const Value* value = take(root, field.name))
        parsed_.costs.*(field.values) = per_stage(field.name, *value);
    }
    if (const Value* value = take(root, "unit")) read_unit(*value);
    if (const Value* value = take(root, "microbatch_size"))
      parsed_.costs.microbatch_size = whole("`microbatch_size`", 1, *value).value_or(1);
    if (const Value* value = take(root, "overlap")) parsed_.costs.overlap = overlap(*value);
    if (const Value* value = take(root, "rank_scale"))
      parsed_.costs.rank_scale = numbers("rank_scale", "a list with one factor per rank", *value);
    if (const Value* value = take(root, "microbatch_scale"))
      parsed_.costs.microbatch_scale =
          numbers("microbatch_scale", "a list with one factor per microbatch", *value);
    if (const Value* value = take(root, "slice_scale"))
      parsed_.costs.slice_scale =
          numbers("slice_scale", "a list with one factor per slice", *value);
    if (const Value* value = take(root, "rank_memory_bytes"))
      parsed_.costs.rank_memory_bytes =
          numbers("rank_memory_bytes", "a list with one number per rank", *value);
    if (const Value* value = take(root, "layers")) read_layers(*value);
    if (const Value* value = take(root, "cut")) read_cut(*value);
    if (const Value* value = take(root, "latency"))
      parsed_.costs.link.latency = number("latency", *value);
    if (const Value* value = take(root, "bandwidth"))
      parsed_.costs.link.bandwidth = bandwidth(*value);
    if (const Value* value = take(root, "links")) read_links(*value);
    return std::move(parsed_);
  }

 private:
  void wrong(ir::Rule rule, std::string_view what, std::string_view expected, const Value& got) {
    const std::string_view text =
        std::string_view(text_).substr(*got.place.offset, got.place.length);
    diagnostics_.error(rule,
                       fmt::format("{}: expected {}, got {}", what, expected, ir::backticked(text)),
                       got.place);
  }

  static const Value* find(const Value& object, std::string_view key) {
    const auto member = std::ranges::find(object.members, key, &Member::key);
    return member == object.members.end() ? nullptr : &member->value;
  }

  // Finds the value of a top-level key and stores its place.
  const Value* take(const Value& root, std::string_view key) {
    const Value* value = find(root, key);
    if (value != nullptr) parsed_.places.values.emplace(key, value->place);
    return value;
  }

  // Reports unknown and duplicate keys.
  void check_keys(const Value& object, std::span<const std::string_view> known,
                  std::string_view where) {
    std::set<std::string_view> seen;
    for (const Member& member : object.members) {
      if (std::ranges::find(known, member.key) == known.end()) {
        const std::string hint = ir::did_you_mean(member.key, known);
        diagnostics_
            .error(ir::Rule::kUnknownKey,
                   fmt::format("unknown key {}{}", ir::backticked(member.key), where),
                   member.key_place)
            .help = hint.empty() ? fmt::format("keys are {}", fmt::join(known, ", ")) : hint;
      } else if (!seen.insert(member.key).second) {
        diagnostics_.error(ir::Rule::kDuplicateKey,
                           fmt::format("duplicate key {}{}", ir::backticked(member.key), where),
                           member.key_place);
      }
    }
  }

  double number(std::string_view key, const Value& value) {
    if (value.kind == Kind::kNumber && is_cost(value.number)) return value.number;
    wrong(value.kind == Kind::kNumber ? ir::Rule::kBadValue : ir::Rule::kJsonType,
          fmt::format("`{}`", key), cost_in_words(), value);
    return 0;
  }

  PerStage per_stage(std::string_view key, const Value& value) {
    if (value.kind == Kind::kNumber) return number(key, value);
    return PerStage(numbers(key, "a number, or a list with one number per stage", value));
  }

  std::vector<double> numbers(std::string_view key, std::string_view expected, const Value& value) {
    std::vector<double> all;
    if (value.kind != Kind::kArray || value.items.empty())
      wrong(ir::Rule::kJsonType, fmt::format("`{}`", key), expected, value);
    for (const Value& item : value.items) all.push_back(number(key, item));
    return all;
  }

  double overlap(const Value& value) {
    if (value.kind == Kind::kNumber && is_overlap(value.number)) return value.number;
    wrong(value.kind == Kind::kNumber ? ir::Rule::kBadValue : ir::Rule::kJsonType, "`overlap`",
          overlap_in_words(), value);
    return 0;
  }

  double bandwidth(const Value& value) {
    if (value.kind == Kind::kNumber && value.number == 0)
      wrong(ir::Rule::kBadValue, "`bandwidth`", "bytes per unit of time, above 0", value);
    return number("bandwidth", value);
  }

  void read_unit(const Value& value) {
    constexpr size_t kLongest = 16;
    const auto is_letter = [](unsigned char letter) { return std::isalpha(letter) != 0; };
    if (value.kind != Kind::kString || value.text.empty() || value.text.size() > kLongest ||
        !std::ranges::all_of(value.text, is_letter)) {
      wrong(value.kind == Kind::kString ? ir::Rule::kBadValue : ir::Rule::kJsonType, "`unit`",
            fmt::format("a word of up to {} letters", kLongest), value);
    } else {
      parsed_.costs.unit = value.text;
    }
  }

  // Returns nullopt and adds an error if the value cannot be a rank.
  std::optional<int> rank(const Value& link, std::string_view key) {
    const Value* value = find(link, key);
    if (value->kind == Kind::kNumber && value->number >= 0 && value->number < ir::kMaxStages &&
        value->number == std::floor(value->number))
      return static_cast<int>(value->number);
    wrong(ir::Rule::kBadValue, fmt::format("`{}` of a link", key), "a rank", *value);
    return std::nullopt;
  }

  // Returns nullopt and adds an error if the value is not one.
  std::optional<int> whole(std::string_view what, int least, const Value& value) {
    if (value.kind == Kind::kNumber && value.number >= least && value.number < 1e9 &&
        value.number == std::floor(value.number))
      return static_cast<int>(value.number);
    wrong(ir::Rule::kBadValue, what, fmt::format("a whole number from {}", least), value);
    return std::nullopt;
  }

  void read_layers(const Value& value) {
    if (value.kind != Kind::kArray || value.items.empty())
      return wrong(ir::Rule::kJsonType, "`layers`",
                   "a list of objects, one per layer or run of equal layers", value);
    std::vector<std::string_view> known = {"count"};
    for (const StageCost& field : stage_costs()) known.push_back(field.name);
    for (const Value& item : value.items) {
      if (item.kind != Kind::kObject) {
        wrong(ir::Rule::kJsonType, "`layers`", "objects", item);
        continue;
      }
      check_keys(item, known, " in a layer");
      LayerRun run;
      if (const Value* count = find(item, "count"))
        run.count = whole("`count` of layers", 1, *count).value_or(1);
      for (const StageCost& field : stage_costs()) {
        if (const Value* cost = find(item, field.name))
          run[field.values] = number(field.name, *cost);
      }
      parsed_.costs.layers.push_back(run);
    }
  }

  void read_cut(const Value& value) {
    if (value.kind != Kind::kArray || value.items.empty())
      return wrong(ir::Rule::kJsonType, "`cut`", "a list with the layers of each stage", value);
    for (const Value& item : value.items)
      parsed_.costs.cut.push_back(whole("`cut`", 0, item).value_or(0));
  }

  void read_links(const Value& value) {
    if (value.kind != Kind::kArray) return wrong(ir::Rule::kJsonType, "`links`", "a list", value);
    for (const Value& link : value.items) read_link(link);
  }

  void read_link(const Value& value) {
    if (value.kind != Kind::kObject || !find(value, "from") || !find(value, "to"))
      return wrong(ir::Rule::kJsonType, "`links`", "objects with `from` and `to`", value);
    constexpr std::string_view kKeys[] = {"from", "to", "latency", "bandwidth"};
    check_keys(value, kKeys, " in a link");
    OwnLink link;
    if (const Value* latency = find(value, "latency")) link.latency = number("latency", *latency);
    if (const Value* bytes = find(value, "bandwidth")) link.bandwidth = bandwidth(*bytes);
    if (!link.latency && !link.bandwidth)
      wrong(ir::Rule::kMissingKey, "a link", "`latency`, `bandwidth` or both", value);
    const std::optional<int> from = rank(value, "from"), to = rank(value, "to");
    if (!from || !to) return;
    if (*from == *to) return wrong(ir::Rule::kBadValue, "a link", "two different ranks", value);
    if (parsed_.costs.links.try_emplace({*from, *to}, link).second) {
      parsed_.places.links.emplace(std::pair(*from, *to), value.place);
    } else {
      diagnostics_.error(ir::Rule::kDuplicateKey,
                         fmt::format("`links` has two from rank {} to rank {}", *from, *to),
                         value.place);
    }
  }

  const std::string& text_;
  ir::Diagnostics& diagnostics_;
  ParsedCosts parsed_;
};

}  // namespace

std::optional<ParsedCosts> parse_costs(const ir::Source& source, ir::Diagnostics* diagnostics) {
  const size_t before = diagnostics->total();
  const std::optional<Value> root = TreeBuilder(source, diagnostics).build();
  if (!root) return std::nullopt;
  ParsedCosts parsed = CostsReader(source, diagnostics).read(*root);
  if (diagnostics->total() > before) {
    diagnostics->sort();
    return std::nullopt;
  }
  return parsed;
}

namespace {

// fmt prints the shortest decimal that reads back as the same number.
std::string list(std::span<const double> values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

std::string links_json(const Costs& costs) {
  std::string text;
  for (const auto& [ranks, link] : costs.links) {
    text += text.empty() ? "[" : ",";
    text += fmt::format("\n    {{\"from\": {}, \"to\": {}", ranks.first, ranks.second);
    if (link.latency) text += fmt::format(", \"latency\": {}", *link.latency);
    if (link.bandwidth) text += fmt::format(", \"bandwidth\": {}", *link.bandwidth);
    text += "}";
  }
  return text + "\n  ]";
}

}  // namespace

namespace {

std::string layers_json(const Costs& costs) {
  const LayerRun defaults;
  std::string text;
  for (const LayerRun& run : costs.layers) {
    text += text.empty() ? "[\n    {" : ",\n    {";
    text += fmt::format("\"count\": {}", run.count);
    for (const StageCost& field : stage_costs()) {
      if (const double cost = run[field.values]; cost != defaults[field.values])
        text += fmt::format(", \"{}\": {}", field.name, cost);
    }
    text += "}";
  }
  return text + "\n  ]";
}

}  // namespace

void print_costs(const Costs& costs, std::ostream& out) {
  const Costs defaults;
  out << "{\n  \"version\": 1";
  const auto add = [&](std::string_view key, const std::string& value) {
    out << fmt::format(",\n  \"{}\": {}", key, value);
  };
  if (!costs.unit.empty()) add("unit", '"' + costs.unit + '"');
  if (costs.microbatch_size > 0) add("microbatch_size", fmt::format("{}", costs.microbatch_size));
  for (const StageCost& field : stage_costs()) {
    const PerStage& values = costs.*(field.values);
    if (values == defaults.*(field.values)) continue;
    add(field.name, values.is_list() ? list(values.values()) : fmt::format("{}", values.at(0)));
  }
  if (!costs.layers.empty()) add("layers", layers_json(costs));
  if (!costs.cut.empty()) add("cut", fmt::format("[{}]", fmt::join(costs.cut, ", ")));
  if (costs.overlap != defaults.overlap) add("overlap", fmt::format("{}", costs.overlap));
  if (!costs.rank_scale.empty()) add("rank_scale", list(costs.rank_scale));
  if (!costs.microbatch_scale.empty()) add("microbatch_scale", list(costs.microbatch_scale));
  if (!costs.slice_scale.empty()) add("slice_scale", list(costs.slice_scale));
  if (!costs.rank_memory_bytes.empty()) add("rank_memory_bytes", list(costs.rank_memory_bytes));
  if (costs.link.latency != defaults.link.latency)
    add("latency", fmt::format("{}", costs.link.latency));
  if (costs.link.bandwidth != defaults.link.bandwidth)
    add("bandwidth", fmt::format("{}", costs.link.bandwidth));
  if (!costs.links.empty()) add("links", links_json(costs));
  out << "\n}\n";
}

}  // namespace pipewright::schedule
