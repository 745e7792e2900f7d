#include "pipewright/ir/text/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "pipewright/ir/printable.h"

namespace pipewright::ir {
namespace {

constexpr std::string_view kBold = "1", kRed = "1;31", kCyan = "1;36", kGreen = "1;32";

class Renderer {
 public:
  Renderer(const Source* source, const RenderOptions& options)
      : source_(source), options_(options) {}

  void add(const Diagnostic& diagnostic) {
    head(diagnostic.place, "error", kRed, code(diagnostic.rule), diagnostic.message);
    excerpt(diagnostic.place);
    for (const Note& note : diagnostic.notes) {
      head(note.place, "note", kCyan, "", note.message);
      excerpt(note.place);
    }
    if (!diagnostic.help.empty()) head({}, "help", kCyan, "", diagnostic.help);
  }

  void count_dropped(size_t dropped) {
    if (dropped > 0)
      text_ +=
          fmt::format("... and {}, not shown\n", counted(dropped, "more error", "more errors"));
  }

  std::string take() { return std::move(text_); }

 private:
  std::string paint(std::string_view color, std::string_view text) const {
    return options_.color ? fmt::format("\x1B[{}m{}\x1B[0m", color, text) : std::string(text);
  }

  void head(const Place& place, std::string_view kind, std::string_view color,
            std::string_view code, std::string_view message) {
    const bool placed = kind != "note" && kind != "help";
    if (placed || place.offset || place.rank) {
      const std::string where = render_place(place, source_);
      if (!where.empty()) text_ += paint(kBold, where + ":") + " ";
    }
    text_ +=
        paint(color, code.empty() ? fmt::format("{}:", kind) : fmt::format("{}[{}]:", kind, code));
    text_ += fmt::format(" {}\n", message);
  }

  // Appends the line of the file, with carets under the place.
  void excerpt(const Place& place) {
    if (!place.offset || source_ == nullptr) return;
    const std::string_view text = source_->text;
    const size_t offset = std::min(*place.offset, text.size());

    // A row may be megabytes long, and there may be an error in each cell: look only at what can be
    // on the screen. A character has at most four bytes.
    const size_t width = std::max<size_t>(options_.width, 20);
    const size_t first = source_->mark_size();
    const size_t near = std::max(offset - std::min(offset, 4 * width), std::min(first, offset));
    const size_t newline = text.substr(near, offset - near).rfind('\n');
    const size_t begin = newline == std::string_view::npos ? near : near + newline + 1;
    const bool left_is_whole =
        newline != std::string_view::npos || near <= first || text[near - 1] == '\n';
    std::string_view after = text.substr(offset, 4 * (width + 2));
    const size_t line_end = after.find('\n');
    after = after.substr(0, line_end);
    const bool ends_here =
        line_end != std::string_view::npos || offset + after.size() == text.size();
    if (ends_here && after.ends_with('\r')) after.remove_suffix(1);
    std::vector<std::string> left, right;  // the printable form of each character
    size_t columns = 0;
    std::string_view ahead = after;
    while (!ahead.empty() && columns <= width)
      columns += right.emplace_back(take_shown(&ahead)).size();
    std::string_view behind = text.substr(begin, offset - begin);
    if (after.empty() && behind.ends_with('\r')) behind.remove_suffix(1);
    while (!behind.empty()) left.emplace_back(take_shown(&behind));

    draw(left, left_is_whole, right, ahead.empty(), std::max<size_t>(place.length, 1), width);
  }

  // A tab would misalign the carets, so it is shown as a blank.
  static std::string take_shown(std::string_view* text) {
    if (text->front() == '\t') {
      text->remove_prefix(1);
      return " ";
    }
    return take_printable(text);
  }

  static size_t columns_of(const std::string& shown) {
    return static_cast<size_t>(
        std::ranges::count_if(shown, [](char byte) { return (byte & 0xC0) != 0x80; }));
  }

  void draw(const std::vector<std::string>& left, bool left_is_whole,
            const std::vector<std::string>& right, bool right_is_whole, size_t length,
            size_t width) {
    constexpr std::string_view kCut = "...";
    // Cut on the left until the carets are in the first half of the line, or further right if the
    // text after them is short.
    size_t left_columns = 0;
    for (const std::string& shown : left) left_columns += columns_of(shown);
    size_t first = 0;
    size_t total = left_columns;
    for (const std::string& shown : right) total += columns_of(shown);
    if (!left_is_whole || total > width) {
      const size_t room = std::max(width / 2, width - std::min(width, total - left_columns));
      while (first < left.size() && left_columns + kCut.size() > room)
        left_columns -= columns_of(left[first++]);
    }
    std::string line;
    if (first > 0 || !left_is_whole) {
      line += kCut;
      left_columns += kCut.size();
    }
    for (size_t index = first; index < left.size(); ++index) line += left[index];
    size_t used = left_columns, carets = 0, shown = 0;
    for (; shown < right.size(); ++shown) {
      const size_t columns = columns_of(right[shown]);
      const bool last = shown + 1 == right.size() && right_is_whole;
      if (used + columns + (last ? 0 : kCut.size()) > width) break;
      used += columns;
      line += right[shown];
      if (shown < length) carets += columns;
    }
    if (shown < right.size() || !right_is_whole) line += kCut;
    text_ += line + "\n" + std::string(left_columns, ' ');
    text_ += paint(kGreen, std::string(std::max<size_t>(carets, 1), '^')) + "\n";
  }

  const Source* source_;
  RenderOptions options_;
  std::string text_;
};

}  // namespace

std::string render_place(const Place& place, const Source* source) {
  if (source != nullptr) {
    const std::string file = printable(source->name);
    return place.offset ? fmt::format("{}:{}:{}", file, place.line, place.column) : file;
  }
  if (!place.rank) return "";
  return place.step ? fmt::format("rank {} step {}", *place.rank, *place.step)
                    : fmt::format("rank {}", *place.rank);
}

std::string render(const Diagnostics& diagnostics, const Source* source,
                   const RenderOptions& options) {
  Renderer renderer(source, options);
  const auto shown =
      diagnostics.kept().first(std::min(diagnostics.kept().size(), options.max_errors));
  for (const Diagnostic& diagnostic : shown) renderer.add(diagnostic);
  renderer.count_dropped(diagnostics.total() - shown.size());
  return renderer.take();
}

namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson or_null(std::optional<int> number) {
  return number ? OrderedJson(*number) : OrderedJson(nullptr);
}

void add_place(const Place& place, OrderedJson* json) {
  (*json)["rank"] = or_null(place.rank);
  (*json)["step"] = or_null(place.step);
  (*json)["line"] = place.offset ? OrderedJson(place.line) : OrderedJson(nullptr);
  (*json)["column"] = place.offset ? OrderedJson(place.column) : OrderedJson(nullptr);
}

}  // namespace

std::string quoted_json(std::string_view text) { return OrderedJson(printable(text)).dump(); }

std::string diagnostics_json(const Diagnostics& diagnostics) {
  OrderedJson list = OrderedJson::array();
  for (const Diagnostic& diagnostic : diagnostics.kept()) {
    OrderedJson one;
    one["code"] = code(diagnostic.rule);
    one["severity"] = "error";
    one["message"] = printable(diagnostic.message);
    add_place(diagnostic.place, &one);
    one["notes"] = OrderedJson::array();
    for (const Note& note : diagnostic.notes) {
      OrderedJson noted;
      noted["message"] = printable(note.message);
      add_place(note.place, &noted);
      one["notes"].push_back(std::move(noted));
    }
    one["help"] =
        diagnostic.help.empty() ? OrderedJson(nullptr) : OrderedJson(printable(diagnostic.help));
    list.push_back(std::move(one));
  }
  return list.dump();
}

}  // namespace pipewright::ir
